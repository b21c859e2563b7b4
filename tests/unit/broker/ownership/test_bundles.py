"""Bundles and where they are cut: pure functions, held against what must always be true."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.ownership import split_algorithms as splitting
from magnetar.broker.ownership.bundles import (
    RING_END,
    Bundle,
    Ring,
    bundle_of,
    parts_of,
    requested,
    with_split,
)
from magnetar.broker.ownership.split_algorithms import LoadBounds, TopicLoad
from magnetar.core.errors import PreconditionFailed
from magnetar.core.hashing import bundle_hash
from magnetar.core.names import NamespaceName, parse_topic

NAMESPACE = NamespaceName("public", "default")

places = st.integers(0, RING_END)
edges = st.sets(st.integers(1, RING_END - 1), max_size=20).map(
    lambda inner: sorted({0, RING_END, *inner})
)


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    low, high = sorted(draw(st.sets(places, min_size=2, max_size=2)))
    return Bundle(NAMESPACE, low, high)


@given(edges, places)
def test_every_position_is_in_exactly_one_bundle(boundaries: list[int], position: int) -> None:
    ring = Ring(NAMESPACE, boundaries)
    assert [bundle for bundle in ring.bundles if bundle.covers(position)] == [ring.at(position)]
    assert ring.at(position) in ring


@given(bundles())
def test_a_bundle_is_read_back_from_its_name(bundle: Bundle) -> None:
    assert Bundle.parse(str(bundle)) == bundle


@given(st.integers(0, RING_END - 1))
def test_a_bundle_of_one_position_is_the_smallest(position: int) -> None:
    name = f"{NAMESPACE}/0x{position:08x}_0x%08x"
    assert Bundle.parse(name % (position + 1)) == Bundle(NAMESPACE, position, position + 1)
    for upper in {position, max(0, position - 1)}:
        with pytest.raises(PreconditionFailed):
            Bundle.parse(name % upper)


@pytest.mark.parametrize("text", ["", "a/b", "a/b/0x0_0x1", "a/b/0x00000001_0x00000001", "x"])
def test_what_is_no_bundle_is_refused(text: str) -> None:
    with pytest.raises(PreconditionFailed):
        Bundle.parse(text)


@pytest.mark.parametrize(
    "edges", [(0,), (RING_END,), (1, RING_END), (0, RING_END - 1), (0, 5, 5, RING_END)]
)
def test_bundles_that_are_not_the_whole_ring_once_are_refused(edges: tuple[int, ...]) -> None:
    with pytest.raises(PreconditionFailed, match="must rise"):
        requested({"boundaries": [f"0x{edge:08x}" for edge in edges]})


def test_a_topic_is_where_the_crc_of_its_full_name_puts_it() -> None:
    topic = parse_topic("persistent://public/default/orders")
    policies = default_policies("standalone")
    assert bundle_hash(str(topic)) == 0xB135B9DC
    assert bundle_of(policies, topic) == "0x80000000_0xc0000000"
    assert topic in Bundle(NAMESPACE, 0x80000000, 0xC0000000)


@given(edges, places, st.sets(places, max_size=5))
def test_a_split_moves_nothing_out_of_its_bundle(
    boundaries: list[int], position: int, cuts: set[int]
) -> None:
    ring = Ring(NAMESPACE, boundaries)
    bundle = ring.at(position)
    positions = [at for at in cuts if bundle.lower < at < bundle.upper]
    policies = {"bundles": {"boundaries": [f"0x{edge:08x}" for edge in boundaries]}, "other": 1}
    if not positions:
        with pytest.raises(PreconditionFailed):
            with_split(policies, bundle, positions)
        return
    after = with_split(policies, bundle, positions)
    parts = parts_of(bundle, positions)
    kept = [other for other in ring.bundles if other != bundle]
    assert sorted([*kept, *parts]) == Ring.of(NAMESPACE, after).bundles
    assert after["bundles"]["numBundles"] == len(after["bundles"]["boundaries"]) - 1
    assert after["other"] == 1


@given(bundles(), st.lists(places, max_size=30), st.lists(places, max_size=5), st.data())
def test_cuts_rise_strictly_inside_the_bundle(
    bundle: Bundle, topics: list[int], positions: list[int], data: st.DataObject
) -> None:
    rates = st.floats(0, 100)
    loads = [TopicLoad(position, data.draw(rates), data.draw(rates)) for position in topics]
    bounds = LoadBounds(messages=50, size_bytes=50)
    for algorithm in (splitting.RANGE, splitting.TOPIC_COUNT, splitting.FLOW):
        cuts = splitting.split_positions(bundle, algorithm, loads, bounds=bounds)
        assert all(low < high for low, high in pairwise([bundle.lower, *cuts, bundle.upper]))
    if positions:
        cuts = splitting.specified_positions_divide(bundle, positions)
        assert set(cuts) == {at for at in positions if bundle.lower < at < bundle.upper}


@given(bundles().filter(lambda bundle: bundle.upper - bundle.lower > 1), st.data())
def test_half_of_the_topics_goes_to_each_side(bundle: Bundle, data: st.DataObject) -> None:
    inside = st.integers(bundle.lower, bundle.upper - 1)
    topics = sorted(data.draw(st.sets(inside, min_size=2, max_size=20)))
    (cut,) = splitting.topic_count_equally_divide(bundle, topics)
    left = [position for position in topics if position < cut]
    assert len(left) == len(topics) // 2


@given(st.lists(st.floats(1, 100), min_size=2, max_size=40))
def test_a_part_carries_more_than_the_bound_only_with_a_single_topic(rates: list[float]) -> None:
    bundle = Bundle(NAMESPACE, 0, RING_END)
    bounds = LoadBounds(messages=60, size_bytes=1e9)
    loads = [TopicLoad((at + 1) * 1000, rate) for at, rate in enumerate(rates)]
    cuts = splitting.flow_or_qps_equally_divide(bundle, loads, bounds)
    if not cuts:
        assert sum(rates) < bounds.messages * (1 + bounds.excess_ratio)
    for part in parts_of(bundle, cuts):
        inside = [load.messages for load in loads if part.covers(load.ring_position)]
        assert inside
        assert not cuts or len(inside) == 1 or sum(inside) <= bounds.messages


def test_an_unknown_algorithm_is_named() -> None:
    with pytest.raises(PreconditionFailed, match="Unsupported namespace bundle split algorithm"):
        splitting.split_positions(Bundle(NAMESPACE, 0, 9), "thirds", [])
