"""Receipts of acks: when acks that a caller waits for are sent, and what a receipt covers."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import looptime
import pytest

from magnetar.client.consumer.acks import Acks
from magnetar.client.consumer.consumer import Consumer
from magnetar.client.consumer.entry import ReceivedEntry
from magnetar.client.consumer.partition import PartitionConsumer
from magnetar.client.consumer.subscription import Shared
from magnetar.client.context import Context
from magnetar.client.errors import (
    AckFailed,
    AlreadyClosed,
    ClientError,
    Disconnected,
    OperationTimeout,
)
from magnetar.client.message import Message
from magnetar.client.message_id import MessageId
from magnetar.client.options import ConsumerOptions

GROUP_S = 3_600.0
TIMEOUT_S = 30.0


class Broker:
    """A connection on which a test answers ACKs, and the acks of a consumer of it."""

    def __init__(self, group_size: int = 1_000, *, index_ack: bool = False) -> None:
        self.commands: list[Any] = []
        self.answers: list[asyncio.Future[None]] = []
        options = ConsumerOptions(
            ack_receipt=True,
            ack_group_s=GROUP_S,
            ack_group_size=group_size,
            batch_index_ack=index_ack,
        )
        timeouts = SimpleNamespace(operation_timeout_s=TIMEOUT_S)
        context = SimpleNamespace(loop=asyncio.get_running_loop(), options=timeouts)
        stats = SimpleNamespace(acks_sent=0, ack_commands_sent=0)
        source: Any = SimpleNamespace(connection=self, consumer_id=1, topic="t")
        shared = SimpleNamespace(options=options, stats=stats)
        self.acks = Acks(cast("Context", context), cast("Shared", shared), source)

    def start_request(self, _kind: int, command: Any, _topic: str) -> "asyncio.Future[None]":
        self.commands.append([place.entryId for place in command.message_id])
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def ack(self, *entries: int) -> "asyncio.Task[None]":
        """Acknowledges entries together, and waits for the receipt."""
        for entry in entries:
            self.acks.ack_id(MessageId(1, entry))
        return asyncio.create_task(self.acks.receipt())


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def virtually(scenario: Any) -> None:
    """Runs the scenario on a loop that jumps to the next timer: an hour passes at once."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        began = runner.get_loop().time()
        runner.run(scenario())
        assert runner.get_loop().time() - began < GROUP_S


def test_an_ack_that_a_caller_waits_for_is_sent_in_the_same_turn() -> None:
    async def scenario() -> None:
        broker = Broker()
        together = [broker.ack(1), broker.ack(2)]
        await _turns()
        assert broker.commands == [[1, 2]]
        broker.answers[0].set_result(None)
        await asyncio.gather(*together)

    virtually(scenario)


def test_acks_share_a_command_while_the_broker_has_not_answered() -> None:
    async def scenario() -> None:
        broker = Broker()
        first = broker.ack(1)
        await _turns()
        later = [broker.ack(2), broker.ack(3)]
        await _turns()
        assert broker.commands == [[1]]
        broker.answers[0].set_result(None)
        await _turns()
        assert broker.commands == [[1], [2, 3]]
        assert first.done()
        assert not later[0].done()
        broker.answers[1].set_result(None)
        await asyncio.gather(first, *later)

    virtually(scenario)


def test_a_receipt_covers_the_acks_that_a_full_group_has_sent() -> None:
    async def scenario() -> None:
        broker = Broker(group_size=2)
        acked = broker.ack(1, 2, 3)
        await _turns()
        assert broker.commands == [[1, 2]]
        broker.answers[0].set_exception(AckFailed("refused"))
        await _turns()
        assert broker.commands == [[1, 2], [3]]
        assert not acked.done()
        broker.answers[1].set_result(None)
        with pytest.raises(AckFailed, match="refused"):
            await acked

    virtually(scenario)


def test_a_receipt_waits_for_the_last_of_several_commands() -> None:
    async def scenario() -> None:
        broker = Broker(group_size=1)
        acked = broker.ack(*range(8))
        await _turns()
        assert len(broker.answers) == 8
        for answer in broker.answers[:-1]:
            answer.set_result(None)
        await _turns()
        assert not acked.done()
        broker.answers[-1].set_result(None)
        await acked

    virtually(scenario)


def test_a_cancelled_caller_leaves_the_acks_of_others() -> None:
    async def scenario() -> None:
        broker = Broker()
        cancelled, other = broker.ack(1), broker.ack(2)
        await _turns()
        cancelled.cancel()
        await _turns()
        broker.answers[0].set_result(None)
        await other
        assert cancelled.cancelled()
        await broker.acks.receipt()  # nothing is left to wait for

    virtually(scenario)


def test_a_refused_command_leaves_the_others_of_its_flush_unconfirmed() -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.acks.ack_cumulative(MessageId(1, 1))
        acked = broker.ack(5)
        await _turns()
        assert broker.commands == [[1], [5]]
        broker.answers[0].set_exception(AckFailed("refused"))
        await _turns()
        again = asyncio.create_task(broker.acks.receipt())
        await _turns()
        assert not again.done()
        broker.answers[1].set_exception(AckFailed("refused too"))
        for receipt in (acked, again):
            with pytest.raises(AckFailed):
                await receipt

    virtually(scenario)


def test_an_ack_that_is_not_answered_fails_and_holds_up_no_other() -> None:
    async def scenario() -> None:
        broker = Broker()
        unanswered = broker.ack(1)
        with pytest.raises(OperationTimeout):
            await unanswered
        later = broker.ack(2)
        await _turns()
        broker.answers[1].set_result(None)
        await later

    virtually(scenario)


def test_acks_under_way_fail_when_the_broker_closes_the_consumer() -> None:
    async def scenario() -> None:
        broker = Broker()
        unanswered = broker.ack(1)
        await _turns()
        source: Any = SimpleNamespace(
            acks=broker.acks, _attached_event=asyncio.Event(), refusal=None, _was_attached=False
        )
        PartitionConsumer._lost(source, "")
        with pytest.raises(Disconnected):
            await unanswered
        later = broker.ack(2)
        await _turns()
        broker.answers[1].set_result(None)
        await later

    virtually(scenario)


@pytest.mark.parametrize("by_id", [False, True])
def test_a_refused_ack_of_a_batch_can_be_repeated(by_id: bool) -> None:
    async def scenario() -> None:
        broker = Broker()
        entry: Any = SimpleNamespace(
            ledger_id=1, entry_id=7, batch_size=2, unacked=0b11, chunk_ids=(), seeks=0
        )

        def ack(batch_index: int) -> "asyncio.Task[None]":
            if by_id:
                broker.acks.ack_id(MessageId(1, 7, -1, batch_index, batch_size=2))
            else:
                broker.acks.ack(cast("ReceivedEntry", entry), batch_index)
            return asyncio.create_task(broker.acks.receipt())

        await ack(0)
        refused = ack(1)
        await _turns()
        broker.answers[0].set_exception(AckFailed("refused"))
        with pytest.raises(AckFailed):
            await refused
        again = ack(1)
        await _turns()
        assert broker.commands == [[7], [7]]
        broker.answers[1].set_result(None)
        await again

    virtually(scenario)


def test_acks_after_a_cumulative_one_in_the_same_batch_are_sent() -> None:
    async def scenario() -> None:
        broker = Broker(index_ack=True)
        entry: Any = SimpleNamespace(
            ledger_id=1, entry_id=7, batch_size=3, unacked=0b111, chunk_ids=(), seeks=0
        )
        ids = [MessageId(1, 7, -1, index, batch_size=3, entry=entry) for index in range(3)]
        broker.acks.ack_cumulative(ids[0])
        broker.acks.ack_id(ids[1])
        broker.acks.ack_id(ids[2])
        acked = asyncio.create_task(broker.acks.receipt())
        await _turns()
        assert broker.commands == [[7], [7]]
        for answer in broker.answers:
            answer.set_result(None)
        await acked

    virtually(scenario)


def test_a_receipt_of_acks_that_were_dropped_is_an_error() -> None:
    async def scenario() -> None:
        broker = Broker()
        acked = broker.ack(1)  # it runs in the next turn
        broker.acks.end(AlreadyClosed("The consumer is closed"))
        with pytest.raises(AlreadyClosed):
            await acked

    virtually(scenario)


def test_an_ack_after_the_end_of_the_consumer_is_refused() -> None:
    async def scenario() -> None:
        closed = AlreadyClosed("The consumer is closed")
        shared = object()
        consumer: Any = SimpleNamespace(refusal=closed, options=ConsumerOptions(), _shared=shared)
        acks: list[object] = []
        entry: Any = SimpleNamespace(
            source=SimpleNamespace(refusal=closed, shared=shared),
            acks=SimpleNamespace(ack=lambda *ack: acks.append(ack)),
            batch_size=0,
        )
        with pytest.raises(AlreadyClosed):
            Consumer._ack(consumer, Message(b"", entry))
        assert not acks

    virtually(scenario)


def test_interceptors_hear_of_a_cancelled_ack() -> None:
    async def scenario() -> None:
        heard: list[object] = []
        interceptor = SimpleNamespace(on_ack=lambda *ack: heard.append(ack[2]))
        consumer: Any = SimpleNamespace(
            options=SimpleNamespace(ack_receipt=True, interceptors=[interceptor]),
            _in_time=lambda answer, _source: answer,
        )
        acks: Any = SimpleNamespace(receipt=lambda: asyncio.Event().wait())
        source: Any = SimpleNamespace(topic="t")
        confirming = asyncio.create_task(
            Consumer._confirm(consumer, source, acks, [MessageId(1, 1)])
        )
        await _turns()
        confirming.cancel()
        await _turns()
        assert confirming.cancelled()
        assert [type(error) for error in heard] == [ClientError]

    virtually(scenario)


def test_callers_that_gave_up_during_an_outage_leave_nothing() -> None:
    """A program that retries its ack with a timeout would otherwise fill the memory."""

    async def scenario() -> None:
        broker = Broker()
        broker.acks._source.connection = None
        for _ in range(100):
            giving_up = broker.ack(1)
            await _turns()
            giving_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await giving_up
        assert len(broker.acks.group.waiters) == 0

    virtually(scenario)
