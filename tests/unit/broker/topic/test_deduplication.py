"""Deduplication of a persistent topic: outcomes, recovery, and forgotten producers."""

import asyncio

import pytest
from tests.unit.broker.topic.dedup_stage import (
    attach,
    crashed,
    entry,
    ids,
    run_of_entries,
    send,
    stored,
)
from tests.unit.broker.topic.stage import request, stage
from tests.unit.ledger.stage import turns

from magnetar.broker.topic.deduplication.snapshots import CURSOR
from magnetar.core.errors import NotAllowed, PersistenceError, ServiceNotReady
from magnetar.policies.admission import DEDUPLICATION
from magnetar.policies.caps import MAX_MESSAGE_SIZE
from magnetar.policies.lifecycle import RETENTION

ON = {"deduplication": True, "retention_minutes": -1, "retention_size_mb": -1}
HOUR_MS = 3_600_000


async def test_without_deduplication_a_message_is_stored_as_often_as_it_is_sent() -> None:
    async with stage() as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0, 0))
        assert len(await stored(topic)) == 2
        assert (topic.deduplication, topic.deduplication_switch.status) == (None, "Disabled")
        assert producer.last_sequence_id == -1


async def test_a_stored_message_gets_a_receipt_without_a_position_and_is_not_stored_again() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, sink = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0, 1))
        await send(topic, producer, *ids("a", 1, 2, 0, 3))
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 2, 3]
        ledger_id = topic.managed_ledger.ledgers[-1].ledger_id
        assert sink.receipts == [
            ([0, 1], ledger_id, 0), ([1], -1, -1), ([2], ledger_id, 2), ([0], -1, -1),
            ([3], ledger_id, 3),
        ]  # fmt: skip
        assert producer.last_sequence_id == 3
        assert topic.deduplication is not None
        assert topic.deduplication.duplicates == 2
        assert topic.deduplication_switch.status == "Enabled"


async def test_a_message_whose_first_copy_is_in_flight_gets_an_error_in_its_turn() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, sink = await attach(topic, "a")
        s.bookie.hold = True
        topic.publish(producer, run_of_entries(producer, ids("a", 0)))
        topic.publish(producer, run_of_entries(producer, ids("a", 0)))
        topic.publish(producer, run_of_entries(producer, ids("a", 1)))
        await turns(30)
        assert sink.told == []
        s.bookie.release()
        await turns(30)
        assert sink.told == ["receipts", "errors", "receipts"]
        ((sequence_ids, error),) = sink.errors
        assert sequence_ids == [0]
        assert isinstance(error, PersistenceError)
        assert error.message.endswith(
            "[a]Cannot determine whether the message is a duplicate at this time"
        )
        assert [number for _, number, _ in await stored(topic)] == [0, 1]
        assert producer.pending_runs == 0


async def test_a_batch_counts_by_its_highest_id() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, sink = await attach(topic, "a")
        await send(topic, producer, entry("a", 0, 9))
        await send(topic, producer, entry("a", 0, 9), entry("a", 4, 6), entry("a", 10, 12))
        assert [number for _, number, _ in await stored(topic)] == [0, 10]
        assert producer.last_sequence_id == 12
        assert not sink.errors
        assert topic.deduplication is not None
        assert topic.deduplication.duplicates == 13


async def test_a_batch_that_is_stored_in_part_is_refused_and_not_acknowledged() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, sink = await attach(topic, "a")
        await send(topic, producer, *ids("a", 5))
        sink.receipts.clear()
        await send(topic, producer, entry("a", 4, 7))
        assert not sink.receipts
        ((_, error),) = sink.errors
        assert isinstance(error, NotAllowed)
        assert "4 to 7 is stored up to 5" in error.message
        await send(topic, producer, entry("a", 6, 7))
        assert [number for _, number, _ in await stored(topic)] == [5, 6]


async def test_a_chunked_message_counts_once_all_its_chunks_are_stored() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, sink = await attach(topic, "a")
        chunks = [entry("a", 3, chunk=(number, 3)) for number in range(3)]
        await send(topic, producer, chunks[0], chunks[1])
        assert producer.last_sequence_id == -1
        await send(topic, producer, chunks[1], chunks[2])  # resent from the second one on
        assert producer.last_sequence_id == 3
        before = len(await stored(topic))
        sink.receipts.clear()
        await send(topic, producer, *chunks)
        assert len(await stored(topic)) == before == 4
        assert sink.receipts == [([3, 3, 3], -1, -1)]


async def test_chunks_are_found_by_a_replay_too() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0), entry("a", 1, chunk=(0, 2)))
        topic = await crashed(s, topic)
        producer, _ = await attach(topic, "a")
        assert producer.last_sequence_id == 0
        await send(topic, producer, entry("a", 1, chunk=(1, 2)))
        topic = await crashed(s, topic)
        producer, _ = await attach(topic, "a")
        assert producer.last_sequence_id == 1


async def test_after_a_failed_append_the_message_is_new_again() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, sink = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        s.bookie.refuse = lambda _ledger, _ids: True
        topic.publish(producer, run_of_entries(producer, ids("a", 1, 2)))
        while not sink.errors:
            await turns(1)
        s.bookie.refuse = lambda _ledger, _ids: False
        producer, sink = await attach(topic, "a")
        assert producer.last_sequence_id == 0
        await send(topic, producer, *ids("a", 1, 2))
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 2]
        assert sink.receipts[-1][1] >= 0


@pytest.mark.parametrize("snapshot_entries", [1, 3, 1000])
async def test_ids_survive_a_crash_with_and_without_a_snapshot(snapshot_entries: int) -> None:
    async with stage(**ON, deduplication_snapshot_entries=snapshot_entries) as s:
        topic = await s.topic()
        for life in range(4):
            for name in ("a", "b"):
                producer, sink = await attach(topic, name)
                assert producer.last_sequence_id == 2 * life - 1
                await send(topic, producer, *ids(name, *range(2 * life + 2)))
                assert len(sink.receipts) == 1 + (life > 0)
                topic.remove_producer(producer)
            topic = await crashed(s, topic)
        found = [(name, number) for name, number, _ in await stored(topic)]
        assert sorted(found) == [(name, number) for name in "ab" for number in range(8)]


async def test_ids_survive_an_unload_without_a_replay() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0, 1, 2))
        await s.service.topics.unload(topic.name)
        topic = await s.topic()
        assert topic.deduplication is not None
        assert topic.deduplication.snapshots.entries_since == 0
        assert topic.deduplication.last_sequence_ids == {"a": 2}


async def test_a_load_replays_at_most_about_the_snapshot_interval() -> None:
    async with stage(**ON, deduplication_snapshot_entries=10) as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        for number in range(95):
            await send(topic, producer, *ids("a", number))
        topic = await crashed(s, topic)
        assert topic.deduplication is not None
        assert topic.deduplication.snapshots.entries_since < 20
        assert topic.deduplication.last_sequence_ids == {"a": 94}


async def test_trimming_waits_for_the_stored_ids() -> None:
    """Without retention, entries after the last snapshot stay, and none before it."""
    async with stage(deduplication=True, ledger_rollover_min_minutes=0) as s:
        topic = await s.topic()
        await s.set(RETENTION, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, topic)
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0, 1))
        await topic.managed_ledger.roll_over()
        await topic.managed_ledger.trim()
        assert len(await stored(topic)) == 2
        topic = await crashed(s, topic)
        producer, _ = await attach(topic, "a")
        assert producer.last_sequence_id == 1
        assert topic.deduplication is not None
        topic.deduplication.snapshots.take()
        await turns(60)
        await topic.managed_ledger.trim()
        assert await stored(topic) == []
        topic = await crashed(s, topic)
        producer, _ = await attach(topic, "a")
        assert producer.last_sequence_id == 1


async def test_truncating_a_topic_keeps_the_ids() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0, 1))
        await topic.managed_ledger.truncate()
        assert await stored(topic) == []
        topic = await crashed(s, topic)
        producer, _ = await attach(topic, "a")
        assert producer.last_sequence_id == 1


async def test_a_producer_attaches_once_earlier_messages_of_its_name_have_an_outcome() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        s.bookie.hold = True
        topic.publish(producer, run_of_entries(producer, ids("a", 1)))
        topic.remove_producer(producer)
        attaching = asyncio.ensure_future(attach(topic, "a"))
        await turns(60)
        assert not attaching.done()
        s.bookie.release()
        producer, _ = await attaching
        assert producer.last_sequence_id == 1


async def test_a_producer_is_refused_if_the_outcomes_do_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "magnetar.broker.topic.deduplication.deduplication.OUTCOMES_TIMEOUT_S", 0.01
    )
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        s.bookie.hold = True
        topic.publish(producer, run_of_entries(producer, ids("a", 1)))
        topic.remove_producer(producer)
        with pytest.raises(ServiceNotReady, match="no outcome yet"):
            await attach(topic, "a")
        assert "a" not in topic.producers
        s.bookie.release()
        await turns(30)
        producer, _ = await attach(topic, "a")
        assert producer.last_sequence_id == 1


async def test_a_policy_switches_a_topic_in_use_on_and_off() -> None:
    async with stage(retention_minutes=-1, retention_size_mb=-1) as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        await s.set(DEDUPLICATION, True, topic)
        while topic.deduplication is None:
            await turns(1)
        assert producer.last_sequence_id == -1  # older entries are not read
        await send(topic, producer, *ids("a", 1, 1))
        assert producer.last_sequence_id == 1
        topic = await crashed(s, topic)
        producer, _ = await attach(topic, "a")
        assert producer.last_sequence_id == 1
        await s.set(DEDUPLICATION, False, topic)
        while topic.deduplication is not None or CURSOR in topic.managed_ledger.cursors:
            await turns(1)
        await turns(10)
        assert topic.deduplication_switch.status == "Disabled"
        await send(topic, producer, *ids("a", 1))
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 1]
        topic = await crashed(s, topic)
        assert (topic.deduplication, CURSOR in topic.managed_ledger.cursors) == (None, False)


async def test_messages_in_flight_when_it_is_switched_on_are_recorded() -> None:
    async with stage(retention_minutes=-1, retention_size_mb=-1) as s:
        topic = await s.topic()
        producer, sink = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        s.bookie.hold = True
        topic.publish(producer, run_of_entries(producer, ids("a", 1, 2)))
        await s.set(DEDUPLICATION, True, topic)
        await turns(60)
        s.bookie.release()
        while topic.deduplication is None or len(sink.receipts) < 2:
            await turns(1)
        assert producer.last_sequence_id == 2
        await send(topic, producer, *ids("a", 1, 2, 3))
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 2, 3]


async def test_messages_in_flight_when_it_is_switched_off_and_on_again_are_recorded() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, sink = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        s.bookie.hold = True
        topic.publish(producer, run_of_entries(producer, ids("a", 1, 2)))
        await s.set(DEDUPLICATION, False, topic)
        while topic.deduplication is not None:
            await turns(1)
        s.bookie.hold = False  # the adds that are held stay so
        await s.set(DEDUPLICATION, True, topic)
        async with asyncio.timeout(10):
            while topic.deduplication is None:
                await turns(1)
            assert len(sink.receipts) == 1
            s.bookie.release()
            while len(sink.receipts) < 2:
                await turns(1)
        assert producer.last_sequence_id == 2
        await send(topic, producer, *ids("a", 1, 2, 3))
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 2, 3]


async def test_messages_in_flight_when_it_is_switched_off_get_their_answers_in_order() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        producer, sink = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        s.bookie.hold = True
        topic.publish(producer, run_of_entries(producer, ids("a", 1, 2)))
        topic.publish(producer, run_of_entries(producer, ids("a", 0)))  # stored
        topic.publish(producer, run_of_entries(producer, ids("a", 2)))  # in flight
        await s.set(DEDUPLICATION, False, topic)
        while topic.deduplication is not None:
            await turns(1)
        topic.publish(producer, run_of_entries(producer, ids("a", 2)))  # off: stored again
        await turns(60)
        assert producer.pending_runs == 4
        s.bookie.release()
        while producer.pending_runs or topic.deduplication_switch.status != "Disabled":
            await turns(1)
        assert [numbers for numbers, _, _ in sink.receipts] == [[0], [1, 2], [0], [2]]
        assert sink.receipts[2][1:] == (-1, -1)
        assert [numbers for numbers, _ in sink.errors] == [[2]]
        assert sink.told == ["receipts", "receipts", "receipts", "errors", "receipts"]
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 2, 2]
        topic = await crashed(s, topic)
        producer, _ = await attach(topic, "a")
        assert producer.last_sequence_id == -1


async def test_a_topic_whose_producers_never_came_has_no_cursor() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        await s.attach(topic)
        assert CURSOR not in topic.managed_ledger.cursors
        await attach(topic, "a")
        assert CURSOR in topic.managed_ledger.cursors
        assert CURSOR not in topic.subscriptions
        topic = await crashed(s, topic)
        assert set(topic.subscriptions) == {"s"}


async def test_the_name_of_the_cursor_is_reserved() -> None:
    async with stage() as s:
        topic = await s.topic()
        with pytest.raises(NotAllowed, match="cursor that holds state"):
            await s.attach(topic, request(CURSOR))


async def test_a_damaged_snapshot_refuses_the_topic_until_deduplication_is_off() -> None:
    async with stage(**ON, deduplication_snapshot_entries=1) as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        await turns(60)
        cursor = topic.managed_ledger.cursors[CURSOR]
        assert cursor.payload is not None
        damaged = bytearray(cursor.payload())
        damaged[-10] ^= 1
        topic.managed_ledger.carry_payload(cursor, lambda: bytes(damaged))
        cursor.store_payload(lambda _error: None)
        await cursor.flush()
        with pytest.raises(ServiceNotReady, match="cannot be read"):
            await crashed(s, topic)
        await s.service.resources.update_policies(
            topic.name.namespace, lambda document: {**document, "deduplicationEnabled": False}
        )
        topic = await s.topic()
        while CURSOR in topic.managed_ledger.cursors:
            await turns(1)
        assert topic.deduplication is None


async def test_inactive_producers_are_forgotten_but_not_those_attached() -> None:
    async with stage(**ON, deduplication_inactivity_minutes=60) as s:
        topic = await s.topic()
        stays, _ = await attach(topic, "stays")
        leaves, _ = await attach(topic, "leaves")
        for producer in (stays, leaves):
            await send(topic, producer, *ids(producer.name, 0))
        topic.remove_producer(leaves)
        assert topic.deduplication is not None
        s.clock.advance(HOUR_MS)
        topic.deduplication.sweep(0)
        assert topic.deduplication.last_sequence_ids == {"stays": 0, "leaves": 0}
        s.clock.advance(1_000)
        await s.service.upkeep.sweep_deduplication()
        assert topic.deduplication.last_sequence_ids == {"stays": 0}
        assert topic.deduplication.forgotten == 1
        await turns(60)
        topic = await crashed(s, topic)  # forgotten for good: the ids were stored without it
        assert topic.deduplication is not None
        assert topic.deduplication.last_sequence_ids == {"stays": 0}


async def test_a_producer_that_was_idle_until_a_crash_is_not_forgotten_before_it_returns() -> None:
    async with stage(**ON, deduplication_inactivity_minutes=60) as s:
        topic = await s.topic()
        idle, _ = await attach(topic, "idle")
        await send(topic, idle, *ids("idle", 0, 1, 2))
        assert topic.deduplication is not None
        topic.deduplication.store()
        await turns(60)
        s.clock.advance(2 * HOUR_MS)  # no new entries, so no snapshot has this time
        topic = await crashed(s, topic)
        await s.service.upkeep.sweep_deduplication()
        idle, _ = await attach(topic, "idle")
        assert idle.last_sequence_id == 2
        topic.remove_producer(idle)
        s.clock.advance(HOUR_MS + 1_000)
        await s.service.upkeep.sweep_deduplication()
        assert topic.deduplication is not None
        assert topic.deduplication.last_sequence_ids == {}


async def test_above_the_bound_the_ids_used_least_recently_are_forgotten() -> None:
    async with stage(**ON, deduplication_producers_max=3) as s:
        topic = await s.topic()
        stays, _ = await attach(topic, "stays")
        await send(topic, stays, *ids("stays", 0))
        for name in ("b", "c", "b", "d", "e"):
            producer, _ = await attach(topic, name)
            assert topic.deduplication is not None
            await send(topic, producer, *ids(name, producer.last_sequence_id + 1))
            topic.remove_producer(producer)
        assert topic.deduplication is not None
        assert topic.deduplication.last_sequence_ids == {"stays": 0, "d": 0, "e": 0}
        assert topic.deduplication.forgotten == 2


async def test_a_snapshot_is_taken_after_its_interval_if_there_are_new_entries() -> None:
    async with stage(**ON, deduplication_snapshot_interval_s=60) as s:
        topic = await s.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        assert topic.deduplication is not None
        snapshots = topic.deduplication.snapshots
        s.clock.advance(59_000)
        await s.service.upkeep.sweep_deduplication()
        await turns(60)
        assert snapshots.entries_since == 1
        s.clock.advance(2_000)
        await s.service.upkeep.sweep_deduplication()
        await turns(60)
        assert snapshots.entries_since == 0
        taken_s = snapshots.taken_s
        s.clock.advance(120_000)
        await s.service.upkeep.sweep_deduplication()
        await turns(60)
        assert snapshots.taken_s == taken_s  # no new entries


async def test_duplicates_keep_their_turn_beside_refusals_of_other_rules() -> None:
    async with stage(**ON) as s:
        topic = await s.topic()
        await s.set(MAX_MESSAGE_SIZE, 500, topic)
        producer, sink = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        sink.told.clear()
        gate = topic.gate
        assert gate is not None
        large = entry("a", 2, text="x" * 600)
        for run in ((ids("a", 1)), (ids("a", 0)), [large, *ids("a", 0, 3)]):
            gate.publish(producer, run_of_entries(producer, run))
        await turns(60)
        assert sink.told == ["receipts", "receipts", "errors", "receipts", "receipts"]
        assert [numbers for numbers, _, _ in sink.receipts] == [[0], [1], [0], [0], [3]]
        assert producer.pending_runs == 0
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 3]
