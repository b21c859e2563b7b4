"""Receipts of acks: when acks that a caller waits for are sent, and what a receipt covers."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import looptime
import pytest

from magnetar.client.consumer.acks import Acks
from magnetar.client.consumer.subscription import Shared
from magnetar.client.context import Context
from magnetar.client.errors import AckFailed
from magnetar.client.message_id import MessageId
from magnetar.client.options import ConsumerOptions

GROUP_S = 3_600.0


class Broker:
    """A connection on which a test answers ACKs, and the acks of a consumer of it."""

    def __init__(self, group_size: int = 1_000) -> None:
        self.commands: list[Any] = []
        self.answers: list[asyncio.Future[None]] = []
        options = ConsumerOptions(ack_receipt=True, ack_group_s=GROUP_S, ack_group_size=group_size)
        context = SimpleNamespace(loop=asyncio.get_running_loop(), options=None)
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
