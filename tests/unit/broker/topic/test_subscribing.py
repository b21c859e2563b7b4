"""Subscriptions of a persistent topic: where they begin, how they are deleted, how they end."""

import asyncio
from typing import Any

import pytest
from tests.support.held_store import deletes, puts
from tests.unit.broker.topic.stage import ELSEWHERE, ProducerSink, request, stage
from tests.unit.ledger.stage import turns

from magnetar.broker.lifecycle.limits import KEEPS_ALL
from magnetar.broker.subscription.cursor_moves import position_of_time
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.subscribe import SubscriptionExists
from magnetar.core.errors import (
    ConsumerBusy,
    MagnetarError,
    MetadataError,
    NotAllowed,
    PreconditionFailed,
    ServiceNotReady,
    SubscriptionNotFound,
)
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.settings import Quorums
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import CURSORS_PREFIX
from magnetar.policies.lifecycle import PERSISTENCE, RETENTION
from magnetar.schemas.model import SchemaInfo, SchemaType

CREATION = puts(CURSORS_PREFIX)
DELETION = deletes(CURSORS_PREFIX)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.cursors.SETTLE_RETRY_S", 0.001)


# -- admission


async def test_a_new_subscription_reads_from_where_it_was_asked_to() -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await s.publish(topic, "a", "b", "c")
        starts = {
            "earliest": request("earliest"),
            "latest": request("latest", from_earliest=False),
            "reader": request("reader", durable=False, start=Position(*places[1])),
            "reader of all": request("reader of all", durable=False),
            "reader of new": request("reader of new", durable=False, from_earliest=False),
        }
        sinks = {name: (await s.attach(topic, asked))[2] for name, asked in starts.items()}
        await s.publish(topic, "d")
        await turns(30)
        assert {name: "".join(sink.texts) for name, sink in sinks.items()} == {
            "earliest": "abcd",
            "latest": "d",
            "reader": "bcd",
            "reader of all": "abcd",
            "reader of new": "d",
        }
        durable = {name for name, each in topic.subscriptions.items() if each.cursor.durable}
        assert durable == {"earliest", "latest"}


async def test_a_reader_may_seek_back_by_time() -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.publish(topic, "a")  # published at second 1, and so is all here
        now_s = s.clock.now_ms() // 1000
        _, _, old = await s.attach(
            topic, request("old", durable=False, from_earliest=False, rollback_s=now_s)
        )
        _, _, new = await s.attach(
            topic, request("new", durable=False, from_earliest=False, rollback_s=now_s - 60)
        )
        await turns(30)
        assert (old.texts, new.texts) == (["a"], [])


@pytest.mark.parametrize("meanwhile", ["another", "durable", "suspended"])
async def test_a_search_for_a_readers_start_ends_in_the_topic_as_it_is_then(
    meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search by time may read from bookies, while clients attach and the lease gets lost."""
    async with stage() as s:
        topic = await s.topic()
        await s.publish(topic, "a")
        searching, go = asyncio.Event(), asyncio.Event()

        async def slow(ledger: ManagedLedger, since_ms: int) -> Position:
            searching.set()
            await go.wait()
            return await position_of_time(ledger, since_ms)

        monkeypatch.setattr("magnetar.broker.topic.persistent.position_of_time", slow)
        asked = request("r", durable=False, rollback_s=1)
        attaching = asyncio.ensure_future(s.attach(topic, asked))
        await searching.wait()
        if meanwhile == "another":
            subscription, first, _ = await s.attach(topic, request("r", durable=False))
            go.set()
            found, second, _ = await attaching
            assert found is subscription is topic.subscriptions["r"]
            assert list(subscription.consumers) == [first, second]
        elif meanwhile == "durable":
            durable = await topic.create_subscription("r", EARLIEST, {})
            go.set()
            with pytest.raises(NotAllowed, match="Durable subscription with name r already"):
                await attaching
            assert list(durable.consumers) == []
        else:
            topic.suspend()
            go.set()
            with pytest.raises(ServiceNotReady):
                await attaching
            assert (topic.subscriptions, dict(topic.managed_ledger.cursors)) == ({}, {})


async def test_a_name_is_of_a_durable_subscription_or_of_a_reader() -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.attach(topic, request("durable"))
        await s.attach(topic, request("reader", durable=False))
        with pytest.raises(NotAllowed, match="Durable subscription with name durable"):
            await s.attach(topic, request("durable", durable=False))
        with pytest.raises(NotAllowed, match="NonDurable subscription with the same name"):
            await s.attach(topic, request("reader"))
        with pytest.raises(SubscriptionNotFound):
            await s.attach(topic, request("none", auto_create=False))
        with pytest.raises(PreconditionFailed, match="Empty subscription name"):
            await topic.create_subscription("", EARLIEST, {})
        with pytest.raises(SubscriptionExists):
            await topic.create_subscription("durable", LATEST, {})
        assert set(topic.subscriptions) == {"durable", "reader"}
        created = await topic.create_subscription("made", EARLIEST, {"a": "1"})
        assert dict(created.cursor.properties) == {"a": "1"}


async def test_two_first_consumers_share_the_one_subscription() -> None:
    async with stage() as s:
        topic = await s.topic()
        held = s.store.hold(CREATION)
        attaching = [asyncio.ensure_future(s.attach(topic, permits=0)) for _ in range(2)]
        await held.reached.wait()
        held.go.set()
        first, second = await asyncio.gather(*attaching)
        assert first[0] is second[0] is topic.subscriptions["s"]
        assert len(first[0].consumers) == 2


async def test_a_consumer_that_is_refused_leaves_nothing() -> None:
    async with stage() as s:
        topic = await s.topic()
        subscription, first, _ = await s.attach(topic, request(sub_type=SubType.Exclusive))
        active = topic.last_active_ms
        s.clock.advance(10)
        with pytest.raises(ConsumerBusy):
            await s.attach(topic, request(sub_type=SubType.Exclusive))
        assert list(subscription.consumers) == [first]
        assert topic.last_active_ms == active + 10
        with pytest.raises(NotAllowed):
            await s.attach(topic, request("s", durable=False))
        assert topic.subscriptions == {"s": subscription}


async def test_a_readers_subscription_ends_with_its_last_consumer() -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.publish(topic, "a")
        asked = request("r", durable=False)
        subscription, first, _ = await s.attach(topic, asked)
        _, second, _ = await s.attach(topic, request("r", durable=False))
        topic.remove_consumer(subscription, first)
        assert topic.subscriptions == {"r": subscription}
        topic.remove_consumer(subscription, second)
        assert topic.subscriptions == {}
        assert subscription.closed
        assert dict(topic.managed_ledger.cursors) == {}
        again, _, sink = await s.attach(topic, request("r", durable=False))
        assert again is not subscription
        assert sink.texts == ["a"]
        topic.remove_consumer(subscription, second)  # late, and of the one before
        assert topic.subscriptions == {"r": again}


@pytest.mark.parametrize("end", ["rest", "closing"])
async def test_nothing_of_subscriptions_changes_while_a_topic_rests_or_closes(end: str) -> None:
    async with stage() as s:
        topic = await s.topic()
        subscription, consumer, _ = await s.attach(topic)
        if end == "rest":
            topic.suspend()
        else:
            await topic.drain()
        before = await s.store.list(CURSORS_PREFIX)
        for attempt in (
            s.attach(topic),
            s.attach(topic, request("new")),
            topic.create_subscription("new", EARLIEST, {}),
            topic.unsubscribe(subscription, consumer, force=True),
            topic.delete_subscription("s", force=True),
        ):
            with pytest.raises(ServiceNotReady):
                await attempt
        assert topic.subscriptions == {"s": subscription}
        assert list(subscription.consumers) == [consumer]
        assert await s.store.list(CURSORS_PREFIX) == before


@pytest.mark.parametrize("end", ["rest", "close", "abandon"])
async def test_a_consumer_whose_topic_ends_while_it_attaches_is_refused(end: str) -> None:
    async with stage() as s:
        topic = await s.topic()
        held = s.store.hold(CREATION)
        attaching = asyncio.ensure_future(s.attach(topic))
        await held.reached.wait()
        closing = None
        if end == "rest":
            topic.suspend()
        elif end == "close":
            closing = asyncio.ensure_future(topic.close())
        else:
            topic.abandon()
        held.go.set()
        with pytest.raises(MagnetarError):
            await attaching
        if closing is not None:
            await closing
        assert not any(each.consumers for each in topic.subscriptions.values())
        if end == "rest":  # the cursor was created, so it is shown
            assert set(topic.subscriptions) == set(topic.managed_ledger.cursors) == {"s"}
            assert topic.subscriptions["s"].suspended
            topic.resume()
            assert not topic.subscriptions["s"].suspended


async def test_a_consumer_that_attaches_uses_the_topic() -> None:
    async with stage() as s:
        topic = await s.topic()
        for name in ("s", "t", "s"):
            s.clock.advance(10)
            await s.attach(topic, request(name))
            assert topic.last_active_ms == s.clock.now_ms()


async def test_a_suspended_topic_keeps_a_subscription_whose_creation_had_begun() -> None:
    """Its cursor holds data, so it has to be seen; the client asks the next owner."""
    async with stage() as s:
        topic = await s.topic()
        held = s.store.hold(CREATION)
        creating = asyncio.ensure_future(topic.create_subscription("s", EARLIEST, {}))
        await held.reached.wait()
        topic.suspend()
        held.go.set()
        with pytest.raises(ServiceNotReady):
            await creating
        assert set(topic.subscriptions) == set(topic.managed_ledger.cursors) == {"s"}
        assert topic.subscriptions["s"].suspended


@pytest.mark.parametrize("end", ["closed", "deleted"])
async def test_a_cursor_that_ended_while_it_was_created_gets_no_subscription(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acks would never be stored."""
    async with stage() as s:
        topic = await s.topic()
        open_cursor = ManagedLedger.open_cursor

        async def overtaken(self: ManagedLedger, name: str, **how: Any) -> Cursor:
            monkeypatch.undo()
            cursor = await open_cursor(self, name, **how)
            if end == "closed":
                await topic.drain()
            else:
                await self.delete_cursor(name)
            return cursor

        monkeypatch.setattr(ManagedLedger, "open_cursor", overtaken)
        with pytest.raises(ServiceNotReady):
            await topic.create_subscription("s", EARLIEST, {})
        assert topic.subscriptions == {}


async def test_a_subscription_to_what_was_compacted_begins_before_what_is_kept() -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.publish(topic, "a", "b")
        await topic.managed_ledger.truncate()
        await s.publish(topic, "c")
        whole = request("whole", sub_type=SubType.Exclusive, read_compacted=True)
        for asked in (whole, request("kept", sub_type=SubType.Exclusive)):
            await s.attach(topic, asked, permits=0)
        marks = {name: each.cursor.mark_delete for name, each in topic.subscriptions.items()}
        assert marks == {"whole": EARLIEST, "kept": topic.managed_ledger.first_position}


# -- deleting


async def test_a_consumer_that_a_seek_has_disconnected_deletes_no_subscription() -> None:
    """Its connection may be lost, and the request late: others are about to attach again."""
    async with stage() as s:
        topic = await s.topic()
        subscription, consumer, _ = await s.attach(topic)
        await subscription.seek(EARLIEST)
        assert not subscription.consumers
        with pytest.raises(MetadataError, match="Unconnected"):
            await topic.unsubscribe(subscription, consumer, force=False)
        assert topic.subscriptions == {"s": subscription}
        await topic.unsubscribe(subscription, consumer, force=True)
        assert not topic.subscriptions


async def test_a_subscription_in_use_is_deleted_only_by_force() -> None:
    async with stage() as s:
        topic = await s.topic()
        subscription, consumer, sink = await s.attach(topic)
        _, other, there = await s.attach(topic)
        with pytest.raises(ConsumerBusy) as refused:
            await topic.delete_subscription("s")
        assert refused.value.http_status == 412
        with pytest.raises(MetadataError, match="shared consumer"):
            await topic.unsubscribe(subscription, consumer, force=False)
        assert list(subscription.consumers) == [consumer, other]
        topic.remove_consumer(subscription, other)
        await topic.unsubscribe(subscription, consumer, force=False)
        assert (topic.subscriptions, dict(topic.managed_ledger.cursors)) == ({}, {})
        assert subscription.closed
        assert (sink.closed, there.closed) == ([], []), "they asked for it, or had left"
        subscription, consumer, sink = await s.attach(topic)
        await topic.delete_subscription("s", force=True)
        assert sink.closed == [consumer.spec.consumer_id]
        with pytest.raises(SubscriptionNotFound):
            await topic.delete_subscription("s", force=True)
        assert await s.store.list(CURSORS_PREFIX) == []


async def test_a_subscription_whose_cursor_was_deleted_by_another_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would stay in the topic, ended, and no consumer could attach by that name."""
    async with stage() as s:
        topic = await s.topic()
        _, consumer, sink = await s.attach(topic)
        delete = ManagedLedger.delete_cursor

        async def overtaken(self: ManagedLedger, name: str) -> None:
            monkeypatch.undo()
            await delete(self, name)
            await delete(self, name)

        monkeypatch.setattr(ManagedLedger, "delete_cursor", overtaken)
        with pytest.raises(SubscriptionNotFound):
            await topic.delete_subscription("s", force=True)
        assert topic.subscriptions == {}
        assert sink.closed == [consumer.spec.consumer_id]
        again, _, _ = await s.attach(topic)
        assert topic.subscriptions == {"s": again}


async def test_a_subscription_created_again_outlives_the_deletion_of_the_former(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as s:
        topic = await s.topic()
        former, _, _ = await s.attach(topic)
        delete = ManagedLedger.delete_cursor

        async def overtaken(self: ManagedLedger, name: str) -> None:
            monkeypatch.undo()
            await delete(self, name)
            topic._forget(name)
            await s.attach(topic)

        monkeypatch.setattr(ManagedLedger, "delete_cursor", overtaken)
        await topic.delete_subscription("s", force=True)
        subscription = topic.subscriptions["s"]
        assert subscription is not former
        assert (len(subscription.consumers), subscription.closed) == (1, False)


async def test_a_subscription_during_deletion_admits_no_consumer_and_keeps_its_name() -> None:
    async with stage() as s:
        topic = await s.topic()
        subscription, _, _ = await s.attach(topic)
        held = s.store.hold(DELETION)
        deleting = asyncio.ensure_future(topic.delete_subscription("s", force=True))
        await held.reached.wait()
        assert topic.subscriptions == {"s": subscription}
        with pytest.raises(ServiceNotReady):
            await s.attach(topic)
        held.go.set()
        await deleting
        again, _, _ = await s.attach(topic)
        assert again is not subscription


async def test_a_subscription_whose_deletion_failed_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.publish(topic, "a")
        subscription, _, _ = await s.attach(topic)

        async def refused(*_: object) -> int:
            raise MetadataError("refused")

        with monkeypatch.context() as patch:
            patch.setattr(s.store, "transact", refused)
            with pytest.raises(MetadataError, match="refused"):
                await topic.delete_subscription("s", force=True)
        again, _, sink = await s.attach(topic)
        assert again is not subscription
        assert again.cursor is subscription.cursor
        assert sink.texts == ["a"]


@pytest.mark.parametrize("landed", [True, False], ids=["deleted", "not deleted"])
async def test_a_subscription_with_an_unanswered_deletion_follows_the_store(
    landed: bool,
) -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.publish(topic, "a")
        subscription, consumer, _ = await s.attach(topic)
        s.store.lose(DELETION, lands=landed)
        with pytest.raises(MagnetarError):
            await topic.delete_subscription("s", force=True)
        assert topic.subscriptions == {"s": subscription}
        assert subscription.closed
        assert list(subscription.consumers) == []
        with pytest.raises(MagnetarError):
            await s.attach(topic)
        s.store.away = False
        async with asyncio.timeout(20):
            while topic.managed_ledger.cursor_in_doubt("s"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await turns(20)
        assert ("s" in topic.subscriptions) is not landed
        again, _, sink = await s.attach(topic, request(from_earliest=False))
        assert again is not subscription
        assert sink.texts == ([] if landed else ["a"])
        topic.remove_consumer(subscription, consumer)  # late
        assert topic.subscriptions == {"s": again}


async def test_a_deletion_disconnects_a_consumer_that_attached_after_a_failed_one() -> None:
    """The subscription that the failed deletion left is the one that this deletion removes."""
    async with stage() as s:
        topic = await s.topic()
        await s.attach(topic)
        s.store.lose(DELETION, lands=False)
        with pytest.raises(MagnetarError):
            await topic.delete_subscription("s", force=True)
        found = s.store.hold(CREATION)  # the write by which the store decides the doubt
        s.store.away = False
        await found.reached.wait()
        deletion = s.store.hold(DELETION)
        deleting = asyncio.ensure_future(topic.delete_subscription("s", force=True))
        await turns(10)
        found.go.set()
        await deletion.reached.wait()
        subscription, consumer, sink = await s.attach(topic, permits=0)
        assert list(subscription.consumers) == [consumer]
        deletion.go.set()
        await deleting
        assert sink.closed == [consumer.spec.consumer_id]
        assert (topic.subscriptions, subscription.closed) == ({}, True)
        assert list(subscription.consumers) == []
        assert await s.store.list(CURSORS_PREFIX) == []


# -- the topic


async def test_a_topic_in_use_is_deleted_only_by_force() -> None:
    async with stage() as s:
        topic = await s.topic()
        topic.check_deletable(force=False)
        assert topic.is_idle
        producer, _ = await s.producer(topic)
        assert not topic.is_idle
        with pytest.raises(PreconditionFailed):
            topic.check_deletable(force=False)
        topic.check_deletable(force=True)
        topic.remove_producer(producer)
        topic.check_deletable(force=False)
        subscription, consumer, _ = await s.attach(topic)
        assert not topic.is_idle
        topic.remove_consumer(subscription, consumer)
        assert topic.is_idle
        with pytest.raises(PreconditionFailed):
            topic.check_deletable(force=False)


@pytest.mark.parametrize(
    "attached", ["nobody", "a producer", "a consumer", "AUTO_CONSUME", "an entry"]
)
async def test_a_schema_comes_with_the_first_user_of_a_topic(
    attached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        topic = await s.topic()
        if attached == "a producer":
            await s.producer(topic)
        elif attached == "an entry":
            await s.publish(topic, "of a producer that left")
        elif attached != "nobody":
            await s.attach(topic, request(has_schema=attached == "a consumer"))
        idle: list[bool] = []

        async def for_consumer(_name: object, _schema: object, *, topic_is_idle: bool) -> None:
            idle.append(topic_is_idle)

        monkeypatch.setattr(topic._context.schemas, "for_consumer", for_consumer)
        schema = SchemaInfo(SchemaType.STRING, b"")
        await topic.check_schema(schema)
        assert idle == [attached in ("nobody", "AUTO_CONSUME")]


async def test_policies_reach_the_log_with_their_next_change() -> None:
    async with stage() as s:
        topic = await s.topic()
        ledger = topic.managed_ledger
        keep = {"retentionTimeInMinutes": 3, "retentionSizeInMB": 5}
        copies = {
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 2,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 0,
        }
        await s.set(RETENTION, keep, topic)
        await s.set(PERSISTENCE, copies, topic)
        assert ledger.retention is not None
        assert (ledger.retention.size_bytes, ledger.retention.time_ms) == (5 << 20, 180_000)
        assert ledger.quorums == Quorums(3, 2, 1)
        topic.policies_changed()
        assert ledger.retention != KEEPS_ALL


# -- the end


async def test_all_clients_get_the_next_owner_of_the_topic() -> None:
    async with stage() as s:
        topic = await s.topic()
        producer, sink = await s.producer(topic, ProducerSink())
        _, consumer, at = await s.attach(topic)
        _, _, reader = await s.attach(topic, request("r", durable=False))
        await topic.drain()
        topic.dismiss(ELSEWHERE)
        assert sink.sent_away == [(producer, ELSEWHERE)]
        assert (at.closed, at.destinations) == ([consumer.spec.consumer_id], [ELSEWHERE])
        assert reader.destinations == [ELSEWHERE]
        topic.dismiss(ELSEWHERE)
        assert len(sink.sent_away) == len(at.closed) == 1, "once"


async def test_an_abandoned_topic_writes_nothing_and_disconnects_all_clients() -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await s.publish(topic, "a", "b")
        producer, sink = await s.producer(topic)
        subscription, consumer, at = await s.attach(topic)
        subscription.ack_one(consumer, *places[0])
        before = await s.store.revision()
        topic.abandon()
        await turns(30)
        assert await s.store.revision() == before
        assert sink.sent_away == [(producer, None)]
        assert at.closed == [consumer.spec.consumer_id]
        assert not topic.serving
        answers: list[MagnetarError | None] = []
        subscription.ack(consumer, [(*places[1], None, 0)], on_done=answers.append)
        await turns(10)
        assert len(answers) == 1
        assert answers != [None]
        assert s.factory.opened == {}
