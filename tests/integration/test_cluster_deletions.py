"""Deletions and requests about whole topics in a cluster, while brokers and requests race."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.integration.test_cluster_rest import NAMESPACE, PARTS, TOPIC, spread, topic
from tests.support.rest_cluster import RestCluster

from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.sender import PeerAnswer
from magnetar.broker.catalog.resources import partitioned_key
from magnetar.broker.ownership.bundles import Bundle
from magnetar.core.errors import Conflict
from magnetar.core.names import NamespaceName, TopicName
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.records import encode


@pytest.fixture
async def cluster() -> AsyncIterator[RestCluster]:
    made = RestCluster()
    await made.start(2)
    yield made
    await made.stop()


async def test_any_broker_answers_about_a_partitioned_topic_as_a_whole(
    cluster: RestCluster,
) -> None:
    """Nobody owns it: to send the request on would have it answered by chance."""
    await spread(cluster)
    for method, path in (
        ("GET", PARTS + "/stats"),
        ("GET", PARTS + "/internalStats"),
        ("POST", PARTS + "/subscription/s/skip/1"),
    ):
        answers = [
            await member.call(method, path + query, follow=False)
            for member in cluster.members
            for query in ("", "?authoritative=true")
        ]
        assert {answer.status_code for answer in answers} & {307, 503} == set()
        assert len({(answer.status_code, answer.text) for answer in answers}) == 1


async def test_a_namespace_goes_with_topics_whose_deletion_was_interrupted(
    cluster: RestCluster,
) -> None:
    first, second = cluster.members
    await first.done("PUT", TOPIC)
    await cluster.owner(topic("a")).service.topics.unload(topic("a"))
    (log,) = await cluster.store.list("/managed-ledgers/public/default/persistent/")
    marked = replace(decode_managed_ledger(log.key, log.value), deleted=True)
    await cluster.store.put(log.key, encode(marked))
    assert log.key == managed_ledger_key("public/default/persistent/a")
    await second.done("DELETE", NAMESPACE)
    assert await cluster.store.list("/managed-ledgers/public/default/") == []
    assert (await first.call("GET", NAMESPACE)).status_code == 404


async def test_a_namespace_goes_though_its_partitioned_topic_goes_at_the_same_time(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await spread(cluster)
    listed = first.service.resources.partitioned_topics
    calls: list[Callable[[], Awaitable[object]]] = []
    marked: list[NamespaceName] = []

    async def gone_after(namespace: NamespaceName, domain: str) -> list[TopicName]:
        found = await listed(namespace, domain)
        record = await cluster.store.get(f"/namespaces/{namespace}")
        if found and record is not None and b'"deleted":true' in record.value:
            marked.append(namespace)
        if len(marked) == 2 and not calls:  # checked under the mark, and now to be deleted
            # What another request does that was begun before.
            for name in [topic(f"p-partition-{number}") for number in range(4)]:
                await cluster.owner(name).service.topics.delete(name, force=True)
            calls.append(lambda: cluster.store.delete(partitioned_key(topic("p"))))
            await calls[0]()
        return found

    monkeypatch.setattr(first.service.resources, "partitioned_topics", gone_after)
    await first.done("DELETE", NAMESPACE + "?force=true")
    assert len(calls) == 1
    assert (await second.call("GET", NAMESPACE)).status_code == 404


async def test_a_namespace_that_was_made_anew_keeps_its_partitioned_topics(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await spread(cluster)
    key = "/namespaces/public/default"
    stored = await cluster.store.get(key)
    assert stored is not None
    transact = cluster.store.transact
    left = [stored.value]

    async def overtaken(operations: Any) -> int:
        if left and any(each.key == partitioned_key(topic("p")) for each in operations):
            await cluster.store.put(key, left.pop())
        return await transact(operations)

    monkeypatch.setattr(cluster.store, "transact", overtaken)
    refused = await first.call("DELETE", NAMESPACE + "?force=true")
    assert refused.status_code == 409
    assert "repeat this one" in refused.text
    for number in range(4):
        assert await first.service.topics.exists(topic(f"p-partition-{number}"))
    assert (await first.done("GET", PARTS + "/partitions")).json()["partitions"] == 4


async def test_a_bundle_that_nobody_has_is_taken_by_the_broker_that_is_asked_about_it() -> None:
    alone = RestCluster()
    await alone.start(1)
    (member,) = alone.members
    await member.done("PUT", NAMESPACE + "/unload")
    assert not member.ownership.owned()
    bounds = (await member.done("GET", NAMESPACE + "/bundles")).json()["boundaries"]
    await member.done("PUT", f"{NAMESPACE}/{bounds[0]}_{bounds[1]}/split")
    edges = (await member.done("GET", NAMESPACE + "/bundles")).json()["boundaries"]
    assert len(edges) == len(bounds) + 1
    await alone.stop()


async def test_an_unload_claims_no_bundle() -> None:
    alone = RestCluster()
    await alone.start(1)
    (member,) = alone.members
    await member.done("PUT", NAMESPACE + "/unload")
    bounds = (await member.done("GET", NAMESPACE + "/bundles")).json()["boundaries"]
    claimed = member.ownership.claims.acquire
    claims: list[object] = []

    async def counted(bundle: Bundle) -> object:
        claims.append(bundle)
        return await claimed(bundle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(member.ownership.claims), "acquire", lambda _, bundle: counted(bundle))
        await member.done("PUT", f"{NAMESPACE}/{bounds[0]}_{bounds[1]}/unload")
    assert claims == []
    assert not member.ownership.owned()
    await alone.stop()


async def test_a_subscription_is_deleted_from_all_partitions_whatever_its_name(
    cluster: RestCluster,
) -> None:
    first, second = await spread(cluster)
    odd, kept = "/subscription/a%2F1%3Fb%20c", "/subscription/a"
    for path in (odd, kept):
        await first.done("PUT", PARTS + path)
    assert (await second.done("GET", PARTS + "/subscriptions")).json() == ["a", "a/1?b c"]
    await second.done("DELETE", PARTS + odd)
    for number in range(4):
        found = await first.done("GET", f"{PARTS}-partition-{number}/subscriptions")
        assert found.json() == ["a"]
    missing = await first.call("DELETE", PARTS + odd)
    assert missing.status_code == 404
    topic = PARTS.removeprefix("~/").replace("persistent/", "persistent://", 1)
    assert missing.json()["reason"] == f"Subscription a/1?b c not found for topic {topic}"


async def test_a_subscription_that_one_partition_keeps_is_not_reported_as_deleted(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer attached to that partition after all of them were checked."""
    first, second = await spread(cluster)
    await first.done("PUT", PARTS + "/subscription/s")
    request_topic = Peers.request_topic
    queries: set[str] = set()

    async def attached(self: Peers, name: TopicName, method: str, *rest: Any, **more: Any) -> Any:
        if method == "DELETE":
            queries.add(more["query"])
        if method == "DELETE" and name.partition_index == 2:
            return PeerAnswer(412, b'{"reason":"Subscription has active connected consumers"}')
        return await request_topic(self, name, method, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Peers, "request_topic", attached)
        answer = await second.call("DELETE", PARTS + "/subscription/s")
    assert answer.status_code == 412
    assert answer.json()["reason"] == "Subscription has active connected consumers"
    assert queries == {""}, "each owner checks its consumers again"
    assert (await first.done("GET", PARTS + "-partition-2/subscriptions")).json() == ["s"]
    await second.done("DELETE", PARTS + "/subscription/s")
    assert (await first.done("GET", PARTS + "-partition-2/subscriptions")).json() == []


@pytest.mark.parametrize(("gone", "status"), [({2}, 204), ({0, 1, 2, 3}, 404)])
async def test_a_subscription_that_another_request_deletes_meanwhile_is_not_missed(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch, gone: set[int], status: int
) -> None:
    """It is not found only if no partition had it any more."""
    first, second = await spread(cluster)
    await first.done("PUT", PARTS + "/subscription/s")
    request_topic = Peers.request_topic

    async def deleted(self: Peers, name: TopicName, method: str, *rest: Any, **more: Any) -> Any:
        if method == "DELETE" and name.partition_index in gone:
            return PeerAnswer(404, b'{"reason":"Subscription not found"}')
        return await request_topic(self, name, method, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Peers, "request_topic", deleted)
        answer = await second.call("DELETE", PARTS + "/subscription/s")
    assert answer.status_code == status
    for index in range(4):
        listed = await first.done("GET", f"{PARTS}-partition-{index}/subscriptions")
        assert listed.json() == (["s"] if index in gone else [])


async def test_a_list_of_topics_that_a_broker_cannot_give_is_no_list(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out of a list would count as deleted, or keep nobody from deleting it."""
    first, second = cluster.members
    await first.done("PUT", "~/non-persistent/public/default/n")

    async def fails(*_: Any, **__: Any) -> list[TopicName]:
        raise Conflict("not now")

    monkeypatch.setattr(second.service.topics, "names", fails)
    for method, path in (
        ("GET", "~/non-persistent/public/default"),
        ("DELETE", NAMESPACE + "?force=true"),
    ):
        refused = await first.call(method, path)
        assert (refused.status_code, refused.json()) == (409, {"reason": "not now"})
    assert (await first.call("GET", NAMESPACE)).status_code == 200
