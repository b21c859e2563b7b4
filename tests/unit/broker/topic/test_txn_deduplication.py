"""Deduplication of messages in transactions: judged like others, and aborted ids stay used."""

import pytest
from tests.unit.broker.topic.dedup_stage import attach, entry, run_of_entries, stored
from tests.unit.broker.topic.txn_stage import T1, T2, TxnStage, told, txn_stage

from magnetar.broker.topic.deduplication.snapshots import CURSOR
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.producer import Producer
from magnetar.managed_ledger.record import ABORTED_CURSOR
from magnetar.transactions.model import Outcome, TxnId, TxnState
from magnetar.wire.entry import in_transaction, parse_metadata


def send(topic: PersistentTopic, producer: Producer, txn: TxnId | None, *ids: int) -> None:
    """Sends one message per id, as the session does."""
    for number in ids:
        data = entry(producer.name, number, text=f"{producer.name}:{number}")
        if txn is not None:
            data = in_transaction(data, parse_metadata(data), *txn)
        run = run_of_entries(producer, [data])
        run.txn = txn
        gate = topic.gate if txn is None else topic.gate_of(run)
        if gate is None:
            topic.publish(producer, run)
        else:
            gate.publish(producer, run)


async def end(s: TxnStage, topic: PersistentTopic, txn: TxnId, outcome: Outcome) -> None:
    commits = outcome is Outcome.COMMIT
    s.records.set(txn, TxnState.COMMITTED if commits else TxnState.ABORTED)
    await topic.transactions.end_transaction(txn, outcome)


async def test_a_message_sent_twice_in_a_transaction_is_stored_once() -> None:
    async with txn_stage(deduplication=True) as s:
        topic = await s.topic()
        s.records.open(T1, topic)
        producer, sink = await attach(topic, "p")
        send(topic, producer, T1, 0, 1, 0, 1, 2)
        await told(sink, 5)
        await end(s, topic, T1, Outcome.COMMIT)
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 2]
        assert topic.deduplication is not None
        assert topic.deduplication.last_sequence_id("p") == 2


@pytest.mark.parametrize("crash", [False, True])
async def test_ids_of_aborted_messages_stay_used(crash: bool) -> None:
    async with txn_stage(deduplication=True) as s:
        topic = await s.topic()
        s.records.open(T1, topic)
        producer, sink = await attach(topic, "p")
        send(topic, producer, T1, 0, 1, 2)
        await told(sink, 3)
        await end(s, topic, T1, Outcome.ABORT)
        topic = await s.reopened(topic, crash=crash)
        assert topic.deduplication is not None
        assert topic.deduplication.last_sequence_id("p") == 2
        producer, sink = await attach(topic, "p")
        assert producer.last_sequence is not None
        assert producer.last_sequence() == 2
        s.records.open(T2, topic)
        send(topic, producer, T2, 2, 3)
        await told(sink, 2)
        # A clean end has trimmed the first three, which no subscription needs.
        assert [number for _, number, _ in await stored(topic)][-1] == 3
        assert sink.receipts == [([2], -1, -1), ([3], *topic.managed_ledger.last_confirmed)]


async def test_aborted_entries_do_not_move_the_position_that_the_ids_cover() -> None:
    # The ids of entries after mark-delete are replayed. If aborts moved it, those of aborted
    # messages would be lost, and their ledgers could be trimmed before.
    async with txn_stage(deduplication=True) as s:
        topic = await s.topic()
        s.records.open(T1, topic)
        producer, sink = await attach(topic, "p")
        cursor = topic.managed_ledger.cursors[CURSOR]
        before = cursor.mark_delete
        send(topic, producer, T1, 0, 1, 2)
        await told(sink, 3)
        await end(s, topic, T1, Outcome.ABORT)
        assert (cursor.mark_delete, cursor.holes_count) == (before, 0)
        topic = await s.reopened(topic, crash=True)
        cursor = topic.managed_ledger.cursors[CURSOR]
        assert cursor.mark_delete <= before
        assert not cursor.holes_count
        assert ABORTED_CURSOR not in topic.managed_ledger.cursors


async def test_a_duplicate_in_an_ended_transaction_is_refused_and_harmless() -> None:
    async with txn_stage(deduplication=True) as s:
        topic = await s.topic()
        s.records.open(T1, topic)
        producer, sink = await attach(topic, "p")
        send(topic, producer, T1, 0)
        await told(sink, 1)
        await end(s, topic, T1, Outcome.COMMIT)
        send(topic, producer, T1, 0)
        await told(sink, 2)
        assert "has been ended" in str(sink.errors[0])
        send(topic, producer, None, 1)
        await told(sink, 3)
        assert [number for _, number, _ in await stored(topic)] == [0, 1]
