"""Caps apply to clients that attach, never to attached ones; refusals are Pulsar's."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from tests.unit.broker.rates.rig import (
    NAMESPACE,
    Client,
    Refused,
    broker,
    set_namespace_policy,
    set_policy,
)
from tests.unit.ledger.cluster import virtual

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MagnetarError, ServerError
from magnetar.core.ids import EARLIEST
from magnetar.core.names import TopicName, parse_topic
from magnetar.policies import admission, caps, rates
from magnetar.policies.policy import Policy
from magnetar.schemas.model import SchemaInfo, SchemaType
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

TOPIC = "persistent://public/default/t"
PASSING = "non-persistent://public/default/t"
SYSTEM = "persistent://public/default/__change_events"
SHARED, EXCLUSIVE = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive

_numbers = count()

Attach = Callable[[Client, str], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """`policy` at `value` refuses another `attach` where one was done before."""

    policy: Policy
    value: object
    attach: Attach
    code: ServerError
    text: str
    none: object = 0
    """A value that limits nothing."""


def _producer(client: Client, topic: str) -> Awaitable[Any]:
    return client.producer(topic)


def _consumer(client: Client, topic: str) -> Awaitable[Any]:
    return client.consumer(topic, "s")


def _subscription(client: Client, topic: str) -> Awaitable[Any]:
    return client.consumer(topic, f"s{next(_numbers)}")


def _same_consumer(client: Client, topic: str) -> Awaitable[Any]:
    async def again() -> None:
        await client.consumer(topic, "s", consumer_id=77, consumer_name="n")
        await client.request(CommandType.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=77))

    return again()


CASES = [
    Case(caps.MAX_PRODUCERS, 1, _producer, ServerError.PRODUCER_BUSY,
         "Topic '{topic}' reached max producers limit"),
    Case(caps.MAX_CONSUMERS, 1, _consumer, ServerError.CONSUMER_BUSY,
         "Topic reached max consumers limit"),
    Case(caps.MAX_CONSUMERS_PER_SUBSCRIPTION, 1, _consumer, ServerError.CONSUMER_BUSY,
         "Subscription reached max consumers limit"),
    Case(caps.MAX_SUBSCRIPTIONS, 1, _subscription, ServerError.NOT_ALLOWED_ERROR,
         "Exceed the maximum number of subscriptions of the topic: {topic}"),
    Case(admission.SUBSCRIPTION_TYPES, ["Exclusive"], _consumer, ServerError.NOT_ALLOWED_ERROR,
         "Topic[{{{topic}}}] doesn't support Shared sub type!", none=[]),
    Case(rates.SUBSCRIBE_RATE,
         {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 30}, _same_consumer,
         ServerError.NOT_ALLOWED_ERROR, "Subscribe limited by subscribe rate limit per consumer.",
         none={"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 30}),
]  # fmt: skip


async def attach_and_hear(case: Case, client: Client, topic: str) -> Refused | None:
    try:
        await case.attach(client, topic)
    except Refused as refused:
        return refused
    return None


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
@pytest.mark.parametrize("level", ["namespace", "topic"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.policy.name)
def test_a_cap_applies_to_the_next_client(case: Case, level: str, topic: str) -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await case.attach(client, topic)
            await case.attach(client, topic)

            async def set_to(value: object) -> None:
                if level == "namespace":
                    await set_namespace_policy(service, case.policy, value)
                else:
                    await set_policy(service, topic, case.policy, value)

            await set_to(case.value)
            if case.policy is rates.SUBSCRIBE_RATE:
                await case.attach(client, topic)  # what came before is not counted
            refused = await attach_and_hear(case, client, topic)
            assert refused is not None
            assert (refused.code, refused.text) == (case.code, case.text.format(topic=topic))
            assert not client.sent_away  # attached clients stay
            await set_to(case.none)
            await case.attach(client, topic)

    virtual(scenario())


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case.policy.name)
def test_a_cap_admits_its_number_of_clients(case: Case, topic: str) -> None:
    async def scenario() -> None:
        async with broker() as service:
            await set_namespace_policy(service, case.policy, 2)
            client = Client(service)
            answers = [await attach_and_hear(case, client, topic) for _ in range(3)]
            assert answers[:2] == [None, None]
            assert answers[2] is not None
            assert answers[2].code == case.code

    virtual(scenario())


def test_system_topics_need_no_encryption() -> None:
    async def scenario() -> None:
        async with broker() as service:
            await set_namespace_policy(service, admission.ENCRYPTION_REQUIRED, True)
            client = Client(service)
            await client.producer(SYSTEM)
            with pytest.raises(Refused, match="Encryption is required"):
                await client.producer(TOPIC)

    virtual(scenario())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.policy.name)
def test_system_topics_are_exempt(case: Case) -> None:
    async def scenario() -> None:
        async with broker() as service:
            await set_namespace_policy(service, case.policy, case.value)
            client = Client(service)
            for _ in range(3):
                await case.attach(client, SYSTEM)

    virtual(scenario())


def test_the_broker_s_own_caps_hold_where_no_policy_does() -> None:
    async def scenario() -> None:
        settings = compose(
            BrokerSettings,
            producers_per_topic_max=1,
            consumers_per_subscription_max=1,
            subscribe_rate=1,
        )
        async with broker(settings) as service:
            client = Client(service)
            await client.producer(TOPIC)
            await client.consumer(TOPIC, "s", consumer_id=5, consumer_name="n")
            for case in (CASES[0], CASES[2]):
                assert await attach_and_hear(case, client, TOPIC) is not None
            await set_policy(service, TOPIC, caps.MAX_PRODUCERS, 0)
            await client.producer(TOPIC)

    virtual(scenario())


def test_a_producer_that_reconnects_replaces_itself() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await client.producer(TOPIC, producer_name="a")
            await set_policy(service, TOPIC, caps.MAX_PRODUCERS, 1)
            with pytest.raises(Refused) as refused:  # alive elsewhere: not its place
                await client.producer(TOPIC, producer_name="a")
            assert "already connected" in refused.value.text
            with pytest.raises(Refused, match="max producers"):
                await client.producer(TOPIC, producer_name="b")

    virtual(scenario())


def test_existing_and_internal_subscriptions_are_exempt_from_the_cap() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await client.consumer(TOPIC, "s")
            await set_policy(service, TOPIC, caps.MAX_SUBSCRIPTIONS, 1)
            await client.consumer(TOPIC, "s")
            await client.consumer(TOPIC, "__compaction")
            topic = await service.topics.get_or_open(parse_topic(TOPIC), create=False)
            assert isinstance(topic, PersistentTopic)
            with pytest.raises(MagnetarError, match="Exceed the maximum") as refused:
                await topic.create_subscription("r", EARLIEST, {})
            assert refused.value.http_status == 409
            with pytest.raises(Refused, match="Exceed the maximum"):
                await client.consumer(TOPIC, "reader", EXCLUSIVE, durable=False)

    virtual(scenario())


@pytest.mark.parametrize("policy", [
    caps.MAX_UNACKED_PER_CONSUMER, caps.MAX_UNACKED_PER_SUBSCRIPTION,
], ids=lambda policy: policy.name)  # fmt: skip
@pytest.mark.parametrize("kind", [SHARED, pb.CommandSubscribe.Key_Shared])
def test_unacked_caps_hold_at_once_for_those_attached(kind: Any, policy: Policy) -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            acks: list[tuple[int, Any]] = []
            client.on_message = lambda who, where: acks.append((who, where))
            consumer = await client.consumer(TOPIC, "s", kind)
            client.flow(consumer, 1_000)
            producer = await client.producer(TOPIC)
            client.publish(producer, range(50))
            await asyncio.sleep(0.1)
            await set_policy(service, TOPIC, policy, 40)
            client.publish(producer, range(50, 100))
            await asyncio.sleep(0.1)
            assert len(client.received[consumer]) == 50
            for who, where in acks[:29]:
                client.ack(who, where.ledgerId, where.entryId)
            await asyncio.sleep(0.1)
            assert len(client.received[consumer]) == 50
            who, where = acks[29]
            client.ack(who, where.ledgerId, where.entryId)  # half of it is free
            await asyncio.sleep(0.1)
            assert len(client.received[consumer]) == 70
            await set_policy(service, TOPIC, policy, 60)
            await asyncio.sleep(0.1)
            assert len(client.received[consumer]) == 90
            await set_policy(service, TOPIC, policy, 0)
            await asyncio.sleep(0.1)
            assert len(client.received[consumer]) == 100

    virtual(scenario())


# -- auto-creation


def name(local: str, domain: str = "persistent") -> TopicName:
    return parse_topic(f"{domain}://public/default/{local}")


def test_a_namespace_holds_no_more_topics_than_its_cap() -> None:
    async def scenario() -> None:
        async with broker() as service:
            topics, client = service.topics, Client(service)
            await client.producer(TOPIC)
            await set_namespace_policy(service, caps.MAX_TOPICS, 3)
            text = "Exceed maximum number of topics in namespace."
            with pytest.raises(MagnetarError, match=text) as refused:
                await topics.create_partitioned(name("p3"), 3, {})
            assert refused.value.http_status == 412
            assert await service.resources.partitions(name("p3")) == 0
            await topics.create_partitioned(name("p2"), 2, {})
            with pytest.raises(Refused) as by_use:
                await client.producer(str(name("another")))
            assert (by_use.value.code, by_use.value.text) == (pb.NotAllowedError, text)
            with pytest.raises(MagnetarError, match=text) as created:
                await topics.create(name("another"), {})
            assert created.value.http_status == 409
            # Existing, non-persistent and system topics are exempt.
            await client.producer(TOPIC)
            await client.producer(str(name("p2-partition-1")))
            await client.producer(str(name("another", "non-persistent")))
            await client.producer(SYSTEM)
            await topics.delete(name("p2-partition-0"), force=True)
            await client.producer(str(name("another")))

    virtual(scenario())


def test_concurrent_creations_do_not_exceed_the_cap() -> None:
    async def scenario() -> None:
        async with broker() as service:
            await set_namespace_policy(service, caps.MAX_TOPICS, 4)
            client = Client(service)
            done = await asyncio.gather(
                *(client.producer(str(name(f"t{number}"))) for number in range(12)),
                return_exceptions=True,
            )
            assert sum(isinstance(each, Refused) for each in done) == 8
            assert len(await service.topics.names(NAMESPACE, "persistent")) == 4

    virtual(scenario())


@pytest.mark.parametrize("broker_says", [True, False])
def test_a_namespace_decides_on_auto_creation_of_topics(broker_says: bool) -> None:
    async def scenario() -> None:
        async with broker(compose(BrokerSettings, auto_topic_creation=broker_says)) as service:
            client = Client(service)
            allowed = {"allowAutoTopicCreation": not broker_says, "topicType": "non-partitioned"}
            if not broker_says:
                with pytest.raises(Refused):
                    await client.producer(TOPIC)
                await set_namespace_policy(service, admission.AUTO_TOPIC_CREATION, allowed)
                await client.producer(TOPIC)
                return
            await set_namespace_policy(service, admission.AUTO_TOPIC_CREATION, allowed)
            for attach in (client.producer(TOPIC), client.consumer(TOPIC, "s")):
                with pytest.raises(Refused) as refused:
                    await attach
                assert refused.value.code == pb.TopicNotFound
            found = await client.request(
                CommandType.PARTITIONED_METADATA,
                pb.CommandPartitionedTopicMetadata(
                    topic=TOPIC, metadata_auto_creation_enabled=True
                ),
            )
            assert found.error == pb.TopicNotFound

    virtual(scenario())


def test_a_namespace_decides_on_auto_creation() -> None:
    async def scenario() -> None:
        async with broker(compose(BrokerSettings, default_partitions=2)) as service:
            client = Client(service)
            for partitions in (3, 1):
                value = {
                    "allowAutoTopicCreation": True,
                    "topicType": "partitioned",
                    "defaultNumPartitions": partitions,
                }
                await set_namespace_policy(service, admission.AUTO_TOPIC_CREATION, value)
                found = await client.request(
                    CommandType.PARTITIONED_METADATA,
                    pb.CommandPartitionedTopicMetadata(
                        topic=f"{TOPIC}-{partitions}", metadata_auto_creation_enabled=True
                    ),
                )
                assert found.partitions == partitions

    virtual(scenario())


@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_auto_creation_of_subscriptions_follows_the_policy(level: str) -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await client.producer(TOPIC)
            await client.consumer(TOPIC, "there")
            refused_value = {"allowAutoSubscriptionCreation": False}
            if level == "namespace":
                policy = admission.AUTO_SUBSCRIPTION_CREATION
                await set_namespace_policy(service, policy, refused_value)
            else:
                policy = admission.AUTO_SUBSCRIPTION_CREATION
                await set_policy(service, TOPIC, policy, refused_value)
            await client.consumer(TOPIC, "there")
            with pytest.raises(Refused, match="Subscription does not exist") as refused:
                await client.consumer(TOPIC, "s")
            assert refused.value.code == pb.SubscriptionNotFound
            with pytest.raises(Refused, match="auto subscription creation is not allowed"):
                await client.producer(TOPIC, initial_subscription_name="i")
            await client.consumer(TOPIC, "reader", EXCLUSIVE, durable=False)

    virtual(scenario())


# -- schemas


STRING = SchemaInfo(SchemaType.STRING, b"")


@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_a_producer_without_a_schema_is_refused_where_one_is_enforced(level: str) -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await client.producer(TOPIC)
            topic = await service.topics.get_or_open(parse_topic(TOPIC), create=False)
            await topic.add_schema(STRING)
            await client.producer(TOPIC)
            if level == "namespace":
                await set_namespace_policy(service, admission.SCHEMA_VALIDATION, True)
            else:
                await set_policy(service, TOPIC, admission.SCHEMA_VALIDATION, True)
            with pytest.raises(Refused, match="without a schema") as refused:
                await client.producer(TOPIC)
            assert refused.value.code == pb.IncompatibleSchema

    virtual(scenario())


def test_a_topic_may_do_without_the_schemas_that_its_namespace_enforces() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await client.producer(TOPIC)
            topic = await service.topics.get_or_open(parse_topic(TOPIC), create=False)
            await topic.add_schema(STRING)
            await set_namespace_policy(service, admission.SCHEMA_VALIDATION, True)
            await set_policy(service, TOPIC, admission.SCHEMA_VALIDATION, False)
            await client.producer(TOPIC)
            await set_policy(service, TOPIC, admission.SCHEMA_VALIDATION, None)
            with pytest.raises(Refused, match="without a schema"):
                await client.producer(TOPIC)

    virtual(scenario())


def test_a_topic_s_own_schema_strategy_is_before_its_namespace_s() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            await client.producer(TOPIC)
            topic = await service.topics.get_or_open(parse_topic(TOPIC), create=False)
            await topic.add_schema(STRING)
            number = SchemaInfo(SchemaType.INT32, b"")
            with pytest.raises(MagnetarError):
                await topic.add_schema(number)
            policy = admission.SCHEMA_COMPATIBILITY
            await set_policy(service, TOPIC, policy, "ALWAYS_COMPATIBLE")
            await topic.add_schema(number)
            await set_namespace_policy(service, policy, "ALWAYS_COMPATIBLE")
            await set_policy(service, TOPIC, policy, "ALWAYS_INCOMPATIBLE")
            with pytest.raises(MagnetarError):
                await topic.add_schema(SchemaInfo(SchemaType.INT64, b""))

    virtual(scenario())
