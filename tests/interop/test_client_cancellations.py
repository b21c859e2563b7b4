"""Random cancellations of our client's calls leave no task, no permit and no lost message.

The long form cancels 1,000 calls: `pytest -m long tests/interop/test_client_cancellations.py`.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import pytest

from magnetar.client import Batching, Client, Consumer, Producer, SubscriptionType
from magnetar.client.errors import ClientError

from .support import Names, ServerAddress

QUEUE: Final = 20
PENDING: Final = 10
"""Messages of the producer without a receipt: sends wait for room, and are cancelled there."""
DELAY_S_MAX: Final = 0.01
TIMEOUT_S: Final = 60.0


class Cancelled:
    """One producer and one consumer whose calls are cancelled at random moments."""

    def __init__(self, client: Client, topic: str, rng: random.Random) -> None:
        self._client, self._topic, self._rng = client, topic, rng
        self.calls: Counter[str] = Counter()
        self.sent = 0
        self.stored: set[bytes] = set()
        """Messages whose send has returned."""
        self.got: set[bytes] = set()
        self.producer: Producer[bytes]
        self.consumer: Consumer[bytes]

    async def open(self) -> None:
        """Attaches both."""
        self.producer = await self._client.producer(
            self._topic, max_pending_messages=PENDING, batching=Batching(messages_max=PENDING // 2)
        )
        self.consumer = await self._client.consumer(
            self._topic,
            "sub",
            type=SubscriptionType.SHARED,
            receiver_queue_size=QUEUE,
            ack_receipt=True,
        )

    async def run(self, count: int) -> None:
        """Cancels `count` calls."""
        while self.calls.total() < count:
            name, call = self._rng.choice(self._choices())
            task = asyncio.ensure_future(call())
            await asyncio.sleep(self._rng.uniform(0, DELAY_S_MAX))
            if not task.cancel():
                continue  # it was faster
            with suppress(asyncio.CancelledError, ClientError, TimeoutError):
                await task
            self.calls[name] += 1

    def _choices(self) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
        return [
            ("send", self._send),
            ("send many", self._send_many),
            ("receive", self._receive),
            ("receive many", self.consumer.receive_many),
            ("producer", self._other_producer),
            ("consumer", self._other_consumer),
            ("reader", self._reader),
            ("last ids", self.consumer.last_message_ids),
            ("flush", self.producer.flush),
            ("redeliver", self.consumer.redeliver_unacknowledged),
        ]

    async def _send(self) -> None:
        self.sent += 1
        body = b"%d" % self.sent
        await self.producer.send(body)
        self.stored.add(body)

    async def _send_many(self) -> None:
        await asyncio.gather(*(self._send() for _ in range(3 * PENDING)))

    async def _receive(self) -> None:
        message = await self.consumer.receive()
        self.got.add(message.data)
        await self.consumer.ack(message)

    async def _other_producer(self) -> None:
        async with self._client.producer(f"{self._topic}-other") as producer:
            await producer.send(b"x")

    async def _other_consumer(self) -> None:
        async with self._client.consumer(f"{self._topic}-other", "sub") as consumer:
            await consumer.receive()

    async def _reader(self) -> None:
        async with self._client.reader(self._topic) as reader:
            await reader.read()


@pytest.mark.parametrize(
    "count", [150, pytest.param(1_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
async def test_cancelled_calls_leave_nothing(
    server: ServerAddress, names: Names, count: int
) -> None:
    seed = int(os.environ.get("CANCELLATIONS_SEED") or random.randrange(1 << 31))
    print(f"CANCELLATIONS_SEED={seed}")
    before = asyncio.all_tasks()
    async with Client(server.service_url) as client:
        work = Cancelled(client, names.topic("cancelled"), random.Random(seed))
        await work.open()
        await work.run(count)
        await work.consumer.redeliver_unacknowledged()
        # More than the queue and the producer hold: a lost permit would stop these.
        last = {b"last %d" % number for number in range(5 * QUEUE)}
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(work.producer.send(body) for body in last))
            while not last | work.stored <= work.got:
                await work._receive()
        assert work.producer.stats.pending_messages == 0
        assert client._ready().memory.taken == 0
        print(dict(work.calls))
    async with asyncio.timeout(TIMEOUT_S):
        while left := asyncio.all_tasks() - before:
            await asyncio.wait(left)
