"""Receipts and notices of a persistent topic's producers, and the topic's counters."""

import asyncio

import pytest
from tests.support.held_store import puts
from tests.unit.broker.subscription.conftest import entry_bytes
from tests.unit.broker.topic.stage import (
    ProducerSink,
    hold_sign_of_life,
    new_producer,
    run_of,
    stage,
)
from tests.unit.ledger.stage import turns

from magnetar.broker.topic.counters import ERROR_QUIET_MS
from magnetar.broker.topic.entry_stamp import last_index
from magnetar.broker.topic.own_properties import EPOCH_PROPERTY
from magnetar.broker.topic.producer import AccessMode
from magnetar.core.errors import ProducerFenced, ServiceNotReady, TopicTerminated
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX
from magnetar.wire.entry import split_entry

EPOCH = puts(MANAGED_LEDGERS_PREFIX)


async def test_a_receipt_comes_once_the_run_is_stored_and_not_before() -> None:
    async with stage() as s:
        topic = await s.topic()
        producer, sink = await s.producer(topic)
        s.bookie.hold = True
        answered: list[int] = []
        producer.on_answered = lambda: answered.append(producer.pending_runs)
        s.clock.advance(5)
        topic.publish(producer, run_of(producer, "a", "b", first=7, batch=3))
        topic.publish(producer, run_of(producer, "c", first=9))
        await turns(60)
        assert (sink.told, producer.pending_runs) == ([], 2)
        assert topic.counters.messages_in == 0
        s.bookie.release()
        await turns(60)
        ledger_id = topic.managed_ledger.ledgers[-1].ledger_id
        assert sink.receipts == [([7, 8], ledger_id, 0), ([9], ledger_id, 2)]
        assert answered == [1, 0]
        counters = topic.counters
        assert (counters.messages_in, counters.entries_in) == (7, 3)
        assert (producer.messages_in, producer.bytes_in) == (7, counters.bytes_in)
        assert counters.last_published_ms == s.clock.now_ms()
        assert counters.bytes_in == topic.managed_ledger.bytes_total
        assert counters.publish_errors == 0


async def test_a_failed_append_disconnects_all_producers_to_resend_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise a later message of a client would get in before one that it resends."""
    async with stage() as s:
        topic = await s.topic()
        producer, sink = await s.producer(topic)
        other, there = await s.producer(topic)
        s.bookie.refuse = lambda _ledger, _ids: True
        answered: list[int] = []
        producer.on_answered = lambda: answered.append(producer.pending_runs)
        for number in range(3):
            topic.publish(producer, run_of(producer, "x", first=number))
        while len(sink.errors) < 3:
            await turns(10)
        assert [ids for ids, _ in sink.errors] == [[0], [1], [2]]
        assert sink.told[:2] == ["errors", "sent away"]
        assert sink.sent_away == [(producer, None)]
        assert there.sent_away == [(other, None)]
        assert topic.counters.publish_errors == 3
        assert caplog.messages.count("append failed") == 1, "not for every run behind the first"
        assert answered == [2, 1, 0]
        assert not len(topic.producers)
        assert (producer.messages_in, topic.counters.messages_in) == (0, 0)
        s.bookie.refuse = lambda _ledger, _ids: False
        await s.publish(topic, "again")
        assert topic.managed_ledger.entries_total == 1


async def test_a_failure_that_lasts_is_logged_once_however_often_clients_try_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none_left(_self: ManagedLedger) -> LedgerWriter:
        raise NotEnoughBookies("3 bookies are needed")

    async with stage() as s:
        topic = await s.topic()
        monkeypatch.setattr(ManagedLedger, "create_ledger", none_left)
        for number in range(3):
            producer, sink = await s.producer(topic)
            topic.publish(producer, run_of(producer, "x", first=number))
            while not sink.errors:
                await turns(10)
        assert topic.counters.publish_errors == 3
        assert caplog.messages.count("append failed") == 1
        assert caplog.messages.count("no writable ledger, appends fail") == 1
        topic.counters.last_error_ms -= ERROR_QUIET_MS
        producer, sink = await s.producer(topic)
        topic.publish(producer, run_of(producer, "x", first=3))
        while not sink.errors:
            await turns(10)
        assert caplog.messages.count("append failed") == 2


async def test_a_terminated_topic_admits_no_producer_and_disconnects_its_producers() -> None:
    async with stage() as s:
        topic = await s.topic()
        ((ledger_id, _),) = await s.publish(topic, "last")
        producer, sink = await s.producer(topic)
        subscription, consumer, at = await s.attach(topic)
        assert await topic.terminate() == (ledger_id, 0)
        assert sink.sent_away == [(producer, None)]
        assert at.ended == 0
        subscription.ack_one(consumer, ledger_id, 0)
        await turns(20)
        assert at.ended == 1
        for mode in AccessMode:
            with pytest.raises(TopicTerminated):
                await s.producer(topic, mode=mode)
        assert topic.producers.epoch is None, "a refused producer gets no epoch"
        assert EPOCH_PROPERTY not in topic.managed_ledger.properties
        topic.publish(producer, run_of(producer, "late"))
        await turns(20)
        ((_, error),) = sink.errors
        assert isinstance(error, TopicTerminated)
        assert topic.counters.publish_errors == 0, "nothing failed"


@pytest.mark.parametrize("end", ["terminated", "closing"])
async def test_a_producer_whose_topic_ends_while_it_attaches_is_refused(end: str) -> None:
    async with stage() as s:
        topic = await s.topic()
        held = s.store.hold(EPOCH)
        producer = new_producer(ProducerSink(), mode=AccessMode.EXCLUSIVE)
        attaching = asyncio.ensure_future(topic.add_producer(producer))
        await held.reached.wait()
        ending = asyncio.ensure_future(topic.terminate() if end == "terminated" else topic.close())
        await turns(30)
        held.go.set()
        await ending
        with pytest.raises((TopicTerminated, ServiceNotReady)):
            await attaching
        assert not len(topic.producers)
        assert producer.closed or not producer.ready


async def test_a_producer_whose_topic_closes_while_it_waits_for_its_name_is_refused() -> None:
    async with stage() as s:
        topic = await s.topic()
        _, sink = await s.producer(topic, name="p")
        asked, go = hold_sign_of_life(sink, alive=False)
        attaching = asyncio.ensure_future(s.producer(topic, name="p"))
        await asked.wait()
        await topic.drain()
        go.set()
        with pytest.raises(ServiceNotReady):
            await attaching
        assert not len(topic.producers)


async def test_a_name_is_free_if_its_holder_leaves_while_it_is_asked_for_a_sign_of_life() -> None:
    async with stage() as s:
        topic = await s.topic()
        holder, sink = await s.producer(topic, name="p")
        asked, go = hold_sign_of_life(sink, alive=True)
        attaching = asyncio.ensure_future(s.producer(topic, name="p"))
        await asked.wait()
        topic.remove_producer(holder)
        go.set()
        newcomer, _ = await attaching
        assert list(topic.producers) == [newcomer]


# -- epochs


async def test_an_exclusive_producer_publishes_once_its_epoch_is_stored() -> None:
    async with stage() as s:
        topic = await s.topic()
        held = s.store.hold(EPOCH)
        producer = new_producer(ProducerSink(), mode=AccessMode.EXCLUSIVE)
        attaching = asyncio.ensure_future(topic.add_producer(producer))
        await held.reached.wait()
        assert not producer.ready
        held.go.set()
        await attaching
        assert producer.ready
        assert topic.managed_ledger.properties[EPOCH_PROPERTY] == "0"
        topic.remove_producer(producer)
        second, _ = await s.producer(topic, mode=AccessMode.EXCLUSIVE)
        assert second.topic_epoch == 1


async def test_the_epoch_outlives_the_topics_broker() -> None:
    async with stage() as s:
        topic = await s.topic()
        producer, _ = await s.producer(topic, mode=AccessMode.EXCLUSIVE)
        topic.remove_producer(producer)
        producer, _ = await s.producer(topic, mode=AccessMode.EXCLUSIVE_WITH_FENCING)
        assert producer.topic_epoch == 1
        await s.service.topics.unload(topic.name)
        again = await s.topic()
        assert again is not topic
        assert again.producers.epoch == 1
        shared, _ = await s.producer(again)
        assert shared.topic_epoch == 1


async def test_a_topic_that_rests_stores_no_epoch() -> None:
    async with stage() as s:
        topic = await s.topic()
        topic.suspend()
        with pytest.raises(ServiceNotReady):
            await topic._store_epoch(3)
        assert EPOCH_PROPERTY not in topic.managed_ledger.properties


async def test_a_producer_that_was_fenced_disconnects_nobody_when_it_returns() -> None:
    """Not even one that fences others: the topic belongs to the producer of the later epoch."""
    async with stage() as s:
        topic = await s.topic()
        fenced, _ = await s.producer(topic, mode=AccessMode.EXCLUSIVE)
        topic.remove_producer(fenced)
        holder, sink = await s.producer(topic, mode=AccessMode.EXCLUSIVE)
        waiting, there = await s.producer(topic, mode=AccessMode.WAIT_FOR_EXCLUSIVE)
        assert (fenced.topic_epoch, holder.topic_epoch) == (0, 1)
        for mode in (AccessMode.EXCLUSIVE_WITH_FENCING, AccessMode.EXCLUSIVE):
            with pytest.raises(ProducerFenced):
                await s.producer(topic, mode=mode, topic_epoch=fenced.topic_epoch)
        assert list(topic.producers) == [holder]
        assert (holder.ready, sink.sent_away) == (True, [])
        assert (there.refused, topic.producers.waiting_count) == ([], 1)
        later, _ = await s.producer(
            topic, mode=AccessMode.EXCLUSIVE_WITH_FENCING, topic_epoch=holder.topic_epoch
        )
        assert list(topic.producers) == [later]
        assert sink.sent_away == [(holder, None)]
        assert there.refused == [waiting]


# -- rest and end


async def test_a_suspended_topic_takes_no_message_and_sends_no_notice() -> None:
    async with stage() as s:
        topic = await s.topic()
        quiet, sink = await s.producer(topic)
        busy, there = await s.producer(topic)
        _, _, at = await s.attach(topic)
        topic.suspend()
        assert not topic.serving
        assert (quiet.ready, quiet.suspended, busy.ready) == (False, True, False)
        with pytest.raises(ServiceNotReady):
            await s.producer(topic)
        busy.missed = True  # as its session does for messages that arrive now
        assert (sink.told, there.told, at.closed) == ([], [], [])
        topic.resume()
        assert topic.serving
        assert (quiet.ready, quiet.suspended) == (True, False)
        assert there.sent_away == [(busy, None)]
        topic.publish(quiet, run_of(quiet, "x"))
        await turns(60)
        assert len(sink.receipts) == 1
        assert at.texts == ["x"]


async def test_a_topic_that_is_suspended_twice_forgets_no_message_that_it_missed() -> None:
    """The messages behind a missed one would otherwise be stored before it."""
    async with stage() as s:
        topic = await s.topic()
        producer, sink = await s.producer(topic)
        topic.suspend()
        producer.missed = True  # as its session does for messages that arrive now
        topic.suspend()
        topic.resume()
        assert sink.sent_away == [(producer, None)]
        assert not len(topic.producers)


async def test_messages_sent_before_a_topic_closes_are_stored_and_receipted() -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.publish(topic, "first")
        producer, sink = await s.producer(topic)
        subscription, consumer, at = await s.attach(topic)
        s.bookie.hold = True
        topic.publish(producer, run_of(producer, "a"))
        draining = asyncio.ensure_future(topic.drain())
        await turns(30)
        assert (draining.done(), sink.told, at.closed) == (False, [], [])
        assert not producer.ready, "what comes now is not taken"
        ledger_id = topic.managed_ledger.ledgers[-1].ledger_id
        subscription.ack_one(consumer, ledger_id, 0)
        s.bookie.release()
        await draining
        assert sink.told == ["receipts"]
        assert at.texts == ["first"], "consumers get nothing more"
        assert at.closed == [], "nobody is told yet"
        topic.dismiss(None)
        assert sink.told == ["receipts", "sent away"]
        assert at.closed == [consumer.spec.consumer_id]
        again = await s.factory.open(topic.managed_ledger.name)
        assert again.entries_total == 2
        assert again.cursors["s"].backlog == 1


async def test_message_indexes_continue_after_those_of_the_former_broker() -> None:
    async with stage(entry_metadata=("timestamp", "index")) as s:
        topic = await s.topic()
        await topic.create_subscription("keeper", EARLIEST, {})
        s.clock.advance(5)
        for _ in range(2):
            producer, sink = await s.producer(topic)
            topic.publish(producer, run_of(producer, "a", "b", batch=3))
            topic.publish(producer, run_of(producer, "c", first=2))
            while len(sink.receipts) < 2:
                await turns(1)
            await s.service.topics.unload(topic.name)
            topic = await s.topic()
        found = await topic.managed_ledger.read(EARLIEST, 3, 1 << 20)
        found += await topic.managed_ledger.read(
            topic.managed_ledger.next_position(found[-1].position), 3, 1 << 20
        )
        assert [last_index(entry.data) for entry in found] == [2, 5, 6, 9, 12, 13]
        stamps = [split_entry(entry.data).broker_entry_metadata for entry in found]
        assert {each and each.broker_timestamp for each in stamps} == {s.clock.now_ms()}


@pytest.mark.parametrize("field", ["timestamp", "index"])
async def test_entries_carry_what_the_broker_is_set_to_add_and_nothing_else(field: str) -> None:
    async with stage(entry_metadata=(field,)) as s:
        topic = await s.topic()
        await topic.create_subscription("keeper", EARLIEST, {})
        await s.publish(topic, "a", "b")
        found = await topic.managed_ledger.read(EARLIEST, 2, 1 << 20)
        stamps = [split_entry(entry.data).broker_entry_metadata for entry in found]
        for number, stamp in enumerate(stamps):
            assert stamp is not None
            assert stamp.HasField("broker_timestamp") is (field == "timestamp")
            assert stamp.HasField("index") is (field == "index")
            assert stamp.index == (number if field == "index" else 0)
        indexes = [0, 1] if field == "index" else [-1, -1]
        assert [last_index(entry.data) for entry in found] == indexes


async def test_indexes_begin_at_0_behind_entries_without_them() -> None:
    """As those of a topic whose broker is set to add them only now."""
    async with stage(entry_metadata=("index",)) as s:
        topic = await s.topic()
        await topic.create_subscription("keeper", EARLIEST, {})
        answers: list[object] = []
        topic.managed_ledger.append([entry_bytes("old")], lambda *answer: answers.append(answer))
        while not answers:
            await turns(1)
        await s.service.topics.unload(topic.name)
        topic = await s.topic()
        (place,) = await s.publish(topic, "new")
        assert last_index((await topic.managed_ledger.read_entry(Position(*place))).data) == 0


async def test_message_indexes_continue_behind_a_log_that_was_trimmed_whole() -> None:
    async with stage(entry_metadata=("index",)) as s:
        topic = await s.topic()
        await s.publish(topic, "a", "b")
        await topic.managed_ledger.roll_over()
        await topic.managed_ledger.trim()
        assert topic.managed_ledger.entries_total == 0
        assert topic.properties == {}
        await s.service.topics.unload(topic.name)
        topic = await s.topic()
        (place,) = await s.publish(topic, "c")
        assert last_index((await topic.managed_ledger.read_entry(Position(*place))).data) == 2
