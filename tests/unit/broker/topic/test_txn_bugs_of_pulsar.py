"""Known bugs of Pulsar's transactions in topics and subscriptions, each by its number."""

import asyncio

import pytest
from tests.unit.broker.topic.stage import request
from tests.unit.broker.topic.test_txn_acks import attached, batch
from tests.unit.broker.topic.test_txn_recovery import all_texts
from tests.unit.broker.topic.txn_stage import T1, T2, TxnStage, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.last_message import last_readable
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import NotAllowed, TransactionNotFound
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.transactions.model import Outcome, TxnId, TxnState

ABORTED = 3_000


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


async def test_25107_an_abort_redelivers_each_message_once() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        positions = await t.s.publish(topic, *"abcdef")
        await turns(50)
        acks.sink.take()
        assert await acks.ack(T1, *positions) is None
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
        topic = await t.reopened(topic, crash=True)
        await t.sent(topic, None, "d")
        assert "".join(await all_texts(t, topic)) == "abcd"
        assert topic.managed_ledger.horizon is None


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
        await turns(1_000)
        assert reads == 0


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
