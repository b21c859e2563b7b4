"""What once lost, doubled or held back messages of transactions: each mistake by its own test."""

import asyncio
from typing import Any

import pytest
from tests.unit.broker.topic.stage import NAMESPACE, request, run_of
from tests.unit.broker.topic.test_txn_acks import Acks, attached
from tests.unit.broker.topic.txn_stage import T1, T2, TxnStage, told, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.broker.catalog.deletion_mark import DELETED
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.transactions import expiry
from magnetar.broker.transactions.local import LocalParticipants
from magnetar.core.errors import (
    MagnetarError,
    NotAllowed,
    PersistenceError,
    ServiceNotReady,
    SubscriptionNotFound,
    TransactionConflict,
)
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.errors import CursorCorrupt, ManagedLedgerFenced
from magnetar.metadata.records import decode_document, encode
from magnetar.policies.caps import MAX_SUBSCRIPTIONS
from magnetar.transactions.model import Outcome, TxnState

TYPES = pytest.mark.parametrize("sub_type", list(SubType))


async def batches(t: TxnStage, topic: PersistentTopic, *texts: str) -> list[tuple[int, int]]:
    """Entries of five messages each."""
    producer, sink = await t.s.producer(topic)
    topic.publish(producer, run_of(producer, *texts, batch=5))
    await told(sink, 1)
    ((_, ledger_id, first),) = sink.receipts
    return [(ledger_id, first + each) for each in range(len(texts))]


@TYPES
async def test_an_abort_returns_an_entry_that_was_read_and_given_back(sub_type: SubType) -> None:
    """A dispatcher reads more than the permits allow, and returns the rest to its reader."""
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, sub_type)
        t.records.open(T1, topic)
        at = await batches(t, topic, *"abcdef")
        await turns(50)
        assert await c.ack(T1, at[3]) is None
        c.subscription.remove_consumer(c.consumer)
        again = Acks(await t.s.attach(topic, request(sub_type=sub_type), permits=10))
        await turns(50)
        got = again.sink.take()
        assert len(got) < 5, got
        await again.end(T1, Outcome.ABORT)
        again.subscription.flow(again.consumer, 100)
        await turns(50)
        got += again.sink.take()
        assert sorted(got) == [*"abcdef"]


async def test_key_shared_redelivers_once_what_was_returned_before_its_transaction_ended() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        sub = request(sub_type=SubType.Key_Shared)
        c = Acks(await t.s.attach(topic, sub, permits=2))
        t.records.open(T1, topic)
        a, b = await t.s.publish(topic, "a", "b")
        await turns(50)
        assert sorted(c.sink.take()) == ["a", "b"]
        c.subscription.redeliver(c.consumer, [a, b])
        assert await c.ack(T1, b) is None
        await c.end(T1, Outcome.ABORT)
        c.subscription.flow(c.consumer, 10)
        await turns(100)
        assert sorted(c.sink.take()) == ["a", "b"]
        assert c.consumer.unacked == 2


async def test_a_cursor_before_what_is_kept_keeps_its_place_beside_aborted_entries() -> None:
    """A `read_compacted` consumer reads trimmed messages from an artifact."""
    async with txn_stage() as t:
        topic = await t.topic()
        ledger = topic.managed_ledger
        await t.sent(topic, None, "trimmed")
        await ledger.truncate()
        t.records.open(T1, topic)
        await t.sent(topic, None, "kept")
        await t.sent(topic, T1, "aborted")
        await topic.transactions.end_transaction(T1, Outcome.ABORT)
        before = Position(0, 0)
        cursor = await ledger.open_cursor("compacted", initial=before, before_kept=True)
        assert cursor.mark_delete < before
        assert cursor.backlog == 1
        await cursor.reset(before, before_kept=True)
        assert cursor.mark_delete < before
        assert cursor.backlog == 1
        cursor.ack_cumulative(ledger.last_confirmed)
        assert cursor.mark_delete == ledger.last_confirmed


async def test_aborted_entries_take_no_cursor_past_those_of_an_artifact() -> None:
    """The first kept entry is aborted: what was trimmed before it is in an artifact only."""
    async with txn_stage() as t:
        topic = await t.topic()
        ledger = topic.managed_ledger
        await t.sent(topic, None, "compacted")
        await t.sent(topic, None, "compacted, too")
        await ledger.truncate()
        t.records.open(T1, topic)
        await t.sent(topic, T1, "aborted")
        await t.sent(topic, None, "kept")
        reading = ledger.new_non_durable_cursor("reading", EARLIEST, before_kept=True)
        await topic.transactions.end_transaction(T1, Outcome.ABORT)
        durable = await ledger.open_cursor("durable", initial=EARLIEST, before_kept=True)
        late = ledger.new_non_durable_cursor("late", EARLIEST, before_kept=True)
        for cursor in (reading, durable, late):
            assert cursor.mark_delete < Position(1, 0)
            assert cursor.backlog == 1
        await durable.reset(EARLIEST, before_kept=True)
        await t.s.service.topics.unload(topic.name)
        ledger = (await t.topic()).managed_ledger
        durable = ledger.cursors["durable"]
        assert durable.mark_delete < Position(1, 0)
        durable.ack_cumulative(Position(1, 0))
        assert durable.mark_delete == Position(1, 0)
        durable.ack(*ledger.last_confirmed)  # as if the other one was compacted out
        assert durable.mark_delete == ledger.last_confirmed
        assert durable.backlog == 0


async def test_a_subscription_that_cannot_be_read_has_not_ended_a_transaction() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        (a,) = await t.s.publish(topic, "a")
        assert await c.ack(T1, a) is None
        await t.s.service.topics.unload(topic.name)
        log = c.subscription.cursor.log
        assert log is not None
        await t.s.bookie.delete_ledger(log.ledger_id)
        local = LocalParticipants(t.s.service.topics)
        with pytest.raises(MagnetarError):
            await local.end_on_subscription(topic.full_name, "s", T1, Outcome.COMMIT)


async def test_the_end_of_a_transaction_reads_a_subscription_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bookies were down when the topic was opened, and no consumer attaches."""
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        (a,) = await t.s.publish(topic, "a")
        assert await c.ack(T1, a) is None
        await t.s.service.topics.unload(topic.name)

        async def fails(log: CursorLog) -> None:
            raise CursorCorrupt(log.key)

        with monkeypatch.context() as down:
            down.setattr(CursorLog, "load", fails)
            topic = await t.topic()
            assert set(topic.broken_subscriptions) == {"s"}
        local = LocalParticipants(t.s.service.topics)
        await local.end_on_subscription(topic.full_name, "s", T1, Outcome.COMMIT)
        assert topic.broken_subscriptions == {}
        assert topic.subscriptions["s"].backlog == 0
        with pytest.raises(SubscriptionNotFound):
            await topic.restore_subscription("absent")
        assert set(topic.subscriptions) == {"s"}


async def test_no_reader_gets_the_name_of_a_subscription_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the end of the transaction would be confirmed by the reader, and the acks be lost."""
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        (a,) = await t.s.publish(topic, "a")
        assert await c.ack(T1, a) is None
        await t.s.service.topics.unload(topic.name)

        async def fails(log: CursorLog) -> None:
            raise CursorCorrupt(log.key)

        local = LocalParticipants(t.s.service.topics)
        with monkeypatch.context() as down:
            down.setattr(CursorLog, "load", fails)
            topic = await t.topic()
            for rollback_s in (0, 60):
                reader = request(
                    "s", sub_type=SubType.Exclusive, durable=False, rollback_s=rollback_s
                )
                with pytest.raises(NotAllowed, match="Durable subscription with name s already"):
                    await t.s.attach(topic, reader)
            with pytest.raises(ServiceNotReady):
                await local.end_on_subscription(topic.full_name, "s", T1, Outcome.COMMIT)
        await local.end_on_subscription(topic.full_name, "s", T1, Outcome.COMMIT)
        assert topic.subscriptions["s"].durable
        assert topic.subscriptions["s"].backlog == 0


async def test_a_consumer_gets_its_unreadable_subscription_where_none_is_created_by_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It exists, so it is neither missing nor new."""
    async with txn_stage() as t:
        topic = await t.topic()
        await t.s.set(MAX_SUBSCRIPTIONS, 1, topic)
        asked = request("s", sub_type=SubType.Shared, auto_create=False)
        await topic.create_subscription("s", EARLIEST, {})
        await t.s.publish(topic, "a")
        await t.s.service.topics.unload(topic.name)

        async def fails(log: CursorLog) -> None:
            raise CursorCorrupt(log.key)

        with monkeypatch.context() as down:
            down.setattr(CursorLog, "load", fails)
            topic = await t.topic()
            with pytest.raises(CursorCorrupt):
                await t.s.attach(topic, asked)
            with pytest.raises(NotAllowed, match="maximum number of subscriptions"):
                await t.s.attach(topic, request("another", sub_type=SubType.Shared))
        subscription, _, sink = await t.s.attach(topic, asked)
        assert subscription.durable
        assert sink.take() == ["a"]


@pytest.mark.parametrize("failure", [OSError("no route"), ValueError("odd")])
async def test_a_failure_of_any_kind_refuses_the_message_and_is_retried(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.open(T1, topic)
        record = t.records.record

        async def fails(_txn: Any) -> None:
            raise failure

        monkeypatch.setattr(t.records, "record", fails)
        producer, answers = await t.s.producer(topic)
        await t.send(topic, producer, T1, "1")
        await told(answers, 1)
        assert isinstance(answers.errors[0][1], ServiceNotReady)
        monkeypatch.setattr(t.records, "record", record)
        await t.sent(topic, T1, "2")


async def test_a_transaction_with_an_earlier_deadline_is_looked_up_first() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.open(T1, topic)
        await t.sent(topic, T1, "1")
        soon_ms = t.s.clock.now_ms() + 50
        t.records.open(T2, topic, deadline_ms=soon_ms)
        await t.sent(topic, T2, "2")
        looking_up: Any = topic.transactions._expiry
        due_s = looking_up._timer.when() - asyncio.get_running_loop().time()
        assert due_s < 10


async def test_the_end_in_a_topic_that_was_closed_during_recovery_is_refused_at_once() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        t.records.open(T1, topic)
        await t.sent(topic, T1, "a")
        t.records.go.clear()
        topic = await t.reopened(topic, crash=True)
        ending = asyncio.ensure_future(topic.transactions.end_transaction(T1, Outcome.ABORT))
        await turns(20)
        topic.abandon()
        await turns(20)
        assert ending.done()
        assert isinstance(ending.exception(), ServiceNotReady)
        t.records.go.set()


async def test_the_end_of_an_ended_transaction_is_durable_for_every_instance() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        (a,) = await t.s.publish(topic, "a")
        assert await c.ack(T1, a) is None
        cursor = c.subscription.cursor
        cursor.end_pending(T1, commit=True)
        successor = topic._subscription("s")
        await successor.end_transaction(T1, Outcome.COMMIT)
        t.records.by_id.clear()
        topic = await t.reopened(topic, crash=True)
        assert topic.subscriptions["s"].backlog == 0


async def test_a_former_owner_does_not_confirm_an_end_of_which_it_knows_nothing() -> None:
    """Its successor may have the entries or acks, and the record is deleted after the answer."""
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T2, topic)
        assert topic.transactions.admission(T2) is not None  # asks for the record
        await turns(50)
        assert topic.transactions.buffer.get(T2) is not None
        topic.managed_ledger.tenure.end(ManagedLedgerFenced("another owner"))
        for txn in (T1, T2):
            with pytest.raises(ManagedLedgerFenced):
                await topic.transactions.end_transaction(txn, Outcome.ABORT)
        with pytest.raises(ManagedLedgerFenced):
            await c.subscription.end_transaction(T1, Outcome.COMMIT)


async def test_an_abort_that_is_cancelled_while_the_store_writes_does_not_fence_the_topic() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.open(T1, topic)
        await t.sent(topic, T1, "a")
        open_txn = topic.transactions.buffer.get(T1)
        assert open_txn is not None
        held = t.s.store.hold(lambda op: op.key.endswith("!aborted"))
        first = asyncio.ensure_future(topic.managed_ledger.abort_entries(open_txn.entries))
        await held.reached.wait()
        first.cancel()
        await turns(5)
        held.go.set()
        await turns(20)
        await topic.transactions.end_transaction(T1, Outcome.ABORT)
        assert not topic.managed_ledger.fenced
        assert topic.managed_ledger.aborted is not None
        _, _, sink = await t.s.attach(topic, request("later"))
        assert sink.texts == []


async def test_transactions_that_were_turned_off_leave_a_topic_with_some_readable() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        t.records.open(T1, topic)
        await t.sent(topic, T1, "a")
        await topic.transactions.end_transaction(T1, Outcome.COMMIT)
        t.records.set(T1, TxnState.COMMITTED)
        t.off()
        topic = await t.reopened(topic, crash=True)
        _, _, sink = await t.s.attach(topic, request("later"))
        await turns(200)
        assert sink.texts == ["a"]
        producer, answers = await t.s.producer(topic)
        await t.send(topic, producer, T1, "1")
        await told(answers, 1)
        assert str(answers.errors[0][1]) == "Transactions are not enabled."


async def test_an_abort_waits_until_the_ledger_of_a_failed_append_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its next owner may otherwise find the entry after the transaction's record is deleted."""
    monkeypatch.setattr("magnetar.managed_ledger.appender.CREATE_TIMEOUT_S", 0.02)
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        t.records.open(T1, topic)
        t.records.open(T2, topic)
        await t.sent(topic, T1, "a")
        await t.sent(topic, T2, "b")
        await topic.transactions.end_transaction(T2, Outcome.ABORT)  # makes the aborted set
        ledger = topic.managed_ledger
        producer, answers = await t.s.producer(topic)
        t.s.store.away = True
        t.s.bookie.refuse = lambda ledger_id, _: ledger_id == ledger.last_confirmed.ledger_id
        await t.send(topic, producer, T1, "c")
        async with asyncio.timeout(20):
            while not answers.told:  # noqa: ASYNC110 - the roll of the ledger ends at its deadline
                await asyncio.sleep(0.005)
        assert answers.told == ["errors", "sent away"]
        with pytest.raises(PersistenceError):
            await topic.transactions.end_transaction(T1, Outcome.ABORT)
        assert ledger.horizon is not None
        t.s.store.away = False
        await topic.transactions.end_transaction(T1, Outcome.ABORT)
        assert ledger.horizon is None
        assert ledger.ledgers[0].closed_ms


@pytest.mark.parametrize("size", [5, 0])
async def test_an_ack_of_messages_that_were_committed_is_in_conflict(size: int) -> None:
    """Two consumers may have the same batch, since an abort redelivers all that is left of it.

    Go's client does not name the batch's size, and names all messages that it has acked so far.
    """
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        t.records.open(T2, topic)
        (at,) = await batches(t, topic, "a")
        await turns(50)
        assert await c.ack(T1, (*at, 0b11110, size)) is None
        await c.end(T1, Outcome.COMMIT)
        answer = await c.ack(T2, (*at, 0b11100, size))
        assert isinstance(answer, TransactionConflict) == bool(size)
        if size:
            answer = await c.ack(T2, (*at, 0, size))
            assert isinstance(answer, TransactionConflict)
        assert await c.ack(T2, (*at, 0b11101, size)) is None


async def test_an_end_that_only_a_former_owner_has_confirmed_is_found_long_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The former owner had nothing to write, so it did not notice that it was one."""
    monkeypatch.setattr(expiry, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(expiry, "EXPIRY_GRACE_S", 0.0)
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        (a,) = await t.s.publish(topic, "a")
        assert await c.ack(T1, a) is None
        await t.sent(topic, T1, "b")
        assert topic.managed_ledger.horizon is not None
        t.records.set(T1, TxnState.COMMITTED)
        t.s.clock.advance(1)
        async with asyncio.timeout(10):
            while topic.managed_ledger.horizon or c.subscription.cursor.pending:
                await turns(1)
        assert c.subscription.backlog == 1
        await turns(20)
        assert c.sink.take() == ["a", "b"]


async def test_open_transactions_are_looked_up_less_often_the_longer_their_topic_is_open() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        due_ms = topic.transactions._expiry.look_up_ms
        now_ms, deadline_ms = t.s.clock.now_ms, 1 << 50
        assert due_ms(deadline_ms) - now_ms() == 30_000
        t.s.clock.advance(3_600_000)
        assert due_ms(deadline_ms) - now_ms() == 3_600_000
        assert due_ms(now_ms() + 1) - now_ms() == 1


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_a_topic_that_a_failing_deletion_keeps_closed_has_not_ended_a_transaction(
    outcome: Outcome,
) -> None:
    """Its record would be deleted in time. An abort without a record is taken for a commit."""
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        (a,) = await t.s.publish(topic, "a")
        assert await c.ack(T1, a) is None
        await t.sent(topic, T1, "b")
        local = LocalParticipants(t.s.service.topics)
        await t.s.service.topics.unload(topic.name)
        key = namespace_key(NAMESPACE)
        kept = await t.s.store.get(key)
        assert kept is not None
        marked = encode({**decode_document(key, kept.value), DELETED: True})
        await t.s.store.put(key, marked, expected=kept.revision)
        await turns(50)
        with pytest.raises(ServiceNotReady):
            await local.end_on_topic(topic.full_name, T1, outcome)
        with pytest.raises(ServiceNotReady):
            await local.end_on_subscription(topic.full_name, "s", T1, outcome)
        await t.s.factory.delete(ledger_name(topic.name))
        await local.end_on_topic(topic.full_name, T1, outcome)
        await local.end_on_subscription(topic.full_name, "s", T1, outcome)


async def test_a_cursor_without_its_subscription_yet_has_not_ended_a_transaction() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.managed_ledger.open_cursor("s")
        local = LocalParticipants(t.s.service.topics)
        with pytest.raises(ServiceNotReady):
            await local.end_on_subscription(topic.full_name, "s", T1, Outcome.COMMIT)
        await topic.create_subscription("s", EARLIEST, {})
        await local.end_on_subscription(topic.full_name, "s", T1, Outcome.COMMIT)
