"""What holds for a topic, and who hears of changes."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.support.broker import running_broker

from magnetar.broker.ownership.rings import NAMESPACES_PREFIX, namespace_key
from magnetar.broker.policies.resolution import applied, of_namespace, of_topic
from magnetar.broker.policies.store import FORMAT, TopicPolicies, policies_key
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.metadata.store import Record
from magnetar.policies.admission import SCHEMA_COMPATIBILITY, SUBSCRIPTION_TYPES
from magnetar.policies.caps import MAX_PRODUCERS, MAX_TOPICS
from magnetar.policies.lifecycle import BACKLOG_QUOTA, MESSAGE_TTL, RETENTION
from magnetar.policies.policy import Policy
from magnetar.policies.rates import PUBLISH_RATE
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

NAMESPACE = NamespaceName("public", "default")
TOPIC = parse_topic("a")
PARTITIONED = parse_topic("p")
SETTINGS = compose(
    BrokerSettings, message_ttl_s=100, producers_per_topic_max=7, topics_per_namespace_max=9
)
DAY = {"retentionTimeInMinutes": 1_440, "retentionSizeInMB": -1}
RATE = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
SIZE = {"limitSize": 10, "limitTime": -1, "policy": "producer_exception"}
AGE = {"limitSize": -1, "limitTime": 60, "policy": "producer_exception"}


@pytest.fixture
async def service() -> AsyncIterator[BrokerService]:
    async with running_broker(SETTINGS) as (service, _):
        yield service


async def opened(service: BrokerService, local: str = "a") -> PersistentTopic:
    topic = await service.topics.get_or_open(parse_topic(local), create=True)
    assert isinstance(topic, PersistentTopic)
    return topic


async def set_for_namespace(service: BrokerService, **fields: object) -> None:
    await service.resources.update_policies(NAMESPACE, lambda known: {**known, **fields})


async def set_for_topic(
    service: BrokerService, policy: Policy, value: object, *, is_global: bool = False
) -> None:
    await service.policies.update(
        TOPIC, lambda own: own.having(policy.name, value, is_global=is_global)
    )


async def eventually(topic: PersistentTopic, policy: Policy, value: object) -> None:
    """Waits until the condition holds; the watch reports removals."""
    told = asyncio.Event()
    unlisten = topic.policies.listen(told.set)
    while topic.policies.value(policy) != value:
        await asyncio.wait_for(told.wait(), 20)
        told.clear()
    unlisten()


async def test_topic_over_namespace_over_broker(service: BrokerService) -> None:
    topic = await opened(service)
    value = topic.policies.value
    assert (value(MESSAGE_TTL), value(MAX_PRODUCERS)) == (100, 7)
    assert value(RETENTION) == {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    await set_for_namespace(service, message_ttl_in_seconds=50)
    assert (value(MESSAGE_TTL), value(MAX_PRODUCERS)) == (50, 7)
    await set_for_topic(service, MESSAGE_TTL, 30, is_global=True)
    assert value(MESSAGE_TTL) == 30
    await set_for_topic(service, MESSAGE_TTL, 20)
    assert value(MESSAGE_TTL) == 20
    await set_for_topic(service, MESSAGE_TTL, None)
    await eventually(topic, MESSAGE_TTL, 30)
    await set_for_topic(service, MESSAGE_TTL, None, is_global=True)
    await eventually(topic, MESSAGE_TTL, 50)
    await set_for_namespace(service, message_ttl_in_seconds=None)
    assert value(MESSAGE_TTL) == 100


async def test_zero_is_a_value(service: BrokerService) -> None:
    topic = await opened(service)
    await set_for_namespace(service, max_producers_per_topic=0)
    assert topic.policies.value(MAX_PRODUCERS) == 0
    await set_for_topic(service, MAX_PRODUCERS, 3)
    assert topic.policies.value(MAX_PRODUCERS) == 3


async def test_what_only_namespaces_have(service: BrokerService) -> None:
    assert service.policies.namespace_value(NAMESPACE, MAX_TOPICS) == 9
    await set_for_namespace(service, max_topics_per_namespace=2)
    assert service.policies.namespace_value(NAMESPACE, MAX_TOPICS) == 2
    assert (await opened(service)).policies.value(MAX_TOPICS) == 2
    unknown = NamespaceName("public", "unknown")
    assert service.policies.namespace_value(unknown, MAX_TOPICS) == 9


async def test_partitions_have_their_topics_policies(service: BrokerService) -> None:
    await service.topics.create_partitioned(PARTITIONED, 2, {})
    parts = [await opened(service, f"p-partition-{index}") for index in range(2)]
    heard = [asyncio.Event() for _ in parts]
    for part, event in zip(parts, heard, strict=True):
        part.policies.listen(event.set)
    await service.policies.update(PARTITIONED, lambda own: own.having(MESSAGE_TTL.name, 5))
    for part, event in zip(parts, heard, strict=True):
        assert event.is_set()
        assert part.policies.value(MESSAGE_TTL) == 5


async def test_only_affected_topics_are_notified(service: BrokerService) -> None:
    topic, other = await opened(service), await opened(service, "b")
    heard: list[str] = []
    unlisten = topic.policies.listen(lambda: heard.append("a"))
    other.policies.listen(lambda: heard.append("b"))
    await set_for_topic(service, MESSAGE_TTL, 1)
    assert heard == ["a"]
    await set_for_namespace(service, message_ttl_in_seconds=9)
    assert sorted(heard) == ["a", "a", "b"]
    unlisten()
    unlisten()
    await set_for_topic(service, MESSAGE_TTL, 2)
    assert sorted(heard) == ["a", "a", "b"]
    assert other.policies.value(MESSAGE_TTL) == 9


async def test_topics_that_listen_to_nothing_share_their_namespaces(
    service: BrokerService,
) -> None:
    topics = [await opened(service, f"many-{number}") for number in range(5)]
    values = {id(topic.policies.value(RETENTION)) for topic in topics}
    assert len(values) == 1
    policies = service.policies
    assert (len(policies._own), len(policies._of_topics), len(policies._listeners)) == (0, 0, 0)


async def test_what_the_topic_had_goes_with_it(service: BrokerService) -> None:
    topic = await opened(service)
    await set_for_topic(service, MESSAGE_TTL, 1)
    gone = asyncio.Event()
    topic.policies.listen(gone.set)
    await service.topics.delete(TOPIC, force=True)
    await asyncio.wait_for(gone.wait(), 20)
    again = await opened(service)
    assert again.policies.value(MESSAGE_TTL) == 100
    assert (await service.policies.documents.read(TOPIC)).empty


async def test_a_record_that_cannot_be_read_changes_nothing(service: BrokerService) -> None:
    topic = await opened(service)
    await set_for_topic(service, MESSAGE_TTL, 1)
    heard = asyncio.Event()
    service.policies.listen(parse_topic("b"), heard.set)
    await service.store.put("/topic-policies/public/default/persistent/a", b"{")
    # A later one that can be read shows that the other was looked at.
    await service.store.put("/topic-policies/public/default/persistent/b", b'{"version":1}')
    await asyncio.wait_for(heard.wait(), 20)
    assert topic.policies.value(MESSAGE_TTL) == 1


async def test_a_key_that_is_no_namespaces_keeps_no_change_from_being_heard(
    service: BrokerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are all namespaces listed again for it."""
    listed: list[str] = []
    list_all = service.store.list

    async def listing(prefix: str) -> list[Record]:
        listed.append(prefix)
        return await list_all(prefix)

    monkeypatch.setattr(service.store, "list", listing)
    topic = await opened(service)
    key = namespace_key(NAMESPACE)
    stored = await service.store.get(key)
    assert stored is not None
    heard: list[NamespaceName] = []
    monkeypatch.setattr(
        service.policies, "_on_change", lambda namespace, _: heard.append(namespace)
    )
    for odd in ("/namespaces/odd", "/namespaces/a/b/c"):
        await service.store.put(odd, b"{}")
    document = msgspec.json.decode(stored.value) | {"message_ttl_in_seconds": 55}
    await service.store.put(key, msgspec.json.encode(document))
    await eventually(topic, MESSAGE_TTL, 55)
    assert heard == [NAMESPACE]
    assert NAMESPACES_PREFIX not in listed


# -- pure


async def test_a_namespaces_change_holds_for_topics_with_policies_of_their_own(
    service: BrokerService,
) -> None:
    topic = await opened(service)
    await set_for_topic(service, MAX_PRODUCERS, 3)
    for ttl_s in (50, 60):
        await set_for_namespace(service, message_ttl_in_seconds=ttl_s)
        assert topic.policies.value(MESSAGE_TTL) == ttl_s
    assert topic.policies.value(MAX_PRODUCERS) == 3


async def test_what_holds_is_known_again_once_a_record_is_put_right(
    service: BrokerService,
) -> None:
    """Messages are deleted by known policies, and never by a guess."""
    topic = await opened(service)
    unknown = parse_topic("persistent://public/unknown/a")
    assert topic.policies.known
    assert not service.policies.known(unknown)
    await set_for_topic(service, RETENTION, DAY)
    key = policies_key(TOPIC)
    stored = await service.store.get(key)
    assert stored is not None
    for value, is_known in ((b"{", False), (stored.value, True)):
        await service.store.put(key, value)
        while topic.policies.known != is_known:  # noqa: ASYNC110 - it is told to nobody
            await asyncio.sleep(0.001)
        assert topic.policies.value(RETENTION) == DAY


async def test_a_new_topic_has_nothing_of_a_former_one_of_its_name(
    service: BrokerService,
) -> None:
    await opened(service)
    await set_for_topic(service, MESSAGE_TTL, 5)
    stored = await service.store.get(policies_key(TOPIC))
    assert stored is not None
    await service.topics.delete(TOPIC, force=True)
    await service.store.put(stored.key, stored.value)
    while service.policies.own_value(TOPIC, MESSAGE_TTL) != 5:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await service.topics.create(TOPIC, {})
    assert service.policies.value(TOPIC, MESSAGE_TTL) == 100
    assert await service.store.get(policies_key(TOPIC)) is None


def test_rates_are_this_clusters() -> None:
    document = {"publishMaxMessageRate": {"c1": RATE}}
    assert of_namespace(PUBLISH_RATE, document, "c1") == RATE
    assert of_namespace(PUBLISH_RATE, document, "c2") is None
    assert of_namespace(PUBLISH_RATE, {}, "c1") is None


def test_quotas_hold_entry_by_entry() -> None:
    own = TopicPolicies(
        FORMAT, {"backlog_quota": {"message_age": AGE}}, {"backlog_quota": {"message_age": SIZE}}
    )
    above = applied(BACKLOG_QUOTA, None, {"destination_storage": SIZE, "message_age": SIZE})
    assert applied(BACKLOG_QUOTA, above, of_topic(BACKLOG_QUOTA, own)) == {
        "destination_storage": SIZE,
        "message_age": AGE,
    }
    assert of_topic(BACKLOG_QUOTA, TopicPolicies(FORMAT)) is None


@pytest.mark.parametrize(
    ("policy", "field", "value"),
    [
        (SCHEMA_COMPATIBILITY, "schema_compatibility_strategy", "UNDEFINED"),
        (SUBSCRIPTION_TYPES, "subscription_types_enabled", []),
    ],
)
def test_values_that_say_nothing(policy: Policy, field: str, value: object) -> None:
    assert of_namespace(policy, {field: value}, "c") is None
    assert of_topic(policy, TopicPolicies(FORMAT, {policy.name: value})) is None
