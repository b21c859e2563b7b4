"""Limits that topics share, and those that change at run time: on a clock that passes at once."""

import asyncio

import pytest
from tests.unit.broker.rates.rig import Client, Refused, broker, set_policy
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.flaky_store import LoopClock

from magnetar.broker.dynamic.live_settings import KEY, DynamicValues, LiveSettings
from magnetar.broker.dynamic.settings import effective_parts
from magnetar.broker.policies.store import with_own_rate
from magnetar.broker.rates.chain import blocking, take
from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.service import BrokerService
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import parse_topic
from magnetar.core.tasks import TaskSet
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.policies.lifecycle import MESSAGE_TTL
from magnetar.policies.rates import PUBLISH_RATE, SUBSCRIPTION_DISPATCH_RATE
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

TOPICS = [f"persistent://public/default/t{number}" for number in range(3)]
TOPIC = TOPICS[0]
PERMITS = 100_000


def topic_of(service: BrokerService, name: str = TOPIC) -> PersistentTopic:
    topic = service.topics.loaded(parse_topic(name))
    assert isinstance(topic, PersistentTopic)
    return topic


def subscription_of(service: BrokerService, name: str) -> PersistentSubscription:
    return topic_of(service).subscriptions[name]


async def set_own_rate(service: BrokerService, subscription: str, messages: int | None) -> None:
    rate = messages and {"dispatchThrottlingRateInMsg": messages}
    await service.policies.update(
        parse_topic(TOPIC),
        lambda own: with_own_rate(own, subscription, rate, is_global=False, rates_max=2),
    )
    await asyncio.sleep(0.01)  # the watch reports a deletion


def received(client: Client, begun: float, *consumers: int) -> list[int]:
    """Messages in the first five seconds, by consumer."""
    return [
        sum(begun <= at < begun + 5 for at, _ in client.received[consumer])
        for consumer in consumers
    ]


def test_producers_of_all_topics_share_the_brokers_rate_and_none_starves() -> None:
    async def scenario() -> None:
        settings = compose(BrokerSettings, broker_publish_rate_messages=90)
        async with broker(settings) as service:
            client = Client(service)
            producers = [await client.producer(topic) for topic in TOPICS]
            await set_policy(service, TOPIC, PUBLISH_RATE, {"publishThrottlingRateInMsg": 20})
            begun = asyncio.get_running_loop().time()
            for producer in producers:
                client.publish(producer, range(2_000))
            await asyncio.sleep(11)
            counts = [
                sum(begun + 0.5 <= at < begun + 10.5 for at, _ in client.receipts[producer])
                for producer in producers
            ]
            assert 810 <= sum(counts) <= 990, counts
            assert 100 <= counts[0] <= 220, "the topic's own rate holds, and it gets its turns"
            assert min(counts[1:]) >= 200, counts
            gate = topic_of(service).gate
            assert gate is not None
            sources = [limiter.source for limiter in gate.limiters]
            assert sources[0] == "publishRate"
            assert "brokerPublisherThrottlingMaxMessageRate" in sources[1]
            await service.live.set("brokerPublisherThrottlingMaxMessageRate", "0")
            await asyncio.sleep(0.5)
            assert len(client.receipts[producers[1]]) == 2_000
            assert topic_of(service, TOPICS[1]).gate is None, "nothing is left to pay for"

    virtual(scenario())


def test_two_limiters_with_queues_do_not_pass_their_waiters_to_each_other() -> None:
    async def scenario() -> None:
        wide, narrows = RateLimiter(LoopClock()), [RateLimiter(LoopClock()) for _ in range(2)]
        wide.set(20, 0, 1.0)
        for narrow in narrows:
            narrow.set(12, 0, 1.0)
        sent = [0] * 8

        def sender(number: int) -> None:
            chain = (narrows[number % 2], wide)
            blocker = blocking(chain)
            if blocker is None:
                take(chain, 1, 0)
                sent[number] += 1
                asyncio.get_running_loop().call_soon(go, number)
            else:
                blocker.wait(waiters[number])

        def go(number: int) -> None:
            sender(number)

        waiters = [lambda number=number: sender(number) for number in range(8)]
        for number in range(8):
            go(number)
        await asyncio.sleep(60)
        assert 1_150 <= sum(sent) <= 1_220
        assert min(sent) >= 75, sent
        for limiter in (wide, *narrows):
            for waiter in waiters:
                limiter.forget(waiter)

    virtual(scenario())


def test_consumers_of_all_topics_share_the_brokers_rate_of_dispatch() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            consumers = []
            for topic in TOPICS[:2]:
                consumers.append(await client.consumer(topic, "s"))
                producer = await client.producer(topic)
                client.publish(producer, range(1_000))
            await service.live.set("dispatchThrottlingRateInMsg", "100")
            await asyncio.sleep(0.2)
            begun = asyncio.get_running_loop().time()
            for consumer in consumers:
                client.flow(consumer, PERMITS)
            await asyncio.sleep(6)
            counts = received(client, begun, *consumers)
            assert 450 <= sum(counts) <= 560
            assert min(counts) >= 150
            stats = subscription_of(service, "s").stats()
            assert stats.dispatch_throttled_msg_events_by_broker_limit > 0
            assert stats.dispatch_throttled_msg_events_by_topic_limit == 0
            await service.live.delete("dispatchThrottlingRateInMsg")
            await asyncio.sleep(0.5)
            assert [len(client.received[consumer]) for consumer in consumers] == [1_000, 1_000]
            assert subscription_of(service, "s").dispatcher.throttle is None  # type: ignore[union-attr]

    virtual(scenario())


def test_a_subscriptions_own_rate_precedes_that_for_all_and_ends_with_it() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            consumers = [await client.consumer(TOPIC, name) for name in ("a", "b")]
            producer = await client.producer(TOPIC)
            client.publish(producer, range(1_000))
            await set_policy(
                service, TOPIC, SUBSCRIPTION_DISPATCH_RATE, {"dispatchThrottlingRateInMsg": 50}
            )
            await set_own_rate(service, "a", 20)
            throttle = subscription_of(service, "a").throttle
            assert throttle is not None
            assert [limiter.source for limiter in throttle.limiters] == ["dispatchRate of a"]
            begun = asyncio.get_running_loop().time()
            for consumer in consumers:
                client.flow(consumer, PERMITS)
            await asyncio.sleep(6)
            of_a, of_b = received(client, begun, *consumers)
            assert 90 <= of_a <= 115
            assert 225 <= of_b <= 280
            await set_own_rate(service, "a", None)
            assert [limiter.source for limiter in throttle.limiters] == ["subscriptionDispatchRate"]
            for name in "xy":
                await set_own_rate(service, name, 5)
            with pytest.raises(PreconditionFailed, match="At most 2 subscriptions"):
                await set_own_rate(service, "z", 5)

    virtual(scenario())


def test_shared_consumers_hold_no_more_than_the_brokers_cap() -> None:
    async def scenario() -> None:
        settings = compose(
            BrokerSettings, unacked_per_broker_max=100, unacked_share_when_blocked=0.2
        )
        async with broker(settings) as service:
            client = Client(service)
            large = await client.consumer(TOPIC, "large")
            small = await client.consumer(TOPIC, "small")
            producer = await client.producer(TOPIC)
            client.flow(large, PERMITS)
            client.flow(small, 10)
            client.publish(producer, range(90))
            await asyncio.sleep(1)
            assert len(client.received[large]) == 90
            client.publish(producer, range(90, 400))
            await asyncio.sleep(2)
            held = len(client.received[large])
            assert held > 100, "one check's worth is above the cap"
            assert subscription_of(service, "large").stats().blocked_subscription_on_unacked_msgs
            client.publish(producer, range(400, 420))
            client.flow(small, 5)
            await asyncio.sleep(1)
            assert len(client.received[large]) == held
            assert len(client.received[small]) == 15, "its share is 20"
            (ledger_id, _), *_ = client.positions[producer]
            for _, entry_id in list(client.received[large]):
                client.ack(large, ledger_id, entry_id)
            await asyncio.sleep(2)
            assert len(client.received[large]) > held
            assert service.upkeep.unacked.enabled
            await service.live.set("maxUnackedMessagesPerBroker", "0")
            await asyncio.sleep(2)
            assert not service.upkeep.unacked.enabled
            assert (
                not subscription_of(service, "large").stats().blocked_subscription_on_unacked_msgs
            )

    virtual(scenario())


def test_caps_of_connections_change_at_run_time_and_close_none() -> None:
    async def scenario() -> None:
        async with broker() as service:
            clients = [Client(service) for _ in range(2)]
            await service.live.set("brokerMaxConnectionsPerIp", "3")
            third, fourth = Client(service), Client(service)
            assert [client.closed for client in (*clients, third, fourth)] == [0, 0, 0, 1]
            third.close()
            assert not Client(service).closed
            await service.live.set("brokerMaxConnections", "1")
            assert Client(service, "/10.0.0.2:1").closed

    virtual(scenario())


def test_settings_changed_at_run_time_hold_after_a_restart_and_on_other_brokers() -> None:
    async def scenario() -> None:
        store, tasks = MemoryStore(LoopClock()), TaskSet("test")
        first, second = (LiveSettings(BrokerSettings(), store) for _ in range(2))
        seen: list[int] = []
        for live in (first, second):
            await live.start(tasks)
        second.listen(lambda settings: seen.append(settings.policies.message_ttl_s))
        await first.set("ttlDurationDefaultInSeconds", "60")
        await first.set("maxProducersPerTopic", " 5 ")
        assert first.current.policies.message_ttl_s == 60
        await asyncio.sleep(0.5)
        assert seen == [60, 60]
        assert second.values == {"ttlDurationDefaultInSeconds": "60", "maxProducersPerTopic": " 5 "}
        third = LiveSettings(compose(BrokerSettings, message_ttl_s=7), store)
        await third.start(tasks)
        assert third.current.policies.message_ttl_s == 60
        await first.delete("ttlDurationDefaultInSeconds")
        await asyncio.sleep(0.5)
        assert third.current.policies.message_ttl_s == 7, "as that broker was started"
        await tasks.stop()
        await store.close()

    virtual(scenario())


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("superUserRoles", "a", "Can't update non-dynamic configuration: brokers read super"),
        ("nosuch", "1", "Can't update non-dynamic configuration: brokers read nosuch"),
        ("ttlDurationDefaultInSeconds", "-1", "Invalid dynamic-config value: ttlDurationDefaul"),
        ("allowAutoTopicCreation", "xx", "allowAutoTopicCreation: 'xx' should be true or false"),
        ("defaultRetentionTimeInMinutes", "5", "retention_minutes and retention_size_mb must"),
        ("dispatchThrottlingRateInMsg", "1.5", "should be a whole number"),
    ],
)
def test_what_cannot_change_or_is_not_valid_is_refused(key: str, value: str, reason: str) -> None:
    async def scenario() -> None:
        async with broker() as service:
            with pytest.raises(PreconditionFailed, match=reason):
                await service.live.set(key, value)
            assert await service.store.get(KEY) is None

    virtual(scenario())


def test_a_value_of_another_version_is_ignored_and_the_others_apply() -> None:
    async def scenario() -> None:
        store, tasks = MemoryStore(LoopClock()), TaskSet("test")
        values = {"maxProducersPerTopic": "-9", "later": "x", "ttlDurationDefaultInSeconds": "9"}
        await store.put(KEY, encode(DynamicValues(1, values)))
        live = LiveSettings(BrokerSettings(), store)
        await live.start(tasks)
        assert live.current == compose(BrokerSettings, message_ttl_s=9)
        await store.put(KEY, encode(DynamicValues(2, {"ttlDurationDefaultInSeconds": "1"})))
        await asyncio.sleep(0.5)
        assert live.current.policies.message_ttl_s == 9, "unreadable: nothing changes"
        await tasks.stop()
        await store.close()

    virtual(scenario())


def test_settings_are_confirmed_with_the_store_before_data_is_deleted_by_them() -> None:
    async def scenario() -> None:
        async with broker() as service:
            assert service.policies.confirm_defaults == service.live.confirm
            live = LiveSettings(BrokerSettings(), service.store)  # it follows nothing
            values = DynamicValues(1, {"ttlDurationDefaultInSeconds": "9"})
            await service.store.put(KEY, encode(values))
            await live.confirm()
            assert live.current.policies.message_ttl_s == 9
            await service.policies.confirm(parse_topic(TOPIC))
            assert service.policies.broker_default(MESSAGE_TTL) == 9
            await service.store.delete(KEY)
            await live.confirm()
            await live.confirm()
            assert live.current.policies.message_ttl_s == 0

    virtual(scenario())


def test_values_that_are_valid_only_together_apply_together() -> None:
    values = {"defaultRetentionTimeInMinutes": "5", "defaultRetentionSizeInMB": "7"}
    settings, refused = effective_parts(BrokerSettings(), values)
    assert (settings.storage.retention_minutes, settings.storage.retention_size_mb) == (5, 7)
    assert not refused
    del values["defaultRetentionSizeInMB"]
    settings, refused = effective_parts(BrokerSettings(), values | {"maxProducersPerTopic": "3"})
    assert list(refused) == ["defaultRetentionTimeInMinutes"]
    assert settings == compose(BrokerSettings, producers_per_topic_max=3)


def test_a_changed_default_of_a_policy_reaches_open_topics() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await client.producer(TOPIC)
            await service.live.set("maxProducersPerTopic", "1")
            with pytest.raises(Refused, match="max producers limit"):
                await client.producer(TOPIC)
            await service.live.set("maxPublishRatePerTopicInMessages", "10")
            await asyncio.sleep(0.2)
            gate = topic_of(service).gate
            assert gate is not None
            assert gate.limiter is not None
            assert gate.limiter.limits == (10, 0)

    virtual(scenario())
