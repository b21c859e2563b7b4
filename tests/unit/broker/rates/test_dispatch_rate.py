"""Dispatch rates, through real dispatchers, over a clock whose time passes at once."""

import asyncio
from typing import Any

import pytest
from tests.unit.broker.rates.rig import Client, broker, set_namespace_policy, set_policy
from tests.unit.ledger.cluster import virtual

from magnetar.broker.service import BrokerService
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.names import parse_topic
from magnetar.policies.policy import Policy
from magnetar.policies.rates import DISPATCH_RATE, SUBSCRIPTION_DISPATCH_RATE
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb import PulsarApi_pb2 as pb

TOPIC = "persistent://public/default/t"
EXCLUSIVE, SHARED = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared
FAILOVER, KEY_SHARED = pb.CommandSubscribe.Failover, pb.CommandSubscribe.Key_Shared
TYPES = [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED]
BOTH = [DISPATCH_RATE, SUBSCRIPTION_DISPATCH_RATE]
PERMITS = 100_000


def rate(
    messages: int = -1, size_bytes: int = -1, *, period_s: int = 1, relative: bool = False
) -> dict[str, object]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size_bytes,
        "relativeToPublishRate": relative,
        "ratePeriodInSecond": period_s,
    }


def subscription_of(service: BrokerService, name: str = "s") -> PersistentSubscription:
    topic = service.topics.loaded(parse_topic(TOPIC))
    assert isinstance(topic, PersistentTopic)
    return topic.subscriptions[name]


async def backlog(client: Client, count: int, **more: Any) -> None:
    """Publishes messages for the subscription `s`, which has no consumer."""
    consumer = await client.consumer(TOPIC, "s")
    attachment = client.session.consumers.pop(consumer)
    attachment.detach()
    producer = await client.producer(TOPIC)
    client.publish(producer, range(count), **more)
    await asyncio.sleep(0.1)
    assert len(client.receipts[producer]) == count


def counts(client: Client, consumer: int, begun: float, *sinces: float) -> list[int]:
    """Messages in the five seconds from each of these."""
    return [
        sum(begun + since <= at < begun + since + 5 for at, _ in client.received[consumer])
        for since in sinces
    ]


@pytest.mark.parametrize("policy", BOTH, ids=lambda policy: policy.name)
@pytest.mark.parametrize("kind", TYPES)
def test_a_backlog_comes_at_the_rate(kind: Any, policy: Policy) -> None:
    async def scenario() -> None:
        async with broker(compose(BrokerSettings, failover_delay_ms=0)) as service:
            client = Client(service)
            await backlog(client, 1_500)
            await set_policy(service, TOPIC, policy, rate(100))
            consumer = await client.consumer(TOPIC, "s", kind)
            begun = asyncio.get_running_loop().time()
            client.flow(consumer, PERMITS)
            await asyncio.sleep(16)
            for count in counts(client, consumer, begun, 0.0, 2.5, 7.0):
                assert 450 <= count <= 550
            entries = [entry_id for _, entry_id in client.received[consumer]]
            assert entries == list(range(1_500))

    virtual(scenario())


@pytest.mark.parametrize("kind", TYPES)
def test_a_rate_set_while_consumers_are_attached_holds_at_once(kind: Any) -> None:
    async def scenario() -> None:
        async with broker(compose(BrokerSettings, failover_delay_ms=0)) as service:
            client = Client(service)
            consumer = await client.consumer(TOPIC, "s", kind)
            client.flow(consumer, PERMITS)
            producer = await client.producer(TOPIC)
            client.publish(producer, range(500))
            await asyncio.sleep(0.1)
            assert len(client.received[consumer]) == 500
            await set_policy(service, TOPIC, SUBSCRIPTION_DISPATCH_RATE, rate(10))
            client.publish(producer, range(500, 900))
            await asyncio.sleep(10)
            assert 600 <= len(client.received[consumer]) <= 606
            await set_policy(service, TOPIC, SUBSCRIPTION_DISPATCH_RATE, None)
            await asyncio.sleep(0.1)
            assert len(client.received[consumer]) == 900
            assert subscription_of(service).dispatcher.throttle is None  # type: ignore[union-attr]

    virtual(scenario())


def test_bytes_batches_and_periods_count() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await backlog(client, 200, messages=50, size=5_000)
            consumer = await client.consumer(TOPIC, "s")
            await set_policy(service, TOPIC, SUBSCRIPTION_DISPATCH_RATE, rate(2_000, period_s=4))
            client.flow(consumer, PERMITS)
            await asyncio.sleep(8.2)
            # 500 messages a second are 10 entries; half a period's burst, and one entry, on top.
            assert 80 <= len(client.received[consumer]) <= 103
            seen = len(client.received[consumer])
            await set_policy(service, TOPIC, SUBSCRIPTION_DISPATCH_RATE, rate(-1, 50_600))
            await asyncio.sleep(5)
            assert 45 <= len(client.received[consumer]) - seen <= 57

    virtual(scenario())


def test_a_topic_s_rate_is_shared_fairly_by_its_subscriptions() -> None:
    async def scenario() -> None:
        async with broker() as service:
            await set_namespace_policy(service, DISPATCH_RATE, rate(100))
            client = Client(service)
            consumers = [await client.consumer(TOPIC, f"s{n}") for n in range(4)]
            for consumer in consumers:
                client.flow(consumer, PERMITS)
            producer = await client.producer(TOPIC)
            client.publish(producer, range(2_000))
            await asyncio.sleep(10)
            got = [len(client.received[consumer]) for consumer in consumers]
            assert 950 <= sum(got) <= 1_060
            assert min(got) >= 0.6 * max(got), got
            stats = subscription_of(service, "s0").stats()
            assert stats.dispatch_throttled_msg_events_by_topic_limit > 0
            assert stats.dispatch_throttled_msg_events_by_subscription_limit == 0
            assert stats.dispatch_throttled_bytes_events_by_topic_limit == 0

    virtual(scenario())


def test_the_smaller_of_both_rates_holds_and_is_counted() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await backlog(client, 1_000)
            await set_policy(service, TOPIC, DISPATCH_RATE, rate(1_000))
            await set_policy(service, TOPIC, SUBSCRIPTION_DISPATCH_RATE, rate(20))
            consumer = await client.consumer(TOPIC, "s")
            client.flow(consumer, PERMITS)
            await asyncio.sleep(10)
            assert 195 <= len(client.received[consumer]) <= 215
            stats = subscription_of(service).stats()
            assert stats.dispatch_throttled_msg_events_by_subscription_limit > 0
            assert stats.dispatch_throttled_msg_events_by_topic_limit == 0

    virtual(scenario())


@pytest.mark.parametrize("tailing", [True, False])
def test_tailing_consumers_are_throttled_by_default(tailing: bool) -> None:
    async def scenario() -> None:
        settings = compose(BrokerSettings, dispatch_rate_for_tailing=tailing)
        async with broker(settings) as service:
            await set_namespace_policy(service, SUBSCRIPTION_DISPATCH_RATE, rate(10))
            client = Client(service)
            consumer = await client.consumer(TOPIC, "s")
            client.flow(consumer, PERMITS)
            client.on_message = lambda who, where: client.ack(who, where.ledgerId, where.entryId)
            producer = await client.producer(TOPIC)
            for number in range(300):
                client.publish(producer, range(number, number + 1))
                await asyncio.sleep(0.01)
            got = len(client.received[consumer])
            assert got <= 40 if tailing else got == 300

    virtual(scenario())


def test_a_backlog_is_throttled_even_if_tailing_consumers_are_not() -> None:
    async def scenario() -> None:
        async with broker(compose(BrokerSettings, dispatch_rate_for_tailing=False)) as service:
            client = Client(service)
            await backlog(client, 3_000)
            await set_policy(service, TOPIC, SUBSCRIPTION_DISPATCH_RATE, rate(100))
            consumer = await client.consumer(TOPIC, "s")
            client.flow(consumer, PERMITS)
            await asyncio.sleep(10)
            assert 995 <= len(client.received[consumer]) <= 1_060

    virtual(scenario())


def test_a_rate_relative_to_publishing_lets_a_backlog_shrink() -> None:
    async def scenario() -> None:
        async with broker() as service:
            await set_namespace_policy(service, SUBSCRIPTION_DISPATCH_RATE, rate(10, relative=True))
            client = Client(service)
            consumer = await client.consumer(TOPIC, "s")
            client.flow(consumer, PERMITS)
            producer = await client.producer(TOPIC)
            for second in range(40):  # a hundred a second
                for tenth in range(10):
                    first = second * 100 + tenth * 10
                    client.publish(producer, range(first, first + 10))
                    await asyncio.sleep(0.1)
                if second == 14:
                    before = len(client.received[consumer])
            got = len(client.received[consumer]) - before
            assert 2_600 <= got <= 2_850  # 110 a second for 25 s

    virtual(scenario())


def test_nothing_wakes_a_dispatcher_that_has_nothing_to_hand_over() -> None:
    async def scenario() -> None:
        async with broker() as service:
            await set_namespace_policy(service, DISPATCH_RATE, rate(100))
            client = Client(service)
            consumer = await client.consumer(TOPIC, "s")
            client.flow(consumer, PERMITS)
            await asyncio.sleep(5)
            throttle = subscription_of(service).throttle
            assert throttle is not None
            assert throttle.topic is not None
            assert throttle.topic.waiting == 0
            assert throttle.by_topic.messages == 0

    virtual(scenario())


def test_redelivered_messages_count_too() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client, other = Client(service), Client(service, "/10.0.0.2:1")
            await backlog(client, 500)
            first = await client.consumer(TOPIC, "s")
            client.flow(first, PERMITS)
            await asyncio.sleep(0.1)
            assert len(client.received[first]) == 500
            await set_policy(service, TOPIC, SUBSCRIPTION_DISPATCH_RATE, rate(50))
            second = await other.consumer(TOPIC, "s")
            other.flow(second, PERMITS)
            client.close()
            await asyncio.sleep(5)
            assert 245 <= len(other.received[second]) <= 276
            await asyncio.sleep(7)
            assert len(other.received[second]) == 500

    virtual(scenario())
