"""Who owns which hash; the places of a ring's points are those of a Pulsar 4.2.4."""

from itertools import pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch.active import choose_active
from magnetar.broker.dispatch.selector import HASH_MAX, RangeSelector, RingSelector
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.sink import ConsumerSink
from magnetar.broker.subscription.spec import ConsumerSpec, KeySharedMode, KeySharedSpec, SubType
from magnetar.core.clock import SystemClock


class NoSink:
    """Nothing is sent here."""

    writable = False
    address = client_version = ""
    protocol_version = 21


def consumer(name, *, ranges=(), priority=0):
    key_shared = KeySharedSpec(KeySharedMode.STICKY, ranges) if ranges else None
    spec = ConsumerSpec(1, name, SubType.Key_Shared, priority, key_shared=key_shared)
    return Consumer(spec, cast("ConsumerSink", NoSink()), SystemClock())


def test_ring_is_that_of_pulsar():
    first, second = consumer("ks0"), consumer("ks1")
    ring = RingSelector(100)
    ring.add(first)
    ring.add(second)
    ranges = ring.ranges()
    assert ranges[first][:6] == [
        (1, 147), (871, 1022), (1070, 1586), (1619, 2230), (3062, 3594), (3755, 4142),
    ]  # fmt: skip
    assert ranges[second][:4] == [(148, 870), (1023, 1069), (1587, 1618), (2231, 3061)]
    assert ranges[first][-1] == (65362, 65535)
    assert len(ranges[first]) == 53


def test_active_failover_consumer_is_that_of_pulsar():
    consumers = [consumer("fo0"), consumer("fo1")]
    assert choose_active("persistent://t1/n1/a", consumers).name == "fo1"


def test_partitions_spread_over_failover_consumers_of_the_best_priority():
    consumers = [consumer("b"), consumer("a"), consumer("0", priority=1)]
    chosen = [
        choose_active(f"persistent://t/n/x-partition-{index}", consumers).name for index in range(4)
    ]
    assert chosen == ["a", "b", "a", "b"]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, HASH_MAX))
def test_the_ring_depends_only_on_the_attached_consumers(moves, sticky_hash):
    """Joins and leaves that cancel out change nothing, and every hash has its owner."""
    ring = RingSelector(20)
    there: dict[int, Consumer] = {}
    for move in moves:
        if move in there:
            ring.remove(there.pop(move))
        else:
            there[move] = consumer(f"c{move}")
            ring.add(there[move])
    fresh = RingSelector(20)
    for each in there.values():
        fresh.add(each)
    if not there:
        assert ring.select(sticky_hash) is None
        assert ring.ranges() == {}
        return
    assert ring.select(sticky_hash) is not None
    owned = [
        (start, end, owner) for owner, ranges in ring.ranges().items() for start, end in ranges
    ]
    owned.sort(key=lambda each: each[0])
    assert owned[0][0] == 1
    assert owned[-1][1] == HASH_MAX
    assert all(after[0] == before[1] + 1 for before, after in pairwise(owned))
    (owner,) = [owner for start, end, owner in owned if start <= sticky_hash <= end]
    assert owner is ring.select(sticky_hash)


def test_same_names_have_points_of_their_own():
    ring = RingSelector(100)
    twins = [consumer("same"), consumer("same"), consumer("same")]
    for each in twins:
        ring.add(each)
    sizes = [sum(end - start + 1 for start, end in each) for each in ring.ranges().values()]
    assert sum(sizes) == HASH_MAX
    assert min(sizes) > HASH_MAX // 10
    before = ring.ranges()[twins[1]]
    ring.remove(twins[1])
    back = consumer("same")
    ring.add(back)
    assert ring.ranges()[back] == before


def test_sticky_ranges_have_gaps_and_edges():
    ranges = RangeSelector()
    first, second = consumer("a", ranges=((1, 10), (20, 30))), consumer("b", ranges=((11, 11),))
    ranges.add(first)
    ranges.add(second)
    found = {each: ranges.select(each) for each in (1, 10, 11, 12, 19, 20, 30, 31)}
    assert [found[each] for each in (1, 10, 20, 30)] == [first] * 4
    assert found[11] is second
    assert found[12] is found[19] is found[31] is None
    ranges.remove(first)
    assert ranges.select(10) is None
    assert ranges.ranges() == {second: [(11, 11)]}


def test_no_key_hashes_to_zero():
    assert RangeSelector().hash_of(b"") == 1
    assert RingSelector(1).hash_of(b"") == 1
