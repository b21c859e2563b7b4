"""Rates, caps and admission, set over REST while the official client is connected, without restart.

`tests/unit/broker/rates` checks the numbers on a virtual clock; here clients feel the effect.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pulsar
import pytest
from tests.support.raw_client import RawClient, Refused

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

from .conftest import ConnectClient
from .support import PATIENCE_S, Names, ServerAddress, assert_silent, drain, take, wait_until

TypeOf = type[pulsar.PulsarException]
ANOTHER = "another"


class Scope:
    """A namespace with the topic `t`, and the REST of both."""

    def __init__(self, names: Names, http: httpx.Client) -> None:
        self.http = http
        self.topic, self.other = names.topic("t"), names.topic("other")
        self.namespace = f"/admin/v2/namespaces/{names.path}"
        self.topics = f"/admin/v2/persistent/{names.path}"

    def path(self, level: str) -> str:
        return self.namespace if level == "namespace" else f"{self.topics}/t"

    def set(self, policy: str, value: Any, level: str = "namespace", *, verb: str = "POST") -> None:
        self.http.request(verb, f"{self.path(level)}/{policy}", json=value).raise_for_status()

    def remove(self, policy: str, level: str = "namespace") -> None:
        self.http.delete(f"{self.path(level)}/{policy}").raise_for_status()

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"{self.topics}/t/stats").raise_for_status().json()
        return found

    def metric(self, name: str) -> list[str]:
        page = self.http.get("/metrics").raise_for_status().text
        lines = page.splitlines()
        return [line for line in lines if line.startswith(name + "{") and self.topic in line]


@pytest.fixture
def scope(names: Names, admin: httpx.Client) -> Scope:
    return Scope(names, admin)


def producer_on(client: pulsar.Client, topic: str) -> pulsar.Producer:
    return client.create_producer(topic, batching_enabled=False)


def publish(producer: pulsar.Producer, count: int) -> list[pulsar.Result]:
    """Sends without waiting; the results as they come."""
    results: list[pulsar.Result] = []
    for number in range(count):
        producer.send_async(b"%d" % number, lambda result, _: results.append(result))
    return results


def refused(what: Callable[[], Any], *errors: TypeOf) -> bool:
    """Whether it is refused with one of the errors. What is not, is taken back: it came too early,
    and would be in the way of the next try, or take its messages."""
    try:
        attached = what()
    except errors:
        return True
    if isinstance(attached, pulsar.Consumer) and attached.subscription_name() == ANOTHER:
        attached.unsubscribe()
    else:
        attached.close()
    return False


# -- rates


def test_publish_rate(scope: Scope, client: pulsar.Client) -> None:
    slow, fast = producer_on(client, scope.topic), producer_on(client, scope.other)
    slow.send(b"first")
    # So few a second that no stall of the machine lets half of them through.
    scope.set("publishRate", {"publishThrottlingRateInMsg": 1}, "topic")
    results = publish(slow, 200)
    for _ in range(100):
        fast.send(b"not held up")
    assert len(results) < 100
    assert scope.stats()["publishRateLimitedTimes"] > 0
    (line,) = scope.metric("pulsar_publish_rate_limit_times")
    assert not line.endswith(" 0")
    scope.remove("publishRate", "topic")
    wait_until(lambda: results == [pulsar.Result.Ok] * 200, what="all receipts")


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate"])
@pytest.mark.parametrize(
    "kind",
    [
        pulsar.ConsumerType.Exclusive,
        pulsar.ConsumerType.Shared,
        pulsar.ConsumerType.Failover,
        pulsar.ConsumerType.KeyShared,
    ],
)
def test_dispatch_rates(
    scope: Scope, client: pulsar.Client, kind: pulsar.ConsumerType, policy: str
) -> None:
    consumer = client.subscribe(scope.topic, "s", consumer_type=kind)
    producer = producer_on(client, scope.topic)
    producer.send(b"first")
    take(consumer, 1, ack=True)
    scope.set(policy, {"dispatchThrottlingRateInMsg": 2, "ratePeriodInSecond": 60}, "topic")
    results = publish(producer, 20)
    wait_until(lambda: len(results) == 20, what="receipts")
    seen = len(take(consumer, 1)) + len(drain(consumer))
    assert seen <= 3
    reason = "subscription" if policy.startswith("subscription") else "topic"
    events = scope.stats()["subscriptions"]["s"]
    assert events[f"dispatchThrottledMsgEventsBy{reason.title()}Limit"] > 0
    (line,) = scope.metric("pulsar_subscription_dispatch_throttled_msg_events")
    assert f'reason="{reason}"' in line
    scope.remove(policy, "topic")
    take(consumer, 20 - seen)


async def test_subscribe_rate(scope: Scope, server: ServerAddress) -> None:
    """By hand: the official client takes another consumer id for each `subscribe`."""
    address = urlsplit(server.service_url)
    client = await RawClient.connect(address.hostname or "", address.port or 0)

    async def subscribe() -> None:
        await client.consumer(scope.topic, "s", consumer_id=7, consumer_name="n")
        await client.request(CommandType.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=7))

    for _ in range(3):
        await subscribe()
    scope.set("subscribeRate", {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 60})

    async def again_and_again() -> None:
        while True:  # the namespace's topics are told a moment later
            await subscribe()

    with pytest.raises(Refused) as answer:
        await asyncio.wait_for(again_and_again(), PATIENCE_S)
    assert answer.value.code == pb.NotAllowedError
    assert answer.value.text == "Subscribe limited by subscribe rate limit per consumer."
    scope.remove("subscribeRate")
    await client.close()


# -- caps: the policy of a namespace and a topic, its value, what is refused then, and with what

Attach = Callable[[pulsar.Client, str], Any]


def another_producer(client: pulsar.Client, topic: str) -> pulsar.Producer:
    return client.create_producer(topic)


def another_consumer(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    return client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)


def another_subscription(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    return client.subscribe(topic, ANOTHER)


CAPS: list[tuple[str, str, Any, Attach, TypeOf]] = [
    ("maxProducersPerTopic", "maxProducers", 1, another_producer, pulsar.ProducerBusy),
    ("maxConsumersPerTopic", "maxConsumers", 1, another_consumer, pulsar.ConsumerBusy),
    ("maxConsumersPerSubscription", "maxConsumersPerSubscription", 1, another_consumer,
     pulsar.ConsumerBusy),
    ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", 1, another_subscription,
     pulsar.NotAllowedError),
    ("subscriptionTypesEnabled", "subscriptionTypesEnabled", ["Failover"], another_consumer,
     pulsar.NotAllowedError),
    # The client takes this for something that passes, and tries until its time is over.
    ("autoSubscriptionCreation", "autoSubscriptionCreation",
     {"allowAutoSubscriptionCreation": False}, another_subscription, pulsar.Timeout),
]  # fmt: skip


@pytest.mark.parametrize("level", ["namespace", "topic"])
@pytest.mark.parametrize("case", CAPS, ids=lambda case: case[0])
def test_caps(
    scope: Scope, connect: ConnectClient, case: tuple[str, str, Any, Attach, TypeOf], level: str
) -> None:
    client = connect()
    of_namespace, of_topic, value, attach, error = case
    # Only who waits for the end of its time has little of it.
    asking = connect(operation_timeout_seconds=1) if error is pulsar.Timeout else client
    policy = of_namespace if level == "namespace" else of_topic
    producer, consumer = producer_on(client, scope.topic), another_consumer(client, scope.topic)
    scope.set(policy, value, level)
    wait_until(lambda: refused(lambda: attach(asking, scope.topic), error), what="the cap")
    producer.send(b"who is there stays")
    take(consumer, 1)
    scope.remove(policy, level)
    wait_until(lambda: not refused(lambda: attach(asking, scope.topic), error), what="its removal")


@pytest.mark.parametrize(
    "policy", ["maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription"]
)
def test_unacked_caps(scope: Scope, client: pulsar.Client, policy: str) -> None:
    consumer = client.subscribe(scope.topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = producer_on(client, scope.topic)
    for _ in range(5):
        producer.send(b"before")
    held = take(consumer, 5)
    scope.set(policy, 5)

    def blocked() -> bool:
        subscription = scope.stats()["subscriptions"]["s"]
        if policy.endswith("Consumer"):
            return bool(subscription["consumers"][0]["blockedConsumerOnUnackedMsgs"])
        return bool(subscription["blockedSubscriptionOnUnackedMsgs"])

    wait_until(blocked, what="the cap to hold")
    producer.send(b"after")
    assert_silent(consumer)
    for message in held[:3]:
        consumer.acknowledge(message)
    assert take(consumer, 1)[0].data() == b"after"


# -- what comes to be


def test_topics_of_a_namespace(scope: Scope, client: pulsar.Client) -> None:
    producer_on(client, scope.topic)
    scope.set("maxTopicsPerNamespace", 3)
    partitions = f"{scope.topics}/p/partitions"

    def capped() -> bool:
        answer = scope.http.put(partitions, content="3")
        if answer.is_success:
            scope.http.delete(partitions).raise_for_status()
        return answer.status_code == 412

    wait_until(capped, what="the cap")
    scope.http.put(partitions, content="2").raise_for_status()
    with pytest.raises(pulsar.NotAllowedError):
        producer_on(client, scope.other)
    answer = scope.http.put(f"{scope.topics}/other")
    reason = "Exceed maximum number of topics in namespace."
    assert (answer.status_code, answer.json()["reason"]) == (409, reason)
    scope.remove("maxTopicsPerNamespace")
    wait_until(
        lambda: not refused(lambda: producer_on(client, scope.other), pulsar.NotAllowedError),
        what="its removal",
    )


def test_automatic_topics(scope: Scope, client: pulsar.Client) -> None:
    producer_on(client, scope.topic)
    scope.set("autoTopicCreation", {"allowAutoTopicCreation": False})

    def not_made() -> bool:
        """Tried with a topic that nobody has made: the next time with another."""
        scope.other += "-x"
        return refused(lambda: producer_on(client, scope.other), pulsar.TopicNotFound)

    wait_until(not_made, what="the policy")
    several = {"topicType": "partitioned", "defaultNumPartitions": 3}
    scope.set("autoTopicCreation", {"allowAutoTopicCreation": True, **several})
    wait_until(lambda: not not_made(), what="the change")
    assert len(client.get_topic_partitions(scope.other)) == 3


# -- messages and schemas


def test_message_size(scope: Scope, client: pulsar.Client) -> None:
    producer = producer_on(client, scope.topic)
    producer.send(b"x" * 2_000)
    scope.set("maxMessageSize", 1_000, "topic")
    wait_until(
        lambda: scope.http.get(f"{scope.topics}/t/maxMessageSize").text == "1000",
        what="the policy",
    )
    results: list[pulsar.Result] = []
    producer.send_async(b"x" * 2_000, lambda result, _: results.append(result))
    producer_on(client, scope.topic).send(b"small")
    assert results != [pulsar.Result.Ok]


def test_encryption(scope: Scope, connect: ConnectClient) -> None:
    """The client takes the refusal for something that passes, and tries until its time is over."""
    producer_on(connect(), scope.topic).send(b"plain")
    client = connect(operation_timeout_seconds=1)
    scope.set("encryptionRequired", True)
    wait_until(lambda: not scope.stats()["publishers"], what="the producer to be sent away")

    def kept_out() -> bool:
        return refused(lambda: producer_on(client, scope.topic), pulsar.Timeout)

    assert kept_out()
    scope.set("encryptionRequired", False)
    wait_until(lambda: not kept_out(), what="its removal")


def test_schema_validation(scope: Scope, client: pulsar.Client) -> None:
    client.create_producer(scope.topic, schema=pulsar.schema.StringSchema())
    producer_on(client, scope.topic).send(b"without")

    def kept_out() -> bool:
        return refused(lambda: producer_on(client, scope.topic), pulsar.IncompatibleSchema)

    scope.set("schemaValidationEnforced", True, "topic")
    wait_until(kept_out, what="the policy")
    scope.set("schemaValidationEnforced", False, "topic")
    wait_until(lambda: not kept_out(), what="its removal")


class Numbered(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()


def test_schema_strategy_of_a_topic(scope: Scope, client: pulsar.Client) -> None:
    client.create_producer(scope.topic, schema=pulsar.schema.StringSchema())

    def kept_out() -> bool:
        schema = pulsar.schema.JsonSchema(Numbered)
        return refused(
            lambda: client.create_producer(scope.topic, schema=schema), pulsar.IncompatibleSchema
        )

    assert kept_out()
    scope.set("schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE", "topic", verb="PUT")
    wait_until(lambda: not kept_out(), what="the policy")
