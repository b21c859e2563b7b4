"""One partition that does not answer takes neither throughput nor the size of batches.

On a virtual clock: a broker of ten partitions answers each entry after a while, and one never.
"""

import asyncio
import contextlib
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import looptime
import pytest

from magnetar.client.context import Context
from magnetar.client.errors import ProducerQueueIsFull
from magnetar.client.limits import Permits
from magnetar.client.options import Batching, ClientOptions, ProducerOptions
from magnetar.client.producer.partition import STALLED_S
from magnetar.client.producer.producer import Producer
from magnetar.client.schema.api import BYTES
from magnetar.core.clock import SystemClock
from magnetar.core.names import parse_topic
from magnetar.core.tasks import TaskSet
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.client_decoder import Receipt

PARTITIONS = 10
BLOCKED = 3
RATE = 1_000
SECONDS = 4
TICK_S = 0.004
ANSWER_S = 0.005
BODY = b"x" * 1_024


class Broker:
    """All partitions on one connection, which answers SENDs after a while."""

    address, max_message_bytes, closed = "broker", 5 << 20, False

    def __init__(self, blocked: int | None, answer_s: float) -> None:
        self._blocked, self._answer_s = blocked, answer_s
        self._loop = asyncio.get_running_loop()
        self._producers: dict[int, Any] = {}
        self._partitions: dict[int, int] = {}
        self._requests = iter(range(1, 1 << 30))
        self.received = [0] * PARTITIONS

    def attach_producer(self, producer_id: int, producer: Any) -> None:
        self._producers[producer_id] = producer

    def detach_producer(self, producer_id: int) -> None:
        self._producers.pop(producer_id, None)

    def next_request_id(self) -> int:
        return next(self._requests)

    def write(self, _frame: bytes) -> None:
        """CLOSE_PRODUCER, which needs no answer here."""

    def start_request(self, _kind: int, command: Any, _topic: str) -> "asyncio.Future[Any]":
        self._partitions[command.producer_id] = parse_topic(command.topic).partition_index
        answer = self._loop.create_future()
        answer.set_result(
            pb.CommandProducerSuccess(request_id=1, producer_name="p", last_sequence_id=-1)
        )
        return answer

    async def request(self, *_arguments: Any) -> None:
        """CLOSE_PRODUCER."""

    def write_parts(self, parts: tuple[bytes, ...]) -> None:
        frame = b"".join(parts)
        command = pb.BaseCommand.FromString(frame[8 : 8 + int.from_bytes(frame[4:8])])
        send = command.send
        partition = self._partitions[send.producer_id]
        self.received[partition] += send.num_messages
        if partition != self._blocked:
            highest = send.highest_sequence_id or send.sequence_id
            receipt = Receipt(send.producer_id, send.sequence_id, highest, 1, 1)
            producer = self._producers[send.producer_id]
            self._loop.call_later(self._answer_s, producer.on_receipt, receipt)


async def produced(
    options: ProducerOptions, blocked: int | None, answer_s: float
) -> tuple[int, float, list[int]]:
    """Returns the messages with receipts, the mean batch, and what each partition got."""
    loop = asyncio.get_running_loop()
    broker = Broker(blocked, answer_s)
    client = ClientOptions()

    async def partitions(_topic: str) -> int:
        return PARTITIONS

    async def connection(_topic: str) -> Broker:
        return broker

    ids = iter(range(PARTITIONS))
    context = SimpleNamespace(
        loop=loop,
        options=client,
        lookup=SimpleNamespace(partitions=partitions, connection=connection),
        clock=SystemClock(),
        tasks=TaskSet("test"),
        random=Random(1),
        memory=Permits(client.memory_limit_bytes),
        next_producer_id=lambda: next(ids),
    )
    producer = Producer(cast("Context", context), "persistent://a/b/c", BYTES, options)
    await producer.open()
    futures = []
    for number in range(RATE * SECONDS):
        if not number % round(RATE * TICK_S):
            await asyncio.sleep(TICK_S)
        with contextlib.suppress(ProducerQueueIsFull):  # of the partition that fills up
            futures.append(producer.send_nowait(BODY))
    sent, mean = producer.stats.messages_sent, producer.stats.messages_per_entry
    await producer.close(flush_timeout_s=2 * answer_s)
    await asyncio.gather(*futures, return_exceptions=True)
    await context.tasks.stop()
    assert not context.memory.taken
    return sent, mean, broker.received


def virtually(
    options: ProducerOptions, blocked: int | None, answer_s: float = ANSWER_S
) -> tuple[int, float, list[int]]:
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(produced(options, blocked, answer_s))


@pytest.mark.parametrize(
    "options",
    [
        ProducerOptions(),
        ProducerOptions(max_pending_messages=100, batching=Batching(messages_max=50)),
    ],
    ids=["memory", "pending"],
)
def test_a_blocked_partition_takes_no_throughput(options: ProducerOptions) -> None:
    before, mean_before, _ = virtually(options, None)
    after, mean_after, received = virtually(options, BLOCKED)
    assert after >= 0.95 * before
    assert mean_after >= mean_before
    # It is left out as soon as it counts as stalled.
    assert received[BLOCKED] <= RATE * 1.2 * STALLED_S / PARTITIONS


def test_batches_stay_when_all_partitions_are_slow() -> None:
    _, mean_before, _ = virtually(ProducerOptions(), None)
    _, mean_after, received = virtually(ProducerOptions(), None, 3 * STALLED_S)
    assert mean_after >= 0.95 * mean_before
    assert min(received) > 0
