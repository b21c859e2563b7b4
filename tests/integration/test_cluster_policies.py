"""Policies set at one broker hold at another, at once and with no restart; and go with topics."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.rest_cluster import Member, RestCluster

from magnetar.broker.topic.api import Topic
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.policies.caps import MAX_PRODUCERS
from magnetar.policies.lifecycle import MESSAGE_TTL
from magnetar.policies.policy import Policy
from magnetar.policies.rates import PUBLISH_RATE

NAMESPACE = "~/namespaces/public/default"
TOPIC = "~/persistent/public/default/a"
NAME = parse_topic("persistent://public/default/a")
DEADLINE_S = 20


@pytest.fixture
async def cluster() -> AsyncIterator[RestCluster]:
    made = RestCluster()
    await made.start(2)
    yield made
    await made.stop()


async def served(cluster: RestCluster, name: TopicName = NAME) -> tuple[Member, Topic, Member]:
    """The topic's owner, the topic, and another broker."""
    first = cluster.members[0]
    path = f"~/persistent/public/default/{name.local}"
    await first.call("PUT", path)
    await first.done("GET", f"{path}/stats")
    owner = cluster.owner(name)
    topic = owner.service.topics.loaded(name)
    assert topic is not None
    return owner, topic, cluster.others(owner)[0]


async def holds(topic: Topic, policy: Policy, value: object) -> None:
    """Returns once it does: told, not asked again and again."""
    told = asyncio.Event()
    unlisten = topic.policies.listen(told.set)
    async with asyncio.timeout(DEADLINE_S):
        while topic.policies.value(policy) != value:
            await told.wait()
            told.clear()
    unlisten()


async def test_a_change_at_one_broker_reaches_a_topic_at_the_other(cluster: RestCluster) -> None:
    _, topic, other = await served(cluster)
    assert topic.policies.value(MESSAGE_TTL) == 0
    await other.done("POST", f"{NAMESPACE}/messageTTL", 60)
    await holds(topic, MESSAGE_TTL, 60)
    await other.done("POST", f"{TOPIC}/messageTTL?messageTTL=5")
    await holds(topic, MESSAGE_TTL, 5)
    for member in cluster.members:
        assert (await member.done("GET", f"{TOPIC}/messageTTL?applied=true")).json() == 5
    await other.done("DELETE", f"{TOPIC}/messageTTL")
    await holds(topic, MESSAGE_TTL, 60)
    await other.done("DELETE", f"{NAMESPACE}/messageTTL")
    await holds(topic, MESSAGE_TTL, 0)


async def test_rates_are_those_of_the_cluster(cluster: RestCluster) -> None:
    _, topic, other = await served(cluster)
    rate = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 9}
    await other.done("POST", f"{NAMESPACE}/publishRate", rate)
    await holds(topic, PUBLISH_RATE, rate)
    document = (await other.done("GET", NAMESPACE)).json()
    assert document["publishMaxMessageRate"] == {"c1": rate}


async def test_a_partitioned_topics_reach_all_its_partitions(cluster: RestCluster) -> None:
    first = cluster.members[0]
    await first.done("PUT", "~/persistent/public/default/p/partitions", 4)
    topics = [
        (await served(cluster, parse_topic(f"persistent://public/default/p-partition-{index}")))[1]
        for index in range(4)
    ]
    await first.done("POST", "~/persistent/public/default/p/maxProducers", 3)
    await asyncio.gather(*(holds(topic, MAX_PRODUCERS, 3) for topic in topics))


async def test_they_move_with_the_topic(cluster: RestCluster) -> None:
    owner, _, other = await served(cluster)
    await other.done("POST", f"{TOPIC}/maxProducers", 2)
    bundle = str(await owner.ownership.rings.bundle_of(NAME)).rpartition("/")[2]
    destination = other.service.broker_id
    await owner.done("PUT", f"{NAMESPACE}/{bundle}/unload?destinationBroker={destination}")
    moved, topic, _ = await served(cluster)
    assert moved is other
    assert topic.policies.value(MAX_PRODUCERS) == 2


async def test_they_go_with_the_topic_and_the_namespace(cluster: RestCluster) -> None:
    _, _, other = await served(cluster)
    await other.done("POST", f"{TOPIC}/maxProducers", 2)
    await other.done("DELETE", f"{TOPIC}?force=true")
    assert await cluster.store.list("/topic-policies/") == []
    await other.done("PUT", "~/persistent/public/default/p/partitions", 2)
    await other.done("POST", "~/persistent/public/default/p/maxProducers", 2)
    await served(cluster)
    await other.done("POST", f"{TOPIC}/maxProducers", 2)
    await other.done("DELETE", f"{NAMESPACE}?force=true")
    assert await cluster.store.list("/topic-policies/") == []


async def test_a_broker_that_comes_later_knows_them(cluster: RestCluster) -> None:
    _, _, other = await served(cluster)
    await other.done("POST", f"{TOPIC}/maxProducers", 2)
    await other.done("POST", f"{NAMESPACE}/messageTTL", 9)
    late = await cluster.add()
    policies = late.service.policies
    assert policies.value(NAME, MAX_PRODUCERS) == 2
    assert policies.namespace_value(NamespaceName("public", "default"), MESSAGE_TTL) == 9


async def test_topics_without_a_registration_are_notified_of_a_change(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, topic, other = await served(cluster)
    told = asyncio.Event()
    monkeypatch.setattr(type(topic), "policies_changed", lambda _: told.set())
    for change in (f"{NAMESPACE}/maxProducersPerTopic", f"{TOPIC}/maxProducers"):
        told.clear()
        await other.done("POST", change, 4)
        await asyncio.wait_for(told.wait(), DEADLINE_S)
