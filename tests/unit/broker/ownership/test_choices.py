"""Choices, cuts and bounds of the ownership, each at its exact edge."""

import asyncio
from typing import Any

import pytest
from tests.support.held_store import puts
from tests.unit.broker.ownership.stage import (
    FIRST,
    NAMESPACE,
    QUARTERS,
    TTL_S,
    OpenTopic,
    Stage,
    in_virtual_time,
    settle,
    topic_in,
    topics_in,
)

from magnetar.broker.catalog.namespace_policies import (
    BUNDLES_MAX,
    default_policies,
)
from magnetar.broker.ownership import bundles
from magnetar.broker.ownership import split_algorithms as splitting
from magnetar.broker.ownership.bundles import RING_END, Bundle, Ring
from magnetar.broker.ownership.location import HERE, Located
from magnetar.broker.ownership.prober import PROBE_FRESH_S, REFUSED_AGAIN_S, Presence, Prober
from magnetar.broker.ownership.records import BrokerRecord, BrokerState, OwnershipRecord, Urls
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.ownership.split_algorithms import LoadBounds, TopicLoad
from magnetar.core.errors import PreconditionFailed, ServiceNotReady
from magnetar.core.names import NamespaceName
from magnetar.core.tasks import TaskSet
from magnetar.metadata.records import encode

TOPIC = topic_in(FIRST)
WHOLE = Bundle(NAMESPACE, 0, RING_END)


@in_virtual_time
async def test_a_bundle_goes_to_the_broker_that_is_named_and_not_to_a_better_one() -> None:
    async with Stage() as stage:
        one, named = await stage.pair()
        await stage.broker("c")
        await one.take(FIRST)
        await named.take(*QUARTERS[1:])
        assert await one.ownership.unload(FIRST, named.id) == named.id


@in_virtual_time
async def test_bundles_of_other_namespaces_stay_where_one_is_cut_again() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        other = Bundle(NamespaceName("public", "other"), 0, RING_END)
        policies = default_policies("standalone", 1)
        await stage.store.put(namespace_key(other.namespace), encode(policies))
        await settle()
        await one.take(FIRST, other)
        await stage.store.cut(0x20000000)
        await asyncio.sleep(1)
        assert one.owned() == {other}
        assert ("drain", other) not in one.topics.asked


@in_virtual_time
async def test_a_look_up_that_is_held_looks_once_for_each_news() -> None:
    async with Stage() as stage:
        one, _ = await stage.pair()
        await one.ownership.brokers.set_state(BrokerState.DRAINING)
        looks = 0

        def choose(*_: object) -> None:
            nonlocal looks
            looks += 1
            assert looks < 100

        one.ownership.choose = choose
        looking = asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=False))
        await asyncio.sleep(0.1)
        assert looks == 1
        for news in range(3):
            one.ownership._lookups.wake_all()
            await settle()
            assert looks == 2 + news
        looking.cancel()


@pytest.mark.parametrize("nobody", [None, "z:8080"])
@in_virtual_time
async def test_a_broker_takes_the_bundle_itself_if_nobody_else_can_be_chosen(
    nobody: str | None,
) -> None:
    async with Stage() as stage:
        one, _ = await stage.pair()
        one.ownership.choose = lambda *_: nobody
        assert await one.ownership.locate(TOPIC, authoritative=False) == HERE
        assert await one.ownership.unload(FIRST) is None


@in_virtual_time
async def test_a_record_of_its_own_lost_lease_sends_no_client_round() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        former = OwnershipRecord(one.id, one.record.start, 99)
        await stage.store.own(FIRST, former)
        await settle()
        assert await one.ownership.locate(TOPIC, authoritative=False) == HERE
        assert await stage.store.owners() == {FIRST.range: one.record}


@in_virtual_time
async def test_a_new_lease_is_not_served_under_before_the_old_claims_are_given_up() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        held = stage.store.hold(puts("/brokers/"))
        await one.lose_lease()
        await held.reached.wait()
        assert one.session.valid
        assert not one.ownership.serving
        assert not one.ownership.owns(TOPIC)
        held.go.set()
        await asyncio.sleep(TTL_S)
        assert one.ownership.serving


@in_virtual_time
async def test_the_parts_of_a_split_are_served_before_the_watch_tells_of_them() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.view.running.clear()
        await one.ownership.split(FIRST)
        assert one.ownership.owns(TOPIC)


@in_virtual_time
async def test_a_claim_that_is_delivered_twice_keeps_its_origin() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        whole = one.ownership.claims.all[FIRST]
        (part, _) = await one.ownership.split(FIRST)
        claim = one.ownership.claims.all[part]
        record = await stage.store.get(claim.key)
        assert record is not None
        assert one.ownership.claims.adopt(part, record) is claim
        assert claim.origin == whole.origin
        newer = await stage.store.put(claim.key, record.value)
        record = await stage.store.get(claim.key)
        assert record is not None
        again = one.ownership.claims.adopt(part, record)
        assert again is not None
        assert again.revision == again.origin == newer


@in_virtual_time
async def test_a_bundle_that_leaves_or_was_claimed_again_is_not_released_again() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        claim = one.ownership.claims.all[FIRST]
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST))
        await settle()
        await one.ownership._moves.release(claim)
        assert one.topics.asked == [("drain", FIRST)]
        one.topics.closing.set()
        await moving
        await one.take(FIRST)
        one.topics.asked.clear()
        await one.ownership._moves.release(claim)
        assert one.owned() == {FIRST}
        assert one.topics.asked == [], "the topics of the newer claim stay open"


@in_virtual_time
async def test_what_is_remembered_of_dead_brokers_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.broker.ownership.lookup.ENDED_KEPT_MAX", 1)
    monkeypatch.setattr("magnetar.broker.ownership.prober.PROBES_KEPT_MAX", 1)
    async with Stage() as stage:
        one = await stage.broker("a")
        for host, bundle in zip("bcd", QUARTERS, strict=False):
            other = await stage.broker(host)
            await other.take(bundle)
            await other.die()
            stage.addresses[host] = "refuses"
            assert await one.ownership.locate(topic_in(bundle), authoritative=True) == HERE
            assert len(one.ownership._lookups._ended) == 1
            assert len(one.ownership._lookups._prober._answers) == 1


@in_virtual_time
async def test_a_broker_that_hands_a_bundle_over_does_not_name_itself() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST))
        await settle()
        with pytest.raises(ServiceNotReady, match="has no owner yet"):
            await one.ownership.locate(TOPIC, authoritative=True)
        one.topics.closing.set()
        await moving


@pytest.mark.parametrize("unanswered", [[True], [False, True], [True, False]], ids=str)
@in_virtual_time
async def test_a_split_without_an_answer_is_made_once(unanswered: list[bool]) -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.view.unanswered = unanswered
        parts = await one.ownership.split(FIRST)
        assert len(parts) == 2
        assert one.owned() == set(parts)
        await settle()
        assert one.owned() == set(parts)


@in_virtual_time
async def test_a_lost_claim_that_is_made_again_closes_the_topics_of_the_first() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        await stage.store.own(FIRST, one.record)
        await settle()
        assert one.topics.asked == [("abandon", topics_in(FIRST))]


@in_virtual_time
async def test_a_former_process_does_not_end_the_lease_of_its_successor() -> None:
    async with Stage() as stage:
        former = await stage.broker("a")
        successor = await stage.broker("a")
        lease_id = successor.session.lease_id
        await asyncio.sleep(2 * TTL_S)
        assert former.session.valid
        assert successor.session.lease_id == lease_id


# -- probes


@in_virtual_time
async def test_an_answer_is_good_for_a_moment_and_for_one_process() -> None:
    async with Stage() as stage:
        prober = Prober(tasks := TaskSet("test"))
        loop = asyncio.get_running_loop()

        def broker(start: int) -> BrokerRecord:
            return BrokerRecord("b:1", start, "b", 1, Urls("", ""))

        assert await prober.probe(broker(1)) is Presence.ALIVE
        stage.addresses["b"] = "refuses"
        await asyncio.sleep(PROBE_FRESH_S * 0.9)
        assert await prober.probe(broker(1)) is Presence.ALIVE
        began = loop.time()
        assert await prober.probe(broker(2)) is Presence.REFUSED
        assert loop.time() - began == pytest.approx(REFUSED_AGAIN_S)
        await asyncio.sleep(PROBE_FRESH_S * 0.1)
        assert await prober.probe(broker(1)) is Presence.REFUSED
        assert stage.connections == ["b"] * 5
        stage.addresses["b"] = "takes"
        await tasks.stop()
        await asyncio.sleep(1)
        assert await prober.probe(broker(1)) is Presence.UNSURE


# -- cuts


def flow(*rates: float, at_most: float = 100.0) -> list[int]:
    loads = [TopicLoad(100 * (at + 1), rate) for at, rate in enumerate(rates)]
    return splitting.flow_or_qps_equally_divide(WHOLE, loads, LoadBounds(at_most, 1e9, 0.5))


def test_a_bundle_is_cut_by_load_only_when_it_is_well_above_its_bound() -> None:
    assert flow(75, 74.9) == []
    assert flow(75, 75) == [150]
    assert flow(150) == [], "a single topic cannot be divided"
    assert flow(0, 150, 0) == []
    assert flow(50, 50, 50) == [250], "as much as the bound may be in one part"
    assert flow(60, 60, 60, 60) == [150, 250, 350]
    sizes = [TopicLoad(100, 0, 90), TopicLoad(200, 0, 90)]
    assert splitting.flow_or_qps_equally_divide(WHOLE, sizes, LoadBounds(1, 100, 0.5)) == [150]
    assert splitting.flow_or_qps_equally_divide(WHOLE, sizes, LoadBounds(1, 1000, 0.5)) == []
    assert splitting.flow_or_qps_equally_divide(WHOLE, sizes) == []
    unsorted = [TopicLoad(300, 90), TopicLoad(100, 90), TopicLoad(200, 1)]
    cuts = splitting.flow_or_qps_equally_divide(WHOLE, unsorted, LoadBounds(100, 1e9, 0.5))
    assert cuts == [250]


def test_cuts_by_range_and_by_topics_have_their_middle() -> None:
    assert splitting.range_equally_divide(Bundle(NAMESPACE, 10, 20)) == [15]
    assert splitting.range_equally_divide(Bundle(NAMESPACE, 10, 11)) == []
    assert splitting.topic_count_equally_divide(WHOLE, [5, 6]) == [6]
    assert splitting.topic_count_equally_divide(WHOLE, [9, 5]) == [7]
    assert splitting.topic_count_equally_divide(WHOLE, [5]) == []
    assert splitting.topic_count_equally_divide(WHOLE, [1, 2, 9]) == [2]
    assert splitting.split_positions(WHOLE, splitting.POSITIONS, [], [7, 3, 7, 0]) == [3, 7]
    with pytest.raises(PreconditionFailed, match="can't be empty"):
        splitting.split_positions(WHOLE, splitting.POSITIONS, [])


# -- bundles


def test_edges_belong_to_the_bundle_above_and_the_last_edge_to_the_last_bundle() -> None:
    first, last = QUARTERS[0], QUARTERS[3]
    assert [first.covers(at) for at in (0, 0x3FFFFFFF, 0x40000000)] == [True, True, False]
    assert [last.covers(at) for at in (0xBFFFFFFF, 0xC0000000, RING_END)] == [False, True, True]
    ring = Ring(NAMESPACE, [0, 0x40000000, 0x80000000, 0xC0000000, RING_END])
    assert [ring.at(at) for at in (0, 0x40000000, RING_END)] == [first, QUARTERS[1], last]
    assert first.overlaps(Bundle(NAMESPACE, 0x3FFFFFFF, 0x50000000))
    assert not first.overlaps(QUARTERS[1])
    assert not QUARTERS[1].overlaps(first)
    other = Bundle(NamespaceName("public", "other"), first.lower, first.upper)
    assert not first.overlaps(other)
    assert topic_in(first) in first
    assert topic_in(first) not in other
    assert ring != Ring(NAMESPACE, [0, RING_END])
    assert ring != Ring(other.namespace, [0, 0x40000000, 0x80000000, 0xC0000000, RING_END])
    place = OpenTopic(topic_in(first), 5)
    assert [bundle.holds(place) for bundle in (first, QUARTERS[1], other)] == [True, False, False]


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (None, 9),
        ({}, 9),
        ({"numBundles": 0}, 9),
        ({"numBundles": -1}, 9),
        ({"numBundles": 1}, 1),
        ({"numBundles": BUNDLES_MAX}, BUNDLES_MAX),
        ({"boundaries": ["0x0", "0x10", "0xffffffff"]}, 2),
        ({"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 7}, 1),
    ],
)
def test_a_namespace_gets_the_bundles_that_it_asks_for(
    asked: dict[str, Any] | None, count: int
) -> None:
    found = bundles.requested(asked, default=9)
    assert found["numBundles"] == count == len(found["boundaries"]) - 1
    assert found["boundaries"][0] == "0x00000000"
    assert found["boundaries"][-1] == "0xffffffff"


@pytest.mark.parametrize(
    "asked",
    [
        [1],
        {"numBundles": BUNDLES_MAX + 1},
        {"numBundles": "4"},
        {"boundaries": 7},
        {"boundaries": ["x"]},
        {"boundaries": ["0x1", "0xffffffff"]},
        {"boundaries": ["0x0", "0xfffffffe"]},
        {"boundaries": ["0x0", "0x20", "0x10", "0xffffffff"]},
        {"boundaries": ["0x0", "0x10", "0x10", "0xffffffff"]},
    ],
)
def test_bundles_that_cannot_be_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailed, match="Invalid"):
        bundles.requested(asked)


def test_as_many_bundles_as_may_be_and_no_more() -> None:
    edges = [*range(BUNDLES_MAX), RING_END]
    policies = {"bundles": {"boundaries": [f"0x{edge:08x}" for edge in edges]}}
    last = Bundle(NAMESPACE, BUNDLES_MAX - 1, RING_END)
    with pytest.raises(PreconditionFailed, match="bundles already"):
        bundles.with_split(policies, last, [RING_END - 1])
    fewer = {"bundles": {"boundaries": policies["bundles"]["boundaries"][1:]}}
    fewer["bundles"]["boundaries"][0] = "0x00000000"
    assert bundles.with_split(fewer, last, [RING_END - 1])["bundles"]["numBundles"] == BUNDLES_MAX
    with pytest.raises(PreconditionFailed, match="is not a bundle of its namespace"):
        bundles.with_split(policies, WHOLE, [5])
    for edge in (last.lower, last.upper):
        with pytest.raises(PreconditionFailed, match="cannot be split at"):
            bundles.with_split(fewer, last, [edge])
    assert bundles.requested({"boundaries": policies["bundles"]["boundaries"]})["numBundles"]
    with pytest.raises(PreconditionFailed, match="Invalid bundle boundaries"):
        bundles.requested(
            {"boundaries": [*policies["bundles"]["boundaries"][:-1], "0x10001", "0xffffffff"]}
        )


def test_a_bundle_of_the_url_is_checked_by_both_edges() -> None:
    policies = {"bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"]}}
    good = "0x80000000_0xffffffff"
    assert bundles.ranges(policies) == ["0x00000000_0x80000000", good]
    assert bundles.checked(policies, NAMESPACE, good) == good
    with pytest.raises(
        PreconditionFailed, match="Expected upper boundary of public/default/0x80000000_0xffffffff"
    ):
        bundles.checked(policies, NAMESPACE, "0x80000000_0xc0000000")
    with pytest.raises(PreconditionFailed, match="Invalid lower boundary"):
        bundles.checked(policies, NAMESPACE, "0x40000000_0x80000000")
    assert Located() == HERE


@in_virtual_time
async def test_a_claim_in_vain_shows_the_owner_of_what_overlaps_it_before_the_watch_does() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        one.view.running.clear()
        wide = Bundle(NAMESPACE, QUARTERS[0].lower, QUARTERS[1].upper)
        await stage.store.own(wide, other.record)
        assert one.ownership.owner_of(wide) is None
        assert await one.ownership.claims.acquire(QUARTERS[1]) is None
        assert one.ownership.owner_of(wide) == other.record


@in_virtual_time
async def test_what_is_not_claimed_is_forgotten_without_a_trace() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(QUARTERS[0])
        claims = one.ownership.claims
        assert claims.drop(QUARTERS[1]) is None
        assert set(claims.all) == {QUARTERS[0]}
        claim = claims.all[QUARTERS[0]]
        assert claims.drop(QUARTERS[0]) is claim
        assert claims.drop(QUARTERS[0]) is None
