"""Policies on topics of either kind, and the reported load of a topic."""

import asyncio
from typing import Any

import pytest
from tests.support.held_store import puts
from tests.unit.broker.topic.stage import (
    ProducerSink,
    Stage,
    new_producer,
    request,
    run_of,
    stage,
)
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.producer import AccessMode
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.core.errors import (
    ConsumerBusy,
    MetadataError,
    NotAllowed,
    ProducerBusy,
)
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.record import CURSORS_PREFIX, cursor_key
from magnetar.policies import admission, caps, rates
from magnetar.schemas.model import SchemaInfo, SchemaType

KINDS = pytest.mark.parametrize("kind", ["persistent", "non-persistent"])


async def opened(s: Stage, kind: str, local: str = "t") -> Any:
    return await (s.topic(local) if kind == "persistent" else s.nonpersistent(local))


@KINDS
async def test_a_producer_is_let_in_by_the_cap_and_by_its_encryption(kind: str) -> None:
    async with stage() as s:
        topic = await opened(s, kind)
        await s.set(caps.MAX_PRODUCERS, 2, topic)
        await s.producer(topic, name="a")
        topic.check_producer("b", encrypted=False)
        await s.producer(topic, name="b")
        for name in ("c", "d"):
            with pytest.raises(ProducerBusy, match="reached max producers limit"):
                topic.check_producer(name, encrypted=False)
            with pytest.raises(ProducerBusy):
                await s.producer(topic, name=name)
        topic.check_producer("b", encrypted=False)  # takes its own place
        await s.set(caps.MAX_PRODUCERS, 0, topic)
        topic.check_producer("c", encrypted=False)
        await s.set(admission.ENCRYPTION_REQUIRED, True, topic)
        with pytest.raises(MetadataError, match="Encryption is required"):
            topic.check_producer("c", encrypted=False)
        topic.check_producer("c", encrypted=True)
        system = await opened(s, kind, "__change_events")
        system.check_producer("c", encrypted=False)


@KINDS
async def test_required_encryption_disconnects_unencrypted_producers(kind: str) -> None:
    async with stage() as s:
        topic = await opened(s, kind)
        plain, sink = await s.producer(topic)
        secret = new_producer(there := ProducerSink())
        secret.encrypted = True
        await topic.add_producer(secret)
        await s.set(admission.ENCRYPTION_REQUIRED, True, topic)
        assert sink.sent_away == [(plain, None)]
        assert there.told == []
        assert list(topic.producers) == [secret]
        assert plain.closed


@KINDS
async def test_subscription_types_and_numbers_of_consumers(kind: str) -> None:
    async with stage() as s:
        topic = await opened(s, kind)
        await s.set(admission.SUBSCRIPTION_TYPES, ["Shared", "Exclusive"], topic)
        await s.attach(topic, request("a"))
        await s.attach(topic, request("b", sub_type=SubType.Exclusive))
        with pytest.raises(NotAllowed, match="doesn't support Failover sub type"):
            await s.attach(topic, request("c", sub_type=SubType.Failover))
        await s.set(caps.MAX_CONSUMERS, 3, topic)
        await s.attach(topic, request("a"))
        with pytest.raises(ConsumerBusy, match="Topic reached max consumers limit"):
            await s.attach(topic, request("a"))
        with pytest.raises(ConsumerBusy, match="Topic reached max consumers limit"):
            await s.attach(topic, request("c"))
        assert set(topic.subscriptions) == {"a", "b"}  # a refused consumer leaves none
        await s.set(caps.MAX_CONSUMERS, 0, topic)
        await s.set(caps.MAX_SUBSCRIPTIONS, 2, topic)
        with pytest.raises(NotAllowed) as refused:
            await s.attach(topic, request("c"))
        assert refused.value.http_status == 409
        await s.attach(topic, request("__internal"))
        await s.attach(topic, request("a"))
        assert set(topic.subscriptions) == {"a", "b", "__internal"}


@KINDS
async def test_a_cap_below_the_present_number_admits_no_new_subscription_but_the_old_ones(
    kind: str,
) -> None:
    async with stage() as s:
        topic = await opened(s, kind)
        subscriptions = {name: (await s.attach(topic, request(name)))[0] for name in "ab"}
        await s.set(caps.MAX_SUBSCRIPTIONS, 1, topic)
        for name, subscription in subscriptions.items():
            assert (await s.attach(topic, request(name)))[0] is subscription
        with pytest.raises(NotAllowed):
            await s.attach(topic, request("c"))
        assert set(topic.subscriptions) == {"a", "b"}
        await s.set(caps.MAX_SUBSCRIPTIONS, 0, topic)
        await s.set(caps.MAX_CONSUMERS, 3, topic)
        with pytest.raises(ConsumerBusy):
            await s.attach(topic, request("a"))
        assert len(subscriptions["a"].consumers) == 2


@KINDS
async def test_a_consumer_beyond_the_cap_changes_nothing_for_those_attached(kind: str) -> None:
    """Attached even for a moment, it would take over from the active consumer."""
    async with stage() as s:
        topic = await opened(s, kind)
        await s.set(caps.MAX_CONSUMERS, 1, topic)
        asked = request(name="b", sub_type=SubType.Failover)
        asked.spec.priority_level = 1
        subscription, active, sink = await s.attach(topic, asked)
        before = list(sink.active)
        with pytest.raises(ConsumerBusy, match="Topic reached max consumers limit"):
            await s.attach(topic, request(name="a", sub_type=SubType.Failover))
        await turns(20)
        assert list(subscription.consumers) == [active]
        assert sink.active == before


async def test_no_more_consumers_attach_after_a_seek_than_the_topic_may_have() -> None:
    """The seek sends all consumers away, and they come back while it is under way."""
    async with stage() as s:
        topic = await s.topic()
        await s.set(caps.MAX_CONSUMERS, 2, topic)
        subscription, _, _ = await s.attach(topic, request(), permits=0)
        (position,) = await s.publish(topic, "m")
        held = s.store.hold(puts(cursor_key(topic.managed_ledger.name, "s")))
        seeking = asyncio.ensure_future(subscription.seek(Position(*position)))
        await held.reached.wait()
        assert not subscription.consumers
        attaching = [asyncio.ensure_future(s.attach(topic, request())) for _ in range(4)]
        await turns(20)
        held.go.set()
        await seeking
        outcomes = await asyncio.gather(*attaching, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, BaseException)]
        assert len(subscription.consumers) == len(refused) == 2
        assert all(isinstance(each, ConsumerBusy) for each in refused)


async def test_no_more_subscriptions_are_created_at_once_than_the_topic_may_have() -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.set(caps.MAX_SUBSCRIPTIONS, 2, topic)
        held = s.store.hold(puts(CURSORS_PREFIX))
        names = ["a", "b", "c", "__internal", "a"]
        attaching = [asyncio.ensure_future(s.attach(topic, request(name))) for name in names]
        await held.reached.wait()
        held.go.set()
        outcomes = await asyncio.gather(*attaching, return_exceptions=True)
        refused = [isinstance(each, NotAllowed) for each in outcomes]
        assert refused == [False, False, True, False, False]
        assert set(topic.subscriptions) == {"a", "b", "__internal"}
        await topic.delete_subscription("a", force=True)
        await s.attach(topic, request("c"))
        with pytest.raises(NotAllowed):
            await s.attach(topic, request("d"))


async def test_a_subscription_that_could_not_be_created_does_not_count() -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.set(caps.MAX_SUBSCRIPTIONS, 1, topic)
        s.store.lose(puts(CURSORS_PREFIX), lands=False)
        with pytest.raises(MetadataError):
            await s.attach(topic, request("a"))
        s.store.away = False
        await s.attach(topic, request("b"))
        assert set(topic.subscriptions) == {"b"}


@KINDS
async def test_the_load_of_a_topic_counts_both_directions(kind: str) -> None:
    async with stage() as s:
        topic = await opened(s, kind)
        _, one, _ = await s.attach(topic, request("a"))
        _, two, _ = await s.attach(topic, request("b"))
        topic.counters.message_rate_in, topic.counters.bytes_rate_in = 1.0, 10.0
        one.rates.out, one.rates.throughput = 2.0, 20.0
        two.rates.out, two.rates.throughput = 4.0, 40.0
        load = topic.load()
        assert (load.ring_position, load.messages, load.size_bytes) == (
            topic.ring_position,
            7.0,
            70.0,
        )


@KINDS
async def test_a_gate_exists_while_a_policy_limits_publishing(kind: str) -> None:
    async with stage() as s:
        topic = await opened(s, kind)
        assert topic.gate is None
        bound = s.service.settings.producers.message_bytes_max
        for policy, value, none in (
            (caps.MAX_MESSAGE_SIZE, 100, 0),
            (admission.ENCRYPTION_REQUIRED, True, False),
            (rates.PUBLISH_RATE, {"publishThrottlingRateInMsg": 5}, {}),
            (rates.PUBLISH_RATE, {"publishThrottlingRateInByte": 5}, {}),
        ):
            await s.set(policy, value, topic)
            assert topic.gate is not None, policy.name
            assert topic.gate.message_bytes_max == (100 if policy is caps.MAX_MESSAGE_SIZE else 0)
            await s.set(policy, none, topic)
            assert topic.gate is None, policy.name
        await s.set(caps.MAX_MESSAGE_SIZE, bound, topic)
        assert topic.gate is None, "the decoder refuses larger ones"
        await s.set(caps.MAX_MESSAGE_SIZE, bound - 1, topic)
        assert topic.gate is not None


@KINDS
async def test_caps_of_unacked_messages_apply_to_existing_subscriptions(kind: str) -> None:
    async with stage() as s:
        topic = await opened(s, kind)
        subscription, _, _ = await s.attach(topic)
        assert topic.limits is topic._context.subscription_limits
        await s.set(caps.MAX_UNACKED_PER_CONSUMER, 7, topic)
        await s.set(caps.MAX_UNACKED_PER_SUBSCRIPTION, 9, topic)
        await s.set(caps.MAX_CONSUMERS_PER_SUBSCRIPTION, 3, topic)
        for limits in (topic.limits, subscription.limits):
            assert limits.max_unacked_per_consumer == 7
            assert limits.max_unacked_per_subscription == 9
            assert limits.max_consumers == 3
        later, _, _ = await s.attach(topic, request("later"))
        assert later.limits == topic.limits


@pytest.mark.parametrize("allowed", [True, False])
async def test_whether_consumers_make_subscriptions_is_a_policy(allowed: bool) -> None:
    async with stage() as s:
        topic = await s.topic()
        await s.set(
            admission.AUTO_SUBSCRIPTION_CREATION,
            {"allowAutoSubscriptionCreation": allowed},
            topic,
        )
        assert topic.makes_subscriptions is allowed


@KINDS
async def test_a_schema_is_checked_against_the_topics(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        topic = await opened(s, kind)
        asked: list[tuple[object, ...]] = []

        async def for_consumer(name: object, schema: object, *, topic_is_idle: bool) -> None:
            asked.append((name, schema, topic_is_idle))

        async def for_producer(name: object, schema: object) -> bytes:
            asked.append((name, schema))
            return b"7"

        monkeypatch.setattr(topic._context.schemas, "for_consumer", for_consumer)
        monkeypatch.setattr(topic._context.schemas, "for_producer", for_producer)
        schema = SchemaInfo(SchemaType.STRING, b"")
        await topic.check_schema(schema)
        assert await topic.add_schema(schema) == b"7"
        await s.producer(topic)
        await topic.check_schema(schema)
        name = topic.name
        assert asked == [(name, schema, True), (name, schema), (name, schema, False)]


@KINDS
@pytest.mark.parametrize("end", ["drain", "abandon"])
async def test_messages_that_a_rate_holds_back_are_dropped_when_the_topic_ends(
    kind: str, end: str
) -> None:
    """Their clients resend them to the next owner, and their memory is free for other topics."""
    async with stage() as s:
        topic = await opened(s, kind)
        rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
        await s.set(rates.PUBLISH_RATE, rate, topic)
        producer, sink = await s.producer(topic)
        topic.gate.publish(producer, run_of(producer, *"abcd"))
        await turns(60)
        (first,) = [ids for ids, _, _ in sink.receipts]
        assert 0 < len(first) < 4
        assert producer.held is not None
        if end == "drain":
            await topic.drain()
        else:
            topic.abandon()
        assert producer.held is None
        s.clock.advance(60_000)
        await turns(60)
        assert len(sink.receipts) == 1


@KINDS
async def test_messages_that_a_rate_holds_back_wait_while_the_topic_is_suspended(
    kind: str,
) -> None:
    """Their producer has not resent them, so they must be stored when the topic resumes."""
    async with stage() as s:
        topic = await opened(s, kind)
        rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
        await s.set(rates.PUBLISH_RATE, rate, topic)
        producer, sink = await s.producer(topic)
        topic.gate.publish(producer, run_of(producer, *"abcd"))
        await turns(60)
        before = [each for ids, _, _ in sink.receipts for each in ids]
        assert 0 < len(before) < 4
        topic.suspend()
        s.clock.advance(60_000)
        await s.set(rates.PUBLISH_RATE, {}, topic)
        await turns(60)
        assert [each for ids, _, _ in sink.receipts for each in ids] == before
        topic.resume()
        async with asyncio.timeout(20):
            while sum(len(ids) for ids, _, _ in sink.receipts) < 4:
                await turns(1)
        assert [each for ids, _, _ in sink.receipts for each in ids] == [0, 1, 2, 3]
        assert producer.held is None


@KINDS
async def test_a_subscribe_rate_applies_with_its_next_change(kind: str) -> None:
    async with stage() as s:
        topic = await opened(s, kind)

        consumer = request()

        async def subscribes(times: int) -> None:
            """So often it is admitted, and not once more."""
            for _ in range(times):
                subscription, attached, _ = await s.attach(topic, consumer)
                topic.remove_consumer(subscription, attached)
            with pytest.raises(NotAllowed, match="subscribe rate limit"):
                await s.attach(topic, consumer)

        async def allow(times: int, period_s: int) -> None:
            rate = {"subscribeThrottlingRatePerConsumer": times, "ratePeriodInSecond": period_s}
            await s.set(rates.SUBSCRIBE_RATE, rate, topic)

        await allow(1, 30)
        await subscribes(1)
        await allow(3, 30)
        await subscribes(2)
        await allow(2, 600)
        s.clock.advance(31_000)
        await subscribes(0)
        s.clock.advance(570_000)
        await subscribes(2)


# -- names that two want


async def test_a_reader_makes_way_for_the_durable_subscription_of_its_name() -> None:
    """Both began at the same time; the data of the durable one is kept."""
    async with stage() as s:
        topic = await s.topic()
        held = s.store.hold(puts(CURSORS_PREFIX))
        attaching = asyncio.ensure_future(s.attach(topic))
        await held.reached.wait()
        reader, consumer, at = await s.attach(topic, request(durable=False))
        held.go.set()
        subscription, _, sink = await attaching
        assert topic.subscriptions == {"s": subscription}
        assert subscription.cursor.durable
        assert reader.closed
        assert at.closed == [consumer.spec.consumer_id]
        await s.publish(topic, "a")
        await turns(20)
        assert (sink.texts, at.texts) == (["a"], [])


async def test_a_failed_epoch_write_leaves_the_access_of_others() -> None:
    go, stored = asyncio.Event(), list[int]()

    async def store(epoch: int) -> None:
        await go.wait()
        if not epoch:
            raise MetadataError("refused")
        stored.append(epoch)

    registry = ProducerRegistry("t", None, store, TaskSet("test"))
    first = new_producer(ProducerSink(), mode=AccessMode.EXCLUSIVE)
    second = new_producer(ProducerSink(), mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    adding = [asyncio.ensure_future(registry.add(each)) for each in (first, second)]
    await turns(5)
    go.set()
    with pytest.raises(MetadataError):
        await adding[0]
    await adding[1]
    assert (stored, list(registry), second.ready) == ([1], [second], True)
    with pytest.raises(ProducerBusy):
        await registry.add(new_producer(ProducerSink()))


async def test_a_producer_is_shown_with_its_times_and_rates() -> None:
    producer = new_producer(ProducerSink())
    producer.messages_in, producer.bytes_in = 20, 200
    producer.renew_rates(10)
    assert (producer.message_rate_in, producer.bytes_rate_in) == (2.0, 20.0)
    producer.messages_in += 5
    producer.renew_rates(5)
    assert (producer.message_rate_in, producer.bytes_rate_in) == (1.0, 0.0)


async def test_subscriptions_that_begin_at_a_place_keep_it_over_a_restart() -> None:
    async with stage() as s:
        topic = await s.topic()
        await topic.create_subscription("s", EARLIEST, {"a": "1"})
        await s.publish(topic, "a", "b")
        subscription, consumer, _ = await s.attach(topic)
        await turns(20)
        last = topic.managed_ledger.last_confirmed
        subscription.ack_one(consumer, last.ledger_id, 0)
        await s.service.topics.unload(topic.name)
        again = await s.topic()
        found = again.subscriptions["s"]
        assert found.cursor.backlog == 1
        assert dict(found.cursor.properties) == {"a": "1"}
        _, _, sink = await s.attach(again)
        assert sink.texts == ["b"]
