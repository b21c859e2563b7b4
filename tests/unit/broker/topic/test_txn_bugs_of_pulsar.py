"""Known bugs of Pulsar's transactions in topics and subscriptions.

Each test has the number of its thread, apache/pulsar#N. Those of coordinators are in
`tests/unit/broker/transactions`, those of whole transactions in `tests/unit/broker`.
"""

import asyncio
from typing import Any

import pytest
from tests.unit.broker.topic.stage import request
from tests.unit.broker.topic.test_txn_acks import Acks, attached, batch
from tests.unit.broker.topic.test_txn_recovery import all_texts
from tests.unit.broker.topic.txn_stage import T1, T2, TxnStage, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.last_message import last_readable
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MagnetarError, NotAllowed, TransactionNotFound
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.transactions.model import Outcome, TxnId, TxnState

LONG_TIMEOUT = pytest.mark.timeout(1_800)
ABORTED = 3_000
CRASHES = 160
CRASHES_LONG = 10_000
MOMENTS = range(10, 18)
"""When the broker dies, in turns of its loop: the ack is stored and answered meanwhile."""
RECOVERED_WITHIN_S = 30.0
RETRIES_MAX = 10
"""Reads of a record within 1,000 turns, if the pauses double from half a second on."""


async def aborted(t: TxnStage, topic: PersistentTopic, txn: TxnId, *texts: str) -> None:
    t.records.open(txn, topic)
    await t.sent(topic, txn, *texts)
    t.records.set(txn, TxnState.ABORTED)
    await topic.transactions.end_transaction(txn, Outcome.ABORT)


async def test_19449_an_ack_stored_before_a_crash_is_no_conflict_with_its_own_repetition() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        at = await batch(t.s, topic, 4)
        first_two = (*at, 0b1100, 4)
        for _ in range(10):
            # The answer is lost: the client repeats the ack after each crash.
            assert await acks.ack(T1, first_two) is None
            topic = await t.reopened(topic, crash=True)
            acks = await attached(t, topic, SubType.Shared)
        assert await acks.ack(T1, (*at, 0b0011, 4)) is None
        await acks.end(T1, Outcome.COMMIT)
        assert acks.subscription.backlog == 0


@pytest.mark.parametrize(
    "crashes", [CRASHES, pytest.param(CRASHES_LONG, marks=[pytest.mark.long, LONG_TIMEOUT])]
)
@pytest.mark.parametrize("cumulative", [False, True])
async def test_19449_a_broker_killed_between_an_ack_and_its_answer_leaves_no_conflict(
    cumulative: bool, crashes: int
) -> None:
    """apache/pulsar#19449: TransactionConflict for ever after a restart."""
    sub_type = SubType.Exclusive if cumulative else SubType.Shared
    between = 0
    half = (0b1100, 4)
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, sub_type)
        at = await batch(t.s, topic, 4)
        for crash in range(crashes):
            txn, moment = TxnId(0, 1 + crash // len(MOMENTS)), MOMENTS[crash % len(MOMENTS)]
            t.records.open(txn, topic)
            answers: list[MagnetarError | None] = []
            acks.subscription.ack_in_transaction(
                acks.consumer, txn, [(*at, *half)], cumulative, answers.append
            )
            await turns(moment)
            assert not any(answers), answers
            answered = bool(answers)
            topic = await t.reopened(topic, crash=True)
            acks = await attached(t, topic, sub_type)
            stored = acks.subscription.cursor.pending is not None
            assert stored or not answered, "an answered ack is lost"
            between += stored and not answered
            if moment == MOMENTS[-1]:
                assert await acks.ack(txn, (*at, *half), cumulative=cumulative) is None
                t.records.set(txn, TxnState.ABORTED)
                await acks.end(txn, Outcome.ABORT)
        assert between > crashes // 10, "few kills were between the two"
        t.records.open(T2, topic)
        whole = (*at, 0b0000, 4)
        assert await acks.ack(T2, whole, cumulative=cumulative) is None
        await acks.end(T2, Outcome.COMMIT)
        assert acks.subscription.backlog == 0


@pytest.mark.parametrize("sub_type", [SubType.Shared, SubType.Key_Shared])
async def test_19814_aborted_messages_are_not_delivered_by_a_replay(sub_type: SubType) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        subscription, consumer, sink = await t.s.attach(topic, request(sub_type=sub_type))
        await t.sent(topic, None, "1")
        await aborted(t, topic, T1, "aborted", "aborted")
        await t.sent(topic, None, "2")
        for _ in range(3):
            await turns(50)
            assert sorted(sink.take()) == ["1", "2"]
            subscription.redeliver(consumer)


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("sub_type", [SubType.Shared, SubType.Key_Shared])
async def test_25107_an_abort_redelivers_each_message_once(
    sub_type: SubType, returned: bool
) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, sub_type)
        t.records.open(T1, topic)
        positions = await t.s.publish(topic, *"abcdef")
        await turns(50)
        acks.sink.take()
        assert await acks.ack(T1, *positions) is None
        if returned:
            # The consumer also asks for what its transaction has acked.
            acks.subscription.redeliver(acks.consumer)
            await turns(50)
            assert acks.sink.take() == []
        await asyncio.gather(*(acks.end(T1, Outcome.ABORT) for _ in range(3)))
        assert sorted(acks.sink.take()) == list("abcdef")


async def test_14889_recovery_without_open_transactions_freezes_no_plain_messages() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        t.records.open(T1, topic)
        await t.sent(topic, T1, "a")
        t.records.set(T1, TxnState.COMMITTED)
        await topic.transactions.end_transaction(T1, Outcome.COMMIT)
        await t.sent(topic, None, *"bc")
        t.records.go.clear()
        topic = await t.reopened(topic, crash=True)
        _, _, sink = await t.s.attach(topic, request("live"))
        await t.sent(topic, None, *"de")  # plain traffic gets receipts during the recovery
        assert topic.managed_ledger.horizon is not None
        t.records.go.set()
        await turns(200)
        assert "".join(sink.texts) == "abcde", "nothing else was needed to go on"
        assert topic.managed_ledger.horizon is None
        await t.sent(topic, None, "f")
        assert "".join(await all_texts(t, topic)) == "abcdef"


async def test_22943_an_open_transaction_makes_no_consumer_read_in_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        for sub_type in SubType:
            await t.s.attach(topic, request(f"s{sub_type}", sub_type=sub_type))
        t.records.open(T1, topic)
        await t.sent(topic, T1, "a")
        await t.sent(topic, None, "b")
        await turns(100)
        reads = 0
        real = ManagedLedger.read

        async def counted(ledger: ManagedLedger, *given: object, **named: object) -> object:
            nonlocal reads
            reads += 1
            return await real(ledger, *given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(ManagedLedger, "read", counted)
        loop: Any = asyncio.get_running_loop()
        busy = 0
        for _ in range(1_000):
            await turns(1)
            busy += bool(loop._ready)
        assert (reads, busy) == (0, 0), "the broker does something without an event"


async def test_11877_the_last_message_id_is_that_of_a_readable_message() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        (readable,) = await t.s.publish(topic, "a")
        await aborted(t, topic, T1, "aborted", "aborted")
        assert last_readable(topic.managed_ledger) == readable
        t.records.open(T2, topic)
        await t.sent(topic, T2, "open")
        await t.sent(topic, None, "behind")
        assert last_readable(topic.managed_ledger) == readable
        topic = await t.reopened(topic, crash=True)
        await turns(200)
        assert last_readable(topic.managed_ledger) == readable


async def test_26368_recovery_of_pending_acks_ends_whatever_the_records_say() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, SubType.Shared)
        positions = await t.s.publish(topic, *"ab")
        for txn, at in zip((T1, T2), positions, strict=True):
            t.records.open(txn, topic)
            assert await acks.ack(txn, at) is None
        t.records.set(T1, TxnState.COMMITTED)
        del t.records.by_id[T2]  # deleted after its outcome was durable everywhere: aborted here
        topic = await t.reopened(topic, crash=True)
        acks = await attached(t, topic, SubType.Shared)
        for _ in range(100):
            await turns(50)
            if acks.subscription.cursor.pending is None:
                break
        assert acks.subscription.cursor.pending is None
        assert acks.subscription.backlog == 1


async def test_26374_a_failing_recovery_of_acks_pauses_and_goes_on_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """apache/pulsar#26374: it was repeated without a pause, and blocked other subscriptions."""
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, SubType.Shared)
        positions = await t.s.publish(topic, *"ab")
        t.records.open(T1, topic)
        assert await acks.ack(T1, positions[0]) is None
        t.records.failing = True
        topic = await t.reopened(topic, crash=True)
        t.records.asked.clear()
        acks = await attached(t, topic, SubType.Shared)
        other = Acks(await t.s.attach(topic, request("other")))
        await turns(1_000)
        assert 1 <= len(t.records.asked) <= RETRIES_MAX
        assert sorted(other.sink.texts) == list("ab"), "another subscription waits"
        reasons = [record for record in caplog.records if "will retry" in record.message]
        assert reasons
        assert acks.subscription.transactions.stats().open_count == 1
        t.records.set(T1, TxnState.COMMITTED)
        t.records.failing = False
        async with asyncio.timeout(RECOVERED_WITHIN_S):
            while acks.subscription.cursor.pending is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert acks.subscription.backlog == 1


async def test_16248_subscribers_attach_while_the_records_cannot_be_read() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, SubType.Shared)
        positions = await t.s.publish(topic, *"ab")
        t.records.open(T1, topic)
        assert await acks.ack(T1, positions[0]) is None
        t.records.failing = True
        topic = await t.reopened(topic, crash=True)
        acks = await attached(t, topic, SubType.Shared)
        await turns(50)
        assert acks.sink.texts == ["b"]
        t.records.failing = False
        await acks.end(T1, Outcome.ABORT)
        assert sorted(acks.sink.texts) == ["a", "b"]


async def test_16042_the_number_of_aborted_transactions_has_no_limit() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        producer, sink = await t.s.producer(topic)
        for number in range(ABORTED):
            txn = TxnId(5, number)
            t.records.open(txn, topic)
            await t.send(topic, producer, txn, "aborted")
            await t.send(topic, producer, None, f"{number % 10}")
        while len(sink.told) < 2 * ABORTED:
            await turns(1)
        for number in range(ABORTED):
            await topic.transactions.end_transaction(TxnId(5, number), Outcome.ABORT)
        t.records.by_id.clear()
        topic = await t.reopened(topic, crash=True)
        assert topic.subscriptions["keeps"].backlog == ABORTED


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_a_late_message_or_ack_changes_nothing_after_the_end(outcome: Outcome) -> None:
    """Kafka's KIP-890: a late request opened the next transaction, or the ended one again."""
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, SubType.Shared)
        (at,) = await t.s.publish(topic, "a")
        t.records.open(T1, topic)
        await t.sent(topic, T1, "b")
        commits = outcome is Outcome.COMMIT
        t.records.set(T1, TxnState.COMMITTED if commits else TxnState.ABORTED)
        await topic.transactions.end_transaction(T1, outcome)
        await acks.end(T1, outcome)
        producer, sink = await t.s.producer(topic)
        await t.send(topic, producer, T1, "late")
        await turns(100)
        ((_, error),) = sink.errors
        assert isinstance(error, NotAllowed)
        assert isinstance(await acks.ack(T1, at), TransactionNotFound)
        assert topic.managed_ledger.horizon is None
        assert acks.subscription.cursor.pending is None
