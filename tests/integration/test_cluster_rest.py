"""pulsar-admin's requests against any broker of a cluster: served by, or for, the owners."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.support.rest_cluster import Member, RestCluster
from tests.support.settings import changed
from tests.support.stalled_store import StalledStore
from tests.unit.broker.lifecycle.world import message
from tests.unit.ledger.stage import publish

from magnetar.admin.cluster.sender import UNDER_HEADER
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.names import TopicName, parse_topic
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.records import encode

NAMESPACE = "~/namespaces/public/default"
TOPIC = "~/persistent/public/default/a"
PARTS = "~/persistent/public/default/p"
EARLIEST = {"ledgerId": -1, "entryId": -1}


def topic(local: str) -> TopicName:
    return parse_topic(f"persistent://public/default/{local}")


@pytest.fixture
async def cluster() -> AsyncIterator[RestCluster]:
    made = RestCluster(store=StalledStore())
    await made.start(2)
    yield made
    await made.stop()


async def spread(cluster: RestCluster, partitions: int = 4) -> tuple[Member, Member]:
    """Partitioned topic `p`, with bundles on both brokers; returns both."""
    first, second = cluster.members
    await first.done("PUT", PARTS + "/partitions", partitions)
    owned: dict[str, str] = {}
    for number in range(partitions):
        name = topic(f"p-partition-{number}")
        await first.done("GET", f"{PARTS}-partition-{number}/stats")
        bundle = str(await first.ownership.rings.bundle_of(name))
        owned[bundle] = cluster.owner(name).service.broker_id
    if len(set(owned.values())) == 1:
        bundle, broker_id = next(iter(owned.items()))
        there = next(m for m in cluster.members if m.service.broker_id != broker_id)
        destination = there.service.broker_id
        await first.done(
            "PUT",
            f"{NAMESPACE}/{bundle.rpartition('/')[2]}/unload?destinationBroker={destination}",
        )
        for member in cluster.members:
            await member.done("GET", PARTS + "/partitions")
    owners = {
        cluster.owner(topic(f"p-partition-{number}")).service.broker_id
        for number in range(partitions)
        if (await first.done("GET", f"{PARTS}-partition-{number}/stats")).json()["ownerBroker"]
    }
    assert len(owners) == 2, "the partitions lie on both brokers"
    return first, second


# -- one topic


async def test_a_topics_request_is_redirected_to_its_owner(cluster: RestCluster) -> None:
    first = cluster.members[0]
    await first.done("PUT", TOPIC)
    owner = cluster.owner(topic("a"))
    (other,) = cluster.others(owner)
    direct = await other.call("GET", TOPIC + "/stats?getPreciseBacklog=true", follow=False)
    assert direct.status_code == 307
    location = httpx.URL(direct.headers["location"])
    assert str(location).startswith(
        owner.service.http_url + "/admin/v2/persistent/public/default/a"
    )
    assert dict(location.params) == {"getPreciseBacklog": "true", "authoritative": "true"}
    for member in cluster.members:
        stats = (await member.done("GET", TOPIC + "/stats")).json()
        assert stats["ownerBroker"] == owner.service.broker_id
        await member.done("PUT", TOPIC + "/subscription/s" + member.service.broker_id[-4:])
    subscriptions = (await other.done("GET", TOPIC + "/subscriptions")).json()
    assert len(subscriptions) == 2
    await other.done("POST", f"{TOPIC}/subscription/{subscriptions[0]}/skip_all")
    await other.done("DELETE", f"{TOPIC}/subscription/{subscriptions[0]}")
    assert (await other.done("GET", TOPIC + "/internalStats")).json()["ledgers"] is not None
    await other.done("DELETE", TOPIC)
    assert (await other.call("GET", TOPIC + "/stats")).status_code == 404


async def test_a_redirected_request_is_never_redirected_again(cluster: RestCluster) -> None:
    await cluster.members[0].done("PUT", TOPIC)
    (other,) = cluster.others(cluster.owner(topic("a")))
    response = await other.call("GET", TOPIC + "/stats?authoritative=true", follow=False)
    assert response.status_code == 503
    assert "retry" in response.json()["reason"]


async def test_an_authoritative_request_claims_what_nobody_owns(cluster: RestCluster) -> None:
    for local, member in (("x", cluster.members[0]), ("y", cluster.members[1])):
        bundle = await member.ownership.rings.bundle_of(topic(local))
        if any(each.ownership.has(bundle) for each in cluster.members):
            continue
        response = await member.call(
            "PUT", f"~/persistent/public/default/{local}?authoritative=true", follow=False
        )
        assert response.status_code == 204
        assert cluster.owner(topic(local)) is member


async def test_odd_names_survive_a_redirect(cluster: RestCluster) -> None:
    path = "~/persistent/public/default/a%20b%3Fc%2Bd"
    await cluster.members[0].done("PUT", path)
    for member in cluster.members:
        stats = (await member.done("GET", path + "/stats")).json()
        assert stats["ownerBroker"]
        await member.call("PUT", path + "/subscription/s%2F1")
        assert (await member.done("GET", path + "/subscriptions")).json() == ["s/1"]


async def test_a_missing_namespace_is_refused_in_pulsars_words(cluster: RestCluster) -> None:
    for member in cluster.members:
        response = await member.call("GET", "~/persistent/public/none/a/stats")
        assert response.status_code == 404
        assert response.json() == {"reason": "Namespace not found"}


# -- partitioned topics


async def test_partitioned_stats_are_summed_over_brokers(cluster: RestCluster) -> None:
    await spread(cluster)
    for member in cluster.members:
        await member.done("PUT", f"{PARTS}/subscription/s{cluster.members.index(member)}")
    seen: list[Any] = []
    for member in cluster.members:
        stats = (await member.done("GET", PARTS + "/partitioned-stats")).json()
        assert stats["metadata"]["partitions"] == 4
        assert sorted(stats["subscriptions"]) == ["s0", "s1"]
        assert sorted(stats["partitions"]) == [str(topic(f"p-partition-{n}")) for n in range(4)]
        owners = {each["ownerBroker"] for each in stats["partitions"].values()}
        assert len(owners) == 2
        brief = (await member.done("GET", PARTS + "/partitioned-stats?perPartition=false")).json()
        assert brief["partitions"] == {}
        internal = (await member.done("GET", PARTS + "/partitioned-internalStats")).json()
        assert sorted(internal["partitions"]) == sorted(stats["partitions"])
        assert all("cursors" in each for each in internal["partitions"].values())
        seen.append(sorted(stats))
    assert seen[0] == seen[1]


async def test_subscriptions_on_all_partitions(cluster: RestCluster) -> None:
    first, second = await spread(cluster)
    await first.done("PUT", PARTS + "/subscription/s", {"ledgerId": -1, "entryId": -1})
    again = await second.call("PUT", PARTS + "/subscription/s")
    assert again.status_code == 409
    for number in range(4):
        found = await second.done("GET", f"{PARTS}-partition-{number}/subscriptions")
        assert found.json() == ["s"]
    assert (await second.done("GET", PARTS + "/subscriptions")).json() == ["s"]
    await first.done("PUT", PARTS + "/subscription/s/properties", {"team": "x"})
    found = await second.done("GET", PARTS + "/subscription/s/properties")
    assert found.json() == {"team": "x"}
    await second.done("POST", PARTS + "/subscription/s/resetcursor/1")
    await second.done("POST", PARTS + "/subscription/s/skip_all")
    # As with one broker: expiry of what has no backlog is refused, in the same words.
    expired = await second.call("POST", PARTS + "/subscription/s/expireMessages/1")
    assert expired.status_code == 409
    assert "Expire message by timestamp not issued" in expired.json()["reason"]
    await first.done("DELETE", PARTS + "/subscription/s")
    assert (await second.done("GET", PARTS + "/subscriptions")).json() == []
    gone = await second.call("DELETE", PARTS + "/subscription/s")
    assert gone.status_code == 404
    skipped = await second.call("POST", PARTS + "/subscription/s/skip/1")
    assert skipped.status_code == 405, "not on a partitioned topic"


async def test_growing_copies_subscriptions_to_new_partitions(cluster: RestCluster) -> None:
    first, second = await spread(cluster)
    await first.done("PUT", PARTS + "/subscription/s")
    await second.done("POST", PARTS + "/partitions", 8)
    assert (await first.done("GET", PARTS + "/partitions")).json()["partitions"] == 8
    for number in range(8):
        found = await first.done("GET", f"{PARTS}-partition-{number}/subscriptions")
        assert found.json() == ["s"]
    await first.done("POST", PARTS[:-1] + "p/createMissedPartitions")


async def test_termination_truncation_unload_and_deletion_of_all_partitions(
    cluster: RestCluster,
) -> None:
    first, second = await spread(cluster)
    await first.done("DELETE", PARTS + "/truncate")
    await second.done("PUT", PARTS + "/unload")
    ends = (await second.done("POST", PARTS + "/terminate/partitions")).json()
    assert sorted(ends) == ["0", "1", "2", "3"]
    assert all("ledgerId" in end for end in ends.values())
    await first.done("DELETE", PARTS + "/partitions")
    for member in cluster.members:
        assert (await member.call("GET", PARTS + "/partitioned-stats")).status_code == 404
        assert (await member.done("GET", NAMESPACE + "/topics")).json() == []


# -- namespaces and bundles


async def test_lists_have_what_is_not_persistent_on_any_broker(cluster: RestCluster) -> None:
    first = cluster.members[0]
    names = [f"n{number}" for number in range(8)]
    for name in names:
        await first.done("PUT", f"~/non-persistent/public/default/{name}")
    owners = {
        cluster.owner(parse_topic(f"non-persistent://public/default/{name}")).service.broker_id
        for name in names
    }
    assert len(owners) == 2
    wanted = [f"non-persistent://public/default/{name}" for name in names]
    for member in cluster.members:
        assert (await member.done("GET", "~/non-persistent/public/default")).json() == wanted
        both = await member.done("GET", NAMESPACE + "/topics?mode=ALL")
        assert both.json() == wanted
    system = "non-persistent://public/default/__change_events"
    await first.done("PUT", "~/non-persistent/public/default/__change_events")
    for member in cluster.members:
        shown = (await member.done("GET", "~/non-persistent/public/default")).json()
        assert shown == wanted
        every = "~/non-persistent/public/default?includeSystemTopic=true"
        assert (await member.done("GET", every)).json() == [system, *wanted]


async def test_a_bundle_is_unloaded_to_a_named_broker_and_split(cluster: RestCluster) -> None:
    await cluster.members[0].done("PUT", TOPIC)
    owner = cluster.owner(topic("a"))
    (other,) = cluster.others(owner)
    bundle = (await other.done("GET", "/lookup/v2/topic/persistent/public/default/a/bundle")).text
    target = other.service.broker_id
    await other.done("PUT", f"{NAMESPACE}/{bundle}/unload?destinationBroker={target}")
    stats = (await owner.done("GET", TOPIC + "/stats")).json()
    assert stats["ownerBroker"] == target
    await owner.done("PUT", f"{NAMESPACE}/{bundle}/split?splitAlgorithmName=range_equally_divide")
    edges = (await other.done("GET", NAMESPACE + "/bundles")).json()
    assert edges["numBundles"] == 5
    assert (await owner.done("GET", TOPIC + "/stats")).json()["ownerBroker"] == target
    wrong = await owner.call("PUT", f"{NAMESPACE}/0x00000000_0x12345678/split")
    assert wrong.status_code == 412


async def test_a_whole_namespace_is_unloaded_cleared_unsubscribed_and_deleted(
    cluster: RestCluster,
) -> None:
    first, second = await spread(cluster)
    await first.done("PUT", PARTS + "/subscription/s")
    await second.done("POST", NAMESPACE + "/clearBacklog")
    await second.done("POST", NAMESPACE + "/clearBacklog/s")
    await second.done("PUT", NAMESPACE + "/unload")
    await second.done("POST", NAMESPACE + "/unsubscribe/s")
    assert (await first.done("GET", PARTS + "/subscriptions")).json() == []
    for member in cluster.members:
        # Handed over a moment ago, or nobody's: each can be unloaded and split by anybody.
        ranges = (await member.done("GET", NAMESPACE + "/bundles")).json()["boundaries"]
        for low, high in pairwise(ranges):
            await member.done("PUT", f"{NAMESPACE}/{low}_{high}/unload")
            await member.done("PUT", f"{NAMESPACE}/{low}_{high}/split?unload=true")
    refused = await second.call("DELETE", NAMESPACE)
    assert refused.status_code == 409
    await second.done("DELETE", NAMESPACE + "?force=true")
    for member in cluster.members:
        assert (await member.call("GET", NAMESPACE)).status_code == 404


async def test_a_tenant_goes_with_topics_of_all_brokers(cluster: RestCluster) -> None:
    first, _ = await spread(cluster)
    for force_namespaces in (False, True):
        for member in cluster.members:
            member.service.settings = changed(
                member.service.settings,
                force_delete_tenant=True,
                force_delete_namespace=force_namespaces,
            )
        answer = await first.call("DELETE", "~/tenants/public?force=true")
        assert answer.status_code == (204 if force_namespaces else 405), answer.text
        there = [
            await first.service.topics.exists(topic(f"p-partition-{number}")) for number in range(4)
        ]
        assert there == [not force_namespaces] * 4
    for member in cluster.members:
        assert "public" not in (await member.done("GET", "~/tenants")).json()


async def test_a_partition_whose_deletion_was_cut_short_is_deleted_with_its_topic(
    cluster: RestCluster,
) -> None:
    first, second = await spread(cluster)
    name = topic("p-partition-2")
    owner = cluster.owner(name)
    opened = await owner.service.topics.get_or_open(name, create=False)
    assert isinstance(opened, PersistentTopic)
    ledger_id, _ = await publish(opened.managed_ledger, b"x")
    await owner.service.topics.unload(name)
    key = managed_ledger_key(opened.managed_ledger.name)
    record = await cluster.store.get(key)
    assert record is not None
    marked = replace(decode_managed_ledger(key, record.value), deleted=True)
    await cluster.store.put(key, encode(marked))
    await second.done("DELETE", PARTS + "/partitions")
    assert not await cluster.store.list("/managed-ledgers/public/default/persistent/p-")
    assert await cluster.store.get(ledger_key(ledger_id)) is None
    assert (await first.call("GET", PARTS + "/stats")).status_code == 404


async def test_a_deletion_with_a_parent_spares_what_was_created_after_the_parent(
    cluster: RestCluster,
) -> None:
    """Another deletion of the same namespace was quicker, and a client created it again."""
    store = cluster.store
    assert isinstance(store, StalledStore)
    first, second = cluster.members
    await first.done("PUT", TOPIC)
    logs = "/managed-ledgers/public/default/persistent/"
    before = await store.get("/namespaces/public/default")
    assert before is not None
    store.hold(logs)
    slower = asyncio.ensure_future(second.call("DELETE", NAMESPACE + "?force=true"))
    await store.begun.wait()
    store.holds = None
    (log,) = await store.list(logs)
    await store.delete(log.key)
    await store.put(before.key, before.value)  # without the mark, as a new one is
    await store.put(log.key, log.value)
    store.release()
    answer = await slower
    assert answer.status_code == 409, answer.text
    assert "repeat this one" in answer.text
    (left,) = await store.list(logs)
    assert left.value == log.value


async def test_a_peer_that_names_no_mark_in_full_is_refused(cluster: RestCluster) -> None:
    first = cluster.members[0]
    await first.done("PUT", TOPIC)
    owner, path = cluster.owner(topic("a")), "/admin/v2" + TOPIC[1:]
    for mark in ("x /namespaces/public/default", "1", "-1 /namespaces/public/default"):
        answer = await owner.http.request("DELETE", path, headers={UNDER_HEADER: mark})
        assert answer.status_code == 412
        assert UNDER_HEADER in answer.text
    assert (await owner.http.request("DELETE", path)).status_code == 204


async def test_a_subscription_that_cannot_be_read_is_deleted_with_its_partitions(
    cluster: RestCluster,
) -> None:
    first, second = await spread(cluster)
    await first.done("PUT", PARTS + "/subscription/s", {"ledgerId": -1, "entryId": -1})
    name = topic("p-partition-2")
    owner = cluster.owner(name)
    opened = await owner.service.topics.get_or_open(name, create=False)
    assert isinstance(opened, PersistentTopic)
    ledger_id, _ = await publish(opened.managed_ledger, *[b"x"] * 3)
    cursor = opened.managed_ledger.cursors["s"]
    cursor.ack(ledger_id, 1)
    await cursor.flush()
    assert cursor.log is not None
    lost = cursor.log.ledger_id
    await owner.service.topics.unload(name)
    assert await cluster.store.delete(ledger_key(lost))
    assert (await second.done("GET", PARTS + "/subscriptions")).json() == ["s"]
    stats = (await second.done("GET", PARTS + "/partitioned-stats")).json()
    assert "does not exist" in stats["subscriptions"]["s"]["cursorError"]
    await second.done("DELETE", PARTS + "/subscription/s")
    assert (await first.done("GET", PARTS + "/subscriptions")).json() == []
    found = await owner.service.topics.get_or_open(name, create=False)
    assert isinstance(found, PersistentTopic)
    assert not found.managed_ledger.broken_cursors


# -- brokers


async def test_backlog_quotas_are_checked_on_all_brokers(cluster: RestCluster) -> None:
    first, _ = await spread(cluster)
    await first.done("PUT", PARTS + "/subscription/s", EARLIEST)
    topics = []
    for number in range(4):
        name = topic(f"p-partition-{number}")
        one = cluster.owner(name).service.topics.loaded(name)
        assert isinstance(one, PersistentTopic)
        await publish(one.managed_ledger, message(1_000))
        await one.managed_ledger.roll_over()
        topics.append(one)
    quota = {"limitSize": 1, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    await first.done("POST", f"{NAMESPACE}/backlogQuota", quota)
    for member in cluster.members:
        await member.done("GET", f"{NAMESPACE}/backlogQuotaMap")
    await first.done("GET", "~/brokers/backlog-quota-check")
    assert [one.subscriptions["s"].cursor.backlog for one in topics] == [0] * 4


async def test_brokers_are_listed_with_what_they_own(cluster: RestCluster) -> None:
    await cluster.members[0].done("PUT", TOPIC)
    ids = sorted(member.service.broker_id for member in cluster.members)
    owner = cluster.owner(topic("a"))
    for member in cluster.members:
        assert (await member.done("GET", "~/brokers/c1")).json() == ids
        assert (await member.done("GET", "~/brokers")).json() == ids
        path = f"~/brokers/c1/{owner.service.broker_id}/ownedNamespaces"
        owned = (await member.done("GET", path)).json()
        assert any(bundle.startswith("public/default/0x") for bundle in owned)
        assert (await member.call("GET", "~/brokers/c1/none:1/ownedNamespaces")).status_code == 404
        assert (await member.done("GET", "~/brokers/ready")).text == "ok"
        assert (await member.done("GET", "~/brokers/health")).text == "ok"
        leader = (await member.done("GET", "~/brokers/leaderBroker")).json()
        assert leader["brokerId"] in ids
        assert leader["serviceUrl"] == f"http://{leader['brokerId']}"


async def test_the_load_and_the_balance_are_shown(cluster: RestCluster) -> None:
    await cluster.members[0].done("PUT", TOPIC)
    owner = cluster.owner(topic("a"))
    await owner.balance.reporter.report()
    report = (await owner.done("GET", "~/broker-stats/load-report")).json()
    assert report["loadReportType"] == "LocalBrokerData"
    assert report["numTopics"] == 1
    assert any(bundle.startswith("public/default/") for bundle in report["bundles"])
    topics = (await owner.done("GET", "~/broker-stats/topics")).json()
    assert "public/default" in topics
    for member in cluster.members:
        shown = (await member.done("GET", "~/brokers/balance")).json()
        assert shown["leader"] in [each.service.broker_id for each in cluster.members]
        decisions = (await member.done("GET", "~/brokers/balance/dry-run")).json()
        assert decisions[-1]["decision"] == "nothing"
        page = (await member.done("GET", "/metrics")).text
        assert 'pulsar_lb_unload_bundle_count{cluster="c1",metric="bundleUnloading"} 0' in page
        assert "magnetar_lb_leading" in page


async def test_a_broker_that_leaves_is_not_listed_and_its_topics_are_served_on(
    cluster: RestCluster,
) -> None:
    await spread(cluster)
    first, second = cluster.members
    cluster.members.remove(second)
    await second.stop()
    assert (await first.done("GET", "~/brokers/c1")).json() == [first.service.broker_id]
    stats = (await first.done("GET", PARTS + "/partitioned-stats")).json()
    owners = {each["ownerBroker"] for each in stats["partitions"].values()}
    assert owners == {first.service.broker_id}
