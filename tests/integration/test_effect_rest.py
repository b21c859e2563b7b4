"""What policies would do, asked over REST: of a broker alone and of a cluster's."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.rest_cluster import RestCluster
from tests.unit.broker.lifecycle.world import message
from tests.unit.ledger.stage import publish

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.ids import EARLIEST
from magnetar.core.names import TopicName, parse_topic

NAMESPACE = "~/namespaces/public/default"
EFFECT = "~/magnetar/namespaces/public/default/effect"
NOTHING_KEPT = "?retentionTimeInMinutes=0&retentionSizeInMB=0"
KEEPS_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


@pytest.fixture
async def cluster() -> AsyncIterator[RestCluster]:
    made = RestCluster()
    await made.start(2)
    await made.members[0].done("POST", NAMESPACE + "/retention", KEEPS_ALL)
    yield made
    await made.stop()


def part(number: int) -> TopicName:
    return parse_topic(f"persistent://public/default/p-partition-{number}")


async def fill(cluster: RestCluster, name: TopicName) -> PersistentTopic:
    """Two closed ledgers, all consumed, and an open one; by the topic's owner."""
    await cluster.members[0].done("GET", f"~/persistent/public/default/{name.local}/stats")
    topic = await cluster.owner(name).service.topics.get_or_open(name, create=True)
    assert isinstance(topic, PersistentTopic)
    for _ in range(2):
        await publish(topic.managed_ledger, message(1_000))
        await topic.managed_ledger.roll_over()
    await publish(topic.managed_ledger, message(1_000))
    return topic


def deletes(found: dict[str, Any]) -> tuple[int, int]:
    return found["deletes"]["ledgers"], found["deletes"]["entries"]


async def test_over_the_brokers_of_a_cluster(cluster: RestCluster) -> None:
    first = cluster.members[0]
    await first.done("PUT", "~/persistent/public/default/p/partitions", 4)
    topics = [await fill(cluster, part(number)) for number in range(4)]
    # One keeps to a retention of its own; one that nobody serves is known by its records.
    await first.done("PUT", "~/persistent/public/default/own")
    own = await fill(cluster, parse_topic("persistent://public/default/own"))
    await first.done("POST", "~/persistent/public/default/own/retention", KEEPS_ALL)
    await cluster.owner(part(0)).service.topics.unload(part(0))
    for member in cluster.members:
        nothing = (await member.done("GET", EFFECT)).json()
        assert (deletes(nothing), nothing["topics_affected"]) == ((0, 0), 0)
        found = (await member.done("GET", EFFECT + NOTHING_KEPT)).json()
        assert found["topics_total"] == 5
        assert found["from_records"] == 1
        # Of the one that is not served its newest ledger has ended, and goes as well.
        assert deletes(found) == (9, 9)
        assert set(found["topics"]) == {str(part(number)) for number in range(4)}
        whole = await member.done(
            "GET", "~/magnetar/persistent/public/default/p/effect?messageTTL=1"
        )
        assert (whole.json()["topics_total"], whole.json()["expires"]) == (4, {})
        path = f"~/magnetar/persistent/public/default/{part(1).local}/effect{NOTHING_KEPT}"
        one = (await member.done("GET", path)).json()
        assert deletes(one) == (2, 2)
        assert one["holds"]["retention"] == {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    # What no job has compacted yet stays, whether its topic is served or not.
    await first.done("PUT", f"{NAMESPACE}/compactionThreshold", 1_000)
    for member in cluster.members:
        await member.done("GET", f"{NAMESPACE}/compactionThreshold")
        assert deletes((await member.done("GET", EFFECT + NOTHING_KEPT)).json()) == (0, 0)
    assert len(own.managed_ledger.ledgers) == 3
    assert len(topics[1].managed_ledger.ledgers) == 3  # to ask deletes nothing


async def test_expired_entries_are_reported_by_subscription(cluster: RestCluster) -> None:
    first = cluster.members[0]
    await first.done("PUT", "~/persistent/public/default/t")
    topic = await fill(cluster, parse_topic("persistent://public/default/t"))
    await topic.create_subscription("s", EARLIEST, {})
    for info in topic.managed_ledger.ledgers:
        info.created_ms = 1  # or its messages would count as of now, whatever they say
    path = "~/magnetar/persistent/public/default/t/effect"
    for member in cluster.members:
        found = (await member.done("GET", path + "?messageTTL=60")).json()
        assert (found["expires"], found["blocks_producers"]) == ({"s": 3}, False)
        query = "?backlogQuotaTime=60&backlogQuotaPolicy=producer_exception"
        assert (await member.done("GET", path + query)).json()["blocks_producers"] is True
        query = "?backlogQuotaSize=1&backlogQuotaPolicy=consumer_backlog_eviction"
        assert (await member.done("GET", path + query)).json()["evicts"] == {"s": 3}
        both = "?backlogQuotaSize=1&backlogQuotaTime=60"
        size, time = "&backlogQuotaSizePolicy=", "&backlogQuotaTimePolicy="
        for query in (
            f"{size}consumer_backlog_eviction{time}producer_request_hold",
            f"{size}consumer_backlog_eviction&backlogQuotaPolicy=producer_request_hold",
            f"{time}producer_request_hold&backlogQuotaPolicy=consumer_backlog_eviction",
            f"{size}producer_request_hold{time}consumer_backlog_eviction",
        ):
            assert (await member.done("GET", path + both + query)).json()["evicts"] == {"s": 3}
        query = f"{size}producer_request_hold{time}producer_exception"
        found = (await member.done("GET", path + both + query)).json()
        assert (found["evicts"], found["blocks_producers"]) == ({}, True)
    assert topic.subscriptions["s"].cursor.backlog == 3


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("?messageTTL=x", "messageTTL"),
        ("?messageTTL=-1", "messageTTL"),
        ("?retentionSizeInMB=1", "retentionTimeInMinutes"),
        ("?retentionTimeInMinutes=0&retentionSizeInMB=1", "retention"),
        ("?backlogQuotaSize=1&backlogQuotaPolicy=never", "policy"),
        ("?backlogQuotaTime=1&backlogQuotaTimePolicy=never", "policy"),
        ("?backlogQuotaSizePolicy=producer_exception", "backlogQuotaSize"),
    ],
)
async def test_values_that_are_not_valid(cluster: RestCluster, query: str, word: str) -> None:
    response = await cluster.members[0].call("GET", EFFECT + query)
    assert response.status_code == 400
    assert word in response.json()["reason"]


async def test_what_there_is_not(cluster: RestCluster) -> None:
    for path in (
        "~/magnetar/persistent/public/default/none/effect",
        "~/magnetar/persistent/public/none/t/effect",
        "~/magnetar/namespaces/public/none/effect",
    ):
        assert (await cluster.members[0].call("GET", path)).status_code == 404
    path = "~/magnetar/non-persistent/public/default/t/effect"
    assert (await cluster.members[0].call("GET", path)).status_code in (404, 405)
