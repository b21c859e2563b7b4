"""Options of requests that any broker of a cluster takes: they hold where the topics are served."""

from collections.abc import AsyncIterator
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.integration.test_cluster_rest import EARLIEST, NAMESPACE, PARTS, TOPIC, spread, topic
from tests.support.rest_cluster import Member, RestCluster
from tests.unit.admin.support import Peer
from tests.unit.ledger.stage import publish

from magnetar.broker.balance.model import LOG_PREFIX, Round
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.spec import ConsumerSpec, SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.errors import PersistenceError
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.metadata.records import encode

CLIENTS = ["producer", "consumer"]


@pytest.fixture
async def cluster() -> AsyncIterator[RestCluster]:
    made = RestCluster()
    await made.start(2)
    yield made
    await made.stop()


async def opened(cluster: RestCluster, local: str) -> PersistentTopic:
    """The topic where it is served."""
    name = topic(local)
    found = await cluster.owner(name).service.topics.get_or_open(name, create=False)
    assert isinstance(found, PersistentTopic)
    return found


async def attach(cluster: RestCluster, local: str, client: str, *, durable: bool = True) -> None:
    found, peer = await opened(cluster, local), Peer()
    if client == "producer":
        producer = Producer(
            1, "p", peer, epoch=0, generated_name=False, access_mode=AccessMode.SHARED,
            topic_epoch=None, request_id=1, connected_since_ms=1, metadata=[],
        )  # fmt: skip
        await found.add_producer(producer)
        return
    spec = ConsumerSpec(7, "c", SubType.Exclusive, durable=durable)
    request = SubscribeRequest("s" if durable else "reader", spec, durable=durable)
    await found.subscribe(request, Consumer(spec, peer, cluster.members[0].service.clock))


def elsewhere(cluster: RestCluster, member: Member) -> str:
    """A partition that another broker serves."""
    return next(
        name.local
        for name in (topic(f"p-partition-{number}") for number in range(4))
        if cluster.owner(name) is not member
    )


async def stored(cluster: RestCluster) -> list[str]:
    names = await cluster.members[0].service.topics.names(
        NamespaceName.parse("public/default"), "persistent"
    )
    return [name.local for name in names]


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_at_any_broker_keeps_a_partitioned_topic_unless_it_is_forced(
    cluster: RestCluster, client: str
) -> None:
    first, _ = await spread(cluster)
    await first.done("POST", PARTS + "/maxConsumers", 7)
    await attach(cluster, elsewhere(cluster, first), client)
    for query in ("", "?force=false"):
        refused = await first.call("DELETE", PARTS + "/partitions" + query)
        assert refused.status_code == 412
        assert "Topic has 1 client connected" in refused.json()["reason"]
    assert len(await stored(cluster)) == 4
    await first.done("DELETE", PARTS + "/partitions?force=true")
    assert await stored(cluster) == []
    await first.done("PUT", PARTS + "/partitions", 1)
    assert (await first.done("GET", PARTS + "/maxConsumers")).text in ("", "null")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_namespace_is_deleted_by_force_whoever_is_connected(
    cluster: RestCluster, client: str
) -> None:
    first, second = await spread(cluster)
    await attach(cluster, elsewhere(cluster, first), client)
    assert (await first.call("DELETE", NAMESPACE)).status_code == 409
    await first.done("DELETE", NAMESPACE + "?force=true")
    assert await stored(cluster) == []
    assert (await second.call("GET", NAMESPACE)).status_code == 404


async def test_a_consumer_at_any_broker_keeps_a_subscription_unless_it_is_forced(
    cluster: RestCluster,
) -> None:
    first, _ = await spread(cluster)
    await first.done("PUT", PARTS + "/subscription/s")
    await attach(cluster, elsewhere(cluster, first), "consumer")
    for query in ("", "?force=false"):
        refused = await first.call("DELETE", PARTS + "/subscription/s" + query)
        assert refused.status_code == 412
        assert refused.json()["reason"] == "Subscription has active connected consumers"
    for number in range(4):
        assert set((await opened(cluster, f"p-partition-{number}")).subscriptions) == {"s"}
    await first.done("DELETE", PARTS + "/subscription/s?force=true")
    for number in range(4):
        assert not (await opened(cluster, f"p-partition-{number}")).subscriptions


async def test_a_topic_of_which_a_partition_cannot_be_deleted_is_there_still(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await spread(cluster)
    (remote,) = cluster.others(first)

    async def fails(name: TopicName, **_: object) -> None:
        raise PersistenceError(f"{name} cannot be deleted now")

    with monkeypatch.context() as failing:
        failing.setattr(remote.service.topics, "delete", fails)
        for path in (PARTS + "/partitions?force=true", NAMESPACE + "?force=true"):
            refused = await first.call("DELETE", path)
            assert refused.status_code >= 500
            assert "cannot be deleted now" in refused.json()["reason"]
    left = await stored(cluster)
    assert left
    assert all(cluster.owner(topic(local)) is remote for local in left)
    await second.done("DELETE", NAMESPACE + "?force=true")
    assert await stored(cluster) == []


async def test_a_namespace_is_empty_only_where_no_broker_has_a_topic_of_it(
    cluster: RestCluster,
) -> None:
    first, second = cluster.members
    names = [f"n{number}" for number in range(8)]
    for name in names:
        await first.done("PUT", f"~/non-persistent/public/default/{name}")
    served = {
        name: cluster.owner(parse_topic(f"non-persistent://public/default/{name}"))
        for name in names
    }
    assert len({id(member) for member in served.values()}) == 2
    for name in [name for name, member in served.items() if member is first]:
        await first.done("DELETE", f"~/non-persistent/public/default/{name}")
    # What is left is at the other broker alone.
    assert (await first.call("DELETE", NAMESPACE)).status_code == 409
    await first.done("DELETE", NAMESPACE + "?force=true")
    left = [each for each in second.service.topics if each.name.namespace.local == "default"]
    assert left == []


@pytest.mark.parametrize("partitioned", [True, False])
async def test_a_namespace_with_a_topic_is_not_deleted_unless_it_is_forced(
    cluster: RestCluster, partitioned: bool
) -> None:
    first, second = cluster.members
    if partitioned:
        await first.done("PUT", PARTS + "/partitions", 2)
        for number in range(2):
            await first.done("DELETE", f"{PARTS}-partition-{number}")
    else:
        await first.done("PUT", TOPIC)
    for member in (first, second):
        refused = await member.call("DELETE", NAMESPACE)
        assert refused.json() == {"reason": "Cannot delete non empty namespace"}
    await second.done("DELETE", NAMESPACE + "?force=true")
    assert (await first.call("GET", NAMESPACE)).status_code == 404


async def test_new_partitions_get_durable_subscriptions_with_their_properties(
    cluster: RestCluster,
) -> None:
    first, second = await spread(cluster)
    given = {**EARLIEST, "properties": {"team": "x"}}
    await first.done("PUT", PARTS + "/subscription/s", given)
    await attach(cluster, "p-partition-0", "consumer", durable=False)
    await second.done("POST", PARTS + "/partitions", 6)
    for number in (4, 5):
        found = (await opened(cluster, f"p-partition-{number}")).subscriptions
        assert set(found) == {"s"}
        assert found["s"].cursor.properties == {"team": "x"}


async def test_partitions_that_are_added_exist_at_once_whoever_is_to_serve_them(
    cluster: RestCluster,
) -> None:
    first, second = cluster.members
    await first.done("PUT", PARTS + "/partitions", 2)
    await second.done("POST", PARTS + "/partitions", 6)
    assert await stored(cluster) == [f"p-partition-{number}" for number in range(6)]


async def test_what_is_left_out_of_stats_is_left_out_of_every_partitions(
    cluster: RestCluster,
) -> None:
    first, second = await spread(cluster)
    remote = elsewhere(cluster, first)
    for client in CLIENTS:
        await attach(cluster, remote, client)
    for publishers in ("true", "false"):
        for consumers in ("true", "false"):
            query = f"?excludePublishers={publishers}&excludeConsumers={consumers}"
            stats = (await first.done("GET", PARTS + "/partitioned-stats" + query)).json()
            part = stats["partitions"][str(topic(remote))]
            for found in (stats, part):
                assert len(found["publishers"]) == (publishers == "false")
                assert len(found["subscriptions"]["s"]["consumers"]) == (consumers == "false")
    for member, query, parts in ((first, "", 4), (second, "?perPartition=true", 4)):
        stats = (await member.done("GET", PARTS + "/partitioned-stats" + query)).json()
        assert len(stats["partitions"]) == parts


@pytest.mark.parametrize(
    ("path", "status"), [("partitioned-stats", 412), ("partitioned-internalStats", 404)]
)
async def test_sums_of_a_partition_are_refused_as_by_a_single_broker(
    cluster: RestCluster, path: str, status: int
) -> None:
    first, _ = await spread(cluster)
    answer = await first.call("GET", f"{PARTS}-partition-0/{path}")
    assert answer.status_code == status


@pytest.mark.parametrize("what", ["partitioned-stats", "partitioned-internalStats"])
async def test_sums_that_lack_a_partition_are_no_sums(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    first, _ = await spread(cluster)
    (remote,) = cluster.others(first)

    async def fails(name: TopicName, *, create: bool) -> None:
        raise PersistenceError(f"{name} cannot be opened now")

    monkeypatch.setattr(remote.service.topics, "get_or_open", fails)
    answer = await first.call("GET", f"{PARTS}/{what}")
    assert answer.status_code == 500
    assert "cannot be opened now" in answer.json()["reason"]


async def test_what_one_partition_refuses_is_refused_and_what_none_has_is_not_found(
    cluster: RestCluster,
) -> None:
    first, second = await spread(cluster)
    remote = elsewhere(cluster, first)
    # One partition alone has it: the others have nothing to do.
    await first.done("PUT", f"~/persistent/public/default/{remote}/subscription/s")
    await first.done("PUT", PARTS + "/subscription/s/properties", {"team": "x"})
    assert (await second.done("GET", PARTS + "/subscription/s/properties")).json() == {"team": "x"}
    for member in (first, second):
        missing = await member.call("PUT", PARTS + "/subscription/none/properties", {})
        assert missing.status_code == 404
    await second.done("PUT", PARTS + "/subscription/s")
    for number in range(4):
        assert set((await opened(cluster, f"p-partition-{number}")).subscriptions) == {"s"}


async def test_options_go_with_a_request_to_every_partition(cluster: RestCluster) -> None:
    first, _ = await spread(cluster)
    path = PARTS + "/subscription/s?replicated="
    assert (await first.call("PUT", path + "true")).status_code == 405
    assert (await first.done("GET", PARTS + "/subscriptions")).json() == []
    await first.done("PUT", path + "false")


async def test_what_is_done_to_a_namespace_is_done_in_bundles_that_nobody_has() -> None:
    alone = RestCluster()
    await alone.start(1)
    (member,) = alone.members
    rings = member.ownership.rings
    with_topics = {str(await rings.bundle_of(topic(local))) for local in "ab"}
    for local in "ab":
        path = f"~/persistent/public/default/{local}/subscription/"
        for subscription in "st":
            await member.done("PUT", path + subscription, EARLIEST)
        await publish((await opened(alone, local)).managed_ledger, b"x")
    for request in ("unsubscribe/s", "clearBacklog"):
        await member.done("PUT", NAMESPACE + "/unload")
        assert not member.ownership.owned(), "there is no other broker to have them"
        await member.done("POST", f"{NAMESPACE}/{request}")
        assert set(map(str, member.ownership.owned())) == with_topics
    for local in "ab":
        stats = (await member.done("GET", f"~/persistent/public/default/{local}/stats")).json()
        backlogs = {name: each["msgBacklog"] for name, each in stats["subscriptions"].items()}
        assert backlogs == {"t": 0}
    await alone.stop()


async def test_a_bundle_is_split_as_it_is_requested_and_unloaded_where_it_is_requested(
    cluster: RestCluster,
) -> None:
    await cluster.members[0].done("PUT", TOPIC)
    owner = cluster.owner(topic("a"))
    (other,) = cluster.others(owner)
    path = "/lookup/v2/topic/persistent/public/default/a/bundle"
    bundle = (await other.done("GET", path)).text
    low, high = (int(each, 16) for each in bundle.split("_"))
    at = low + (high - low) // 3
    url = f"{NAMESPACE}/{bundle}/split?splitAlgorithmName="
    unknown = await other.call("PUT", url + "none")
    assert unknown.status_code == 412, unknown.text
    await other.done("PUT", url + "specified_positions_divide&unload=false", [at])
    edges = (await other.done("GET", NAMESPACE + "/bundles")).json()["boundaries"]
    assert f"0x{at:08x}" in edges
    # Its parts stay where they were.
    assert cluster.owner(topic("a")) is owner
    assert owner.service.topics.loaded(topic("a")) is not None
    part = (await other.done("GET", path)).text
    await other.done("PUT", f"{NAMESPACE}/{part}/split?unload=true")
    assert owner.service.topics.loaded(topic("a")) is None
    low, high = (int(each, 16) for each in part.split("_"))
    boundaries = (await other.done("GET", NAMESPACE + "/bundles")).json()["boundaries"]
    inside = [each for each in boundaries if low <= int(each, 16) <= high]
    assert len(inside) == 3
    left = {str(each) for each in owner.ownership.owned()}
    for edges in pairwise(inside):
        assert f"public/default/{'_'.join(edges)}" not in left
    for member in (owner, other):  # neither has to own the bundle that is chosen
        await member.done("PUT", NAMESPACE + "/LARGEST/split")
    split = (await other.done("GET", NAMESPACE + "/bundles")).json()["boundaries"]
    assert len(split) == len(boundaries) + 2


async def test_a_broker_that_is_sent_requests_takes_every_bundle_that_nobody_has(
    cluster: RestCluster,
) -> None:
    """Whatever it would have chosen itself: it was chosen already."""
    first = cluster.members[0]
    for number in range(8):
        path = f"~/persistent/public/default/t{number}?authoritative=true"
        answer = await first.call("PUT", path, follow=False)
        assert answer.status_code == 204, answer.text
        assert cluster.owner(topic(f"t{number}")) is first
    assert len(first.ownership.owned()) > 1


async def test_a_bundle_is_unloaded_only_to_another_broker_that_lives(cluster: RestCluster) -> None:
    await cluster.members[0].done("PUT", TOPIC)
    owner = cluster.owner(topic("a"))
    path = "/lookup/v2/topic/persistent/public/default/a/bundle"
    bundle = (await owner.done("GET", path)).text
    # A bundle without an owner gets one, which then moves it: the destination is not ignored.
    unowned = next(b for b in await _bundles(owner) if b != bundle)
    for member in cluster.members:
        for unloaded in (f"{NAMESPACE}/{bundle}", f"{NAMESPACE}/{unowned}", NAMESPACE):
            refused = await member.call("PUT", f"{unloaded}/unload?destinationBroker=nobody:8080")
            assert refused.status_code == 409
            assert "inactive destination broker" in refused.json()["reason"]
        url = f"{NAMESPACE}/{bundle}/unload?destinationBroker={owner.service.broker_id}"
        assert (await member.call("PUT", url)).status_code == 204
    assert cluster.owner(topic("a")) is owner


async def test_an_unknown_algorithm_of_a_split_is_refused_first(cluster: RestCluster) -> None:
    for member in cluster.members:
        url = f"{NAMESPACE}/0x00000000_0x00000007/split?splitAlgorithmName=thirds"
        refused = await member.call("PUT", url)
        assert refused.status_code == 412
        assert "Unsupported namespace bundle split algorithm" in refused.json()["reason"]


async def _bundles(member: Member) -> list[str]:
    edges = (await member.done("GET", f"{NAMESPACE}/bundles")).json()["boundaries"]
    return [f"{low}_{high}" for low, high in pairwise(edges)]


async def test_of_the_log_of_decisions_the_newest_are_shown_first(cluster: RestCluster) -> None:
    first, second = cluster.members
    for number in range(1, 5):
        made = Round(sequence=number, at_ms=number, leader="b", loads={}, decisions=())
        await cluster.store.put(f"{LOG_PREFIX}{number:04d}", encode(made))
    for member, query, shown in (
        (first, "", [4, 3, 2, 1]),
        (second, "?limit=2", [4, 3]),
        (first, "?limit=1", [4]),
        (second, "?limit=0", [4]),
        (first, "?limit=9", [4, 3, 2, 1]),
    ):
        found = (await member.done("GET", "~/brokers/balance" + query)).json()
        rounds = [each["sequence"] for each in found["log"] if each["sequence"] <= 4]
        assert rounds == shown, query


async def test_a_request_says_what_it_asked_for_wherever_it_is_sent_on(
    cluster: RestCluster,
) -> None:
    first = cluster.members[0]
    await first.done("PUT", TOPIC)
    (other,) = cluster.others(cluster.owner(topic("a")))
    for method, path in (
        ("DELETE", TOPIC + "?force=true&authoritative=false"),
        ("GET", TOPIC + "/stats?getEarliestTimeInBacklog=true&excludeConsumers=true"),
        ("DELETE", TOPIC + "/properties?key=a%26b%3D%20c"),
    ):
        sent_on = await other.call(method, path, follow=False)
        assert sent_on.status_code == 307
        asked, found = (
            parse_qs(urlsplit(each).query) for each in (path, sent_on.headers["location"])
        )
        assert found == {**asked, "authoritative": ["true"]}
