"""What a broker does about its bundles as its lease and the records in the store change."""

import asyncio

import pytest
from tests.unit.broker.ownership.stage import (
    FIRST,
    NAMESPACE,
    QUARTERS,
    TOPICS,
    TTL_S,
    Stage,
    Topics,
    in_virtual_time,
    settle,
    topic_in,
    topics_in,
)

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.resources import Resources
from magnetar.broker.ownership.always import AlwaysOwned
from magnetar.broker.ownership.brokers import BrokerRegistry
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.location import HERE
from magnetar.broker.ownership.records import (
    BrokerRecord,
    BrokerState,
    OwnershipRecord,
    Urls,
    broker_key,
    bundle_of_key,
    decode_broker,
    decode_ownership,
    ownership_key,
)
from magnetar.broker.ownership.rings import Rings, namespace_key
from magnetar.core.errors import (
    Conflict,
    MetadataError,
    NotFound,
    PreconditionFailed,
    TopicNotFound,
)
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.core.tasks import TaskSet
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode

STRANGER = OwnershipRecord("z:8080", 99, 99)


# -- the lease


@in_virtual_time
async def test_a_lost_lease_ends_every_claim_and_gives_up_every_topic() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(*QUARTERS[:2])
        former = one.ownership.brokers.own.lease_id
        assert one.ownership.serving
        await one.lose_lease()
        await asyncio.sleep(TTL_S)
        assert one.owned() == set()
        asked = one.topics.asked[one.topics.asked.index(("suspend", None)) :]
        assert asked.count(("abandon", TOPICS)) == asked.count(("resume", None)) == 1
        assert asked[-2:] == [("abandon", TOPICS), ("resume", None)]
        assert one.ownership.serving
        registered = one.ownership.brokers.get(one.id)
        assert registered is not None
        assert registered.lease_id == one.session.lease_id != former


@in_virtual_time
async def test_while_its_lease_is_in_doubt_a_broker_serves_nothing_and_keeps_its_claims() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.view.renewing = False
        one.view.leases[-1].keep(60)
        await asyncio.sleep(TTL_S)
        assert one.topics.asked == [("suspend", None)]
        assert not one.ownership.serving
        assert not one.ownership.has(FIRST)
        assert one.owned() == {FIRST}
        one.view.renewing = True
        await asyncio.sleep(1)
        assert one.topics.asked == [("suspend", None), ("resume", None)]
        assert one.ownership.owns(topic_in(FIRST))


@in_virtual_time
async def test_a_lease_that_ran_out_unseen_is_served_under_no_longer() -> None:
    """The process was paused: no listener has heard of it yet."""
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.ownership._session._deadline = asyncio.get_running_loop().time()
        assert not one.ownership.has(FIRST)


# -- the records of bundles


@in_virtual_time
async def test_a_claim_that_another_overwrites_is_given_up_with_its_topics() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(*QUARTERS[:2])
        await stage.store.own(FIRST, STRANGER)
        await settle()
        assert one.owned() == {QUARTERS[1]}
        assert one.topics.asked == [("abandon", topics_in(FIRST))]
        assert one.ownership.owner_of(FIRST) == STRANGER
        await stage.store.delete(ownership_key(QUARTERS[1]))
        await settle()
        assert one.owned() == set()
        assert one.topics.asked[1:] == [("abandon", topics_in(QUARTERS[1]))]


@in_virtual_time
async def test_every_broker_counts_the_bundles_of_each() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(*QUARTERS[:3])
        await other.take(QUARTERS[3])
        await one.ownership.unload(FIRST, other.id)
        await stage.store.own(QUARTERS[2], STRANGER)
        await settle()
        for each in (one, other):
            counts = each.ownership.bundle_counts()
            assert {broker: counts[broker] for broker in (one.id, other.id, "z:8080")} == {
                one.id: 1,
                other.id: 2,
                "z:8080": 1,
            }
            assert each.ownership.owner_of(FIRST) == other.record
        await stage.store.delete(ownership_key(QUARTERS[2]))
        await settle()
        assert one.ownership.bundle_counts()["z:8080"] == 0
        assert one.ownership.owner_of(QUARTERS[2]) is None


@pytest.mark.parametrize("key", ["/ownership/x", "/ownership/public/other/0x0"])
@in_virtual_time
async def test_a_record_that_is_no_claim_disturbs_no_other(key: str) -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await stage.store.put(key, encode(STRANGER))
        await stage.store.put(ownership_key(QUARTERS[3]), b"{}")
        await one.take(FIRST)
        await stage.store.own(QUARTERS[1], STRANGER)
        await settle()
        assert one.ownership.owner_of(QUARTERS[1]) == STRANGER
        assert one.ownership.owner_of(QUARTERS[3]) is None


# -- the registry of brokers


@in_virtual_time
async def test_all_brokers_know_each_other_in_the_order_of_their_ids() -> None:
    async with Stage() as stage:
        brokers = [await stage.broker(host) for host in "bca"]
        await settle()
        for each in brokers:
            known = each.ownership.brokers.living()
            assert [record.broker_id for record in known] == ["a:8080", "b:8080", "c:8080"]
        heard: list[str] = []
        brokers[0].ownership.brokers.add_listener(heard.append)
        await brokers[1].ownership.withdraw()
        await settle()
        assert heard == ["c:8080"]
        assert brokers[0].ownership.brokers.get("c:8080") is None
        assert await stage.store.get(broker_key("c:8080")) is None


@in_virtual_time
async def test_a_broker_that_withdrew_does_not_register_with_its_next_lease() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.ownership.withdraw()
        await one.lose_lease()
        await asyncio.sleep(TTL_S)
        assert one.session.valid
        assert await stage.store.get(broker_key(one.id)) is None


@in_virtual_time
async def test_a_registration_that_cannot_be_read_takes_its_broker_off_the_list() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await stage.store.put(broker_key(other.id), b"{}")
        await stage.store.put(broker_key("never"), b"no json")
        await settle()
        assert [each.broker_id for each in one.ownership.brokers.living()] == [one.id]


@in_virtual_time
async def test_a_broker_that_starts_ends_the_lease_of_its_former_process_and_of_nobody_else() -> (
    None
):
    async with Stage() as stage:
        former, other = await stage.pair()
        await former.take(FIRST)
        await other.take(QUARTERS[1])
        await former.die()
        successor = await stage.broker("a")
        assert set(await stage.store.owners()) == {QUARTERS[1].range}
        assert successor.ownership.brokers.own.start > former.record.start
        # Its own registration, written by an attempt without an answer, is no former process's.
        await successor.take(FIRST)
        registry = successor.ownership.brokers
        registry._first = True
        await registry.established(renewed=True)
        assert set(await stage.store.owners()) == {FIRST.range, QUARTERS[1].range}
        await successor.lose_lease()
        await stage.store.put(
            broker_key(successor.id),
            encode(BrokerRecord(successor.id, 77, "a", 1, Urls("", ""), lease_id=5)),
        )
        await asyncio.sleep(TTL_S)
        registered = await stage.store.get(broker_key(successor.id))
        assert registered is not None
        assert decode_broker("k", registered.value).start == successor.record.start


@in_virtual_time
async def test_the_same_lease_that_returns_needs_no_other_registration() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        before = await stage.store.get(broker_key(one.id))
        await one.ownership.brokers.established(renewed=False)
        assert await stage.store.get(broker_key(one.id)) == before
        registry: BrokerRegistry = one.ownership.brokers
        one.view.running.clear()
        await registry.set_state(BrokerState.DRAINING)
        after = await stage.store.get(broker_key(one.id))
        assert after is not None
        assert decode_broker(after.key, after.value).state is BrokerState.DRAINING
        assert registry.get(one.id) == registry.own, "its own write is known at once"


# -- namespaces


@in_virtual_time
async def test_a_namespace_that_was_just_created_is_known_to_the_first_who_asks() -> None:
    store = MemoryStore()
    changed: list[NamespaceName] = []
    rings = Rings(store, changed.append)
    heard: list[NamespaceName] = []
    rings.listen(heard.append)
    tasks = TaskSet("test")
    tasks.start(rings.run(), "follow")
    await rings.ready()
    topic = parse_topic("persistent://public/new/t")
    with pytest.raises(TopicNotFound, match="Namespace not found: public/new"):
        await rings.bundle_of(topic)
    policies = default_policies("standalone", 1)
    await store.put(namespace_key(topic.namespace), encode(policies))
    assert await rings.bundle_of(topic) == Bundle(topic.namespace, 0, 0xFFFFFFFF)
    await settle()
    assert changed == heard == [topic.namespace]
    # A policy other than the bundles notifies only the followers of policies.
    await store.put(namespace_key(topic.namespace), encode({**policies, "other": 1}))
    await settle()
    assert changed == [topic.namespace]
    assert heard == [topic.namespace] * 2
    assert rings.record(topic.namespace) == await store.get(namespace_key(topic.namespace))
    for key, value in (("/namespaces/bad", b"{}"), ("/namespaces/public/bad", b"no json")):
        await store.put(key, value)
    await store.delete(namespace_key(topic.namespace))
    await settle()
    assert changed == [topic.namespace] * 2
    assert rings.get(topic.namespace) is None
    await tasks.stop()
    await store.close()


async def test_a_namespace_is_read_if_the_watch_is_late() -> None:
    store = MemoryStore()
    rings = Rings(store, lambda _: None)
    topic = parse_topic("persistent://public/new/t")
    policies = default_policies("standalone", 1)
    await store.put(namespace_key(topic.namespace), encode(policies))
    assert await rings.bundle_of(topic) == Bundle(topic.namespace, 0, 0xFFFFFFFF)
    await store.close()


# -- records


def test_a_record_that_cannot_be_read_names_its_key() -> None:
    with pytest.raises(MetadataError, match="/brokers/x holds no broker"):
        decode_broker("/brokers/x", b"{}")
    with pytest.raises(MetadataError, match="/ownership/x holds no claim"):
        decode_ownership("/ownership/x", b"{}")


def test_a_claim_is_found_under_the_name_of_its_bundle() -> None:
    assert ownership_key(FIRST) == "/ownership/public/default/0x00000000_0x40000000"
    assert bundle_of_key(ownership_key(FIRST)) == FIRST


def test_a_client_of_a_listener_gets_the_addresses_of_that_listener_or_none() -> None:
    urls, public = Urls("pulsar://a", "http://a"), Urls("pulsar://b", "http://b")
    broker = BrokerRecord("a:1", 1, "a", 1, urls, {"public": public})
    assert [broker.reached_by(name) for name in ("", "public", "nosuch")] == [urls, public, None]


# -- a broker that is alone


@in_virtual_time
async def test_a_broker_that_is_alone_owns_everything_and_closes_what_is_unloaded() -> None:
    store, topics = MemoryStore(), Topics()
    resources = Resources(store)
    await resources.create_tenant("public", {"adminRoles": [], "allowedClusters": ["standalone"]})
    await resources.create_namespace(NAMESPACE, default_policies("standalone"))
    alone = AlwaysOwned(resources, topics)
    name = topic_in(FIRST)
    assert alone.owns(name)
    assert alone.always
    assert not alone.owned()
    assert await alone.locate(name, authoritative=False) == HERE
    assert await alone.unload(str(FIRST)) is None
    assert topics.asked == [("drain", FIRST), ("dismiss", topics_in(FIRST))]
    assert topics.told == [None]
    with pytest.raises(Conflict, match="inactive destination broker"):
        await alone.unload(FIRST, "b:8080")
    with pytest.raises(NotFound, match="is not a bundle of its namespace"):
        await alone.unload(Bundle(NAMESPACE, 0, 0x20000000))

    def fail() -> None:
        raise OSError("the disk is full")

    topics.at_close = fail
    with pytest.raises(OSError, match="the disk is full"):
        await alone.unload(FIRST)
    assert topics.told == [None, None]
    parts = await alone.split(FIRST, "specified_positions_divide", [0x20])
    assert parts == [Bundle(NAMESPACE, 0, 0x20), Bundle(NAMESPACE, 0x20, 0x40000000)]
    policies = await resources.policies(NAMESPACE)
    assert policies["bundles"]["numBundles"] == 5
    with pytest.raises(NotFound):
        await alone.split(FIRST)
    with pytest.raises(PreconditionFailed, match="cannot be split by topic_count"):
        await alone.split(parts[0], "topic_count_equally_divide")
    assert len(await alone.split(str(parts[1]))) == 2
