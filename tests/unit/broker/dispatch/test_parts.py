"""Parts of the dispatchers by themselves: chunks and their owners, kept entries, ranges, news."""

import asyncio
from typing import cast

import pytest
from tests.unit.ledger.cluster import virtual

from magnetar.broker.dispatch import chunks as chunks_module
from magnetar.broker.dispatch import waiting_lines as waiting
from magnetar.broker.dispatch.active import choose_active
from magnetar.broker.dispatch.active_news import UNHEARD_S_MAX, ActiveNews
from magnetar.broker.dispatch.chunks import Chunk, ChunkOwners
from magnetar.broker.dispatch.selector import RangeSelector, RingSelector, new_selector
from magnetar.broker.dispatch.waiting_lines import KEPT_BYTES_MAX, KeptEntries, WaitingLines
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.sink import ConsumerSink
from magnetar.broker.subscription.spec import ConsumerSpec, KeySharedMode, KeySharedSpec, SubType
from magnetar.core.clock import SystemClock
from magnetar.core.errors import ConsumerAssignError
from magnetar.managed_ledger.entry import Entry


class Sink:
    """Records which consumers were notified that they are active."""

    address = client_version = ""
    protocol_version = 21

    def __init__(self) -> None:
        self.writable = True
        self.told: list[bool] = []

    def active_consumer_change(self, consumer_id: int, *, active: bool) -> None:
        self.told.append(active)


def consumer(
    name: str, ranges: tuple[tuple[int, int], ...] | None = None, priority: int = 0
) -> Consumer:
    key_shared = None if ranges is None else KeySharedSpec(KeySharedMode.STICKY, ranges)
    spec = ConsumerSpec(1, name, SubType.Key_Shared, priority, key_shared=key_shared)
    return Consumer(spec, cast("ConsumerSink", Sink()), SystemClock())


def told(one: Consumer) -> list[bool]:
    return cast("Sink", one.sink).told


# -- chunks


def test_the_chunks_of_a_message_have_one_owner_until_the_last() -> None:
    owners, first, second = ChunkOwners(), consumer("a"), consumer("b")
    assert owners.owner(Chunk("m", last=False), first) is first
    assert owners.owner(Chunk("m", last=False), second) is first
    assert owners.owner(Chunk("n", last=False), second) is second
    assert owners.owner(Chunk("m", last=True), second) is first
    assert owners.owner(Chunk("m", last=False), second) is second, "another message of this name"
    assert owners.owner(Chunk("alone", last=True), first) is first
    assert owners.owner(Chunk("alone", last=True), second) is second


def test_messages_in_flight_are_bounded_and_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks_module, "CHUNKED_MESSAGES_MAX", 2)
    owners, first, second = ChunkOwners(), consumer("a"), consumer("b")
    for uuid in "xy":
        owners.owner(Chunk(uuid, last=False), first)
    assert owners.owner(Chunk("x", last=False), second) is first, "as many as may be"
    owners.owner(Chunk("z", last=False), first)
    assert owners.owner(Chunk("y", last=True), second) is first
    assert owners.owner(Chunk("x", last=True), second) is second


def test_a_chunk_waits_for_its_owner_and_for_earlier_ones() -> None:
    owners, owner, other = ChunkOwners(), consumer("a"), consumer("b")
    assert owners.must_park(owner), "it has no permits"
    owner.permits = other.permits = 1
    assert not owners.must_park(owner)
    owners.park((1, 5), owner)
    owners.park((1, 3), owner)
    assert owners.must_park(owner)
    assert not owners.must_park(other)
    assert (len(owners), (1, 5) in owners, (1, 4) in owners) == (2, True, False)
    assert sorted(owners) == [(1, 3), (1, 5)]
    assert (owners.first(owner), owners.first(other)) == ((1, 3), None)
    owners.unpark((1, 4))
    owners.unpark((1, 3))
    assert owners.must_park(owner)
    assert owners.first(owner) == (1, 5)
    owners.unpark((1, 5))
    assert not owners.must_park(owner)
    assert (len(owners), owners.first(owner)) == (0, None)


def test_parked_chunks_of_a_detached_consumer_are_replayed() -> None:
    owners, owner, other = ChunkOwners(), consumer("a"), consumer("b")
    for uuid, each in (("m", owner), ("n", other)):
        owners.owner(Chunk(uuid, last=False), each)
    for entry_id in (7, 3, 5):
        owners.park((1, entry_id), owner)
    owners.park((1, 4), other)
    owners.unpark_up_to((1, 3))
    assert sorted(owners) == [(1, 4), (1, 5), (1, 7)]
    assert owners.left(owner) == [(1, 5), (1, 7)]
    assert list(owners) == [(1, 4)]
    assert owners.left(owner) == []
    third = consumer("c")
    assert owners.owner(Chunk("m", last=False), third) is third
    assert owners.owner(Chunk("n", last=False), third) is other
    owners.clear()
    assert len(owners) == 0
    assert not list(owners)
    assert owners.owner(Chunk("n", last=False), third) is third


# -- waiting


def entry(entry_id: int, size: int) -> Entry:
    return Entry(1, entry_id, bytes(size))


def test_kept_entries_are_bounded_and_given_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "KEPT_OVERHEAD_BYTES", 0)
    kept, half = KeptEntries(), KEPT_BYTES_MAX // 2
    kept.keep((1, 0), entry(0, half), 3)
    kept.keep((1, 1), entry(1, half - 1), 1)
    kept.keep((1, 2), entry(2, 9), 1)
    kept.keep((1, 3), entry(3, 1), 1)
    assert [(1, each) in kept for each in range(4)] == [True, True, True, False]
    found = kept.take((1, 0))
    assert found is not None
    assert (found[0].entry_id, found[1]) == (0, 3)
    assert kept.take((1, 0)) is None
    kept.keep((1, 3), entry(3, 1), 1)
    kept.drop_up_to((1, 2))
    assert [(1, each) in kept for each in range(4)] == [False, False, False, True]
    kept.clear()
    kept.keep((1, 0), entry(0, KEPT_BYTES_MAX), 1)
    kept.keep((1, 1), entry(1, 1), 1)
    assert ((1, 0) in kept, (1, 1) in kept) == (True, False)


def test_lines_keep_the_order_of_a_hash_wherever_a_position_comes_in() -> None:
    lines, owner, other = WaitingLines(), consumer("a"), consumer("b")
    heads = [lines.park((1, each), 7) for each in (5, 9, 3, 7)]
    assert heads == [True, False, True, False]
    assert list(lines.by_hash[7]) == [(1, 3), (1, 5), (1, 7), (1, 9)]
    assert [7 in lines, 8 in lines, len(lines)] == [True, False, 4]
    assert list(lines.behind_head(7, 2)) == [(1, 5), (1, 7)]
    assert list(lines.behind_head(7, 0)) == []
    lines.line_up(7, None)
    lines.line_up(8, owner)
    assert lines.head(owner) is None
    lines.line_up(7, owner)
    lines.line_up(7, other)
    assert lines.head(owner) == ((1, 3), 7)
    assert lines.drop_head(7)
    assert lines.head(other) is None, "the head that it was lined up with is gone"
    lines.line_up(7, other)
    lines.unline_all()
    assert lines.head(other) is None
    lines.drop_up_to((1, 7))
    assert len(lines) == 1
    assert not lines.drop_head(7)
    assert (len(lines), 7 in lines) == (0, False)
    lines.park((1, 1), 7)
    lines.drop_up_to((1, 1))
    assert 7 not in lines
    lines.park((1, 1), 7)
    lines.line_up(7, owner)
    lines.clear()
    assert (len(lines), 7 in lines) == (0, False)
    lines.park((1, 1), 7)
    assert lines.head(owner) is None, "nothing is lined up any more"


# -- ranges


@pytest.mark.parametrize(
    ("ranges", "why"),
    [
        (None, "Must specify key shared meta"),
        ((), "must not be empty"),
        (((5, 4),), r"start > end for range: \[5,4\]"),
        (((1, 5), (5, 6)), r"own ranges conflict: \[1,5\] overlaps with \[5,6\]"),
        (((10, 10),), "Range conflict with consumer"),
        (((1, 10),), "Range conflict with consumer"),
        (((20, 25),), "Range conflict with consumer"),
        (((1, 100),), "Range conflict with consumer"),
    ],
)
def test_conflicting_ranges_are_refused_without_effect(
    ranges: tuple[tuple[int, int], ...] | None, why: str
) -> None:
    selector, first = RangeSelector(), consumer("a", ((10, 20),))
    selector.add(first)
    with pytest.raises(ConsumerAssignError, match=why):
        selector.add(consumer("b", ranges))
    assert selector.ranges() == {first: [(10, 20)]}


def test_ranges_may_touch_and_have_one_hash() -> None:
    selector, first, second = (
        RangeSelector(),
        consumer("a", ((5, 5), (7, 9))),
        consumer("b", ((6, 6),)),
    )
    selector.add(first)
    selector.add(second)
    assert [selector.select(each) for each in range(4, 11)] == [
        None, first, second, first, first, first, None,
    ]  # fmt: skip
    assert selector.ranges() == {first: [(5, 5), (7, 9)], second: [(6, 6)]}
    assert isinstance(new_selector(KeySharedSpec(KeySharedMode.STICKY, ()), 3), RangeSelector)
    assert isinstance(new_selector(KeySharedSpec(KeySharedMode.AUTO_SPLIT, ()), 3), RingSelector)


def test_the_place_of_two_points_goes_to_the_later_consumer_when_the_earlier_leaves() -> None:
    ring, first, second = RingSelector(3), consumer("a"), consumer("b")
    ring.add(first)
    alone = ring.ranges()
    assert alone == {first: [(1, 65535)]}
    point = next(iter(ring._holders))
    ring._holders[point].append(second)
    assert ring.select(point) is first
    ring._holders[point].remove(first)
    ring._changed()
    assert ring.select(point) is second


# -- the active consumer


def test_the_active_consumer_is_of_the_best_priority_and_its_partition() -> None:
    low, first, second = consumer("0", priority=1), consumer("a"), consumer("b")
    names = [
        choose_active(f"persistent://t/n/x-partition-{at}", [second, low, first]).name
        for at in (0, 1, 2, 7)
    ]
    assert names == ["a", "b", "a", "b"]
    assert choose_active("persistent://t/n/x-partition-5", [low]) is low
    topics = [f"persistent://t/n/{at}" for at in range(40)]
    spread = {choose_active(topic, [first, second]).name for topic in topics}
    assert spread == {"a", "b"}
    assert {choose_active(topic, [low, second]) for topic in topics} == {second}


def test_a_consumer_is_notified_whether_it_is_active_after_its_subscribe_is_answered() -> None:
    async def scenario() -> None:
        first, second, third = consumer("a"), consumer("b"), consumer("c")
        holds: dict[Consumer, bool | None] = {first: True, second: False, third: None}
        news = ActiveNews(lambda one: holds[one])
        for each in (first, second, third):
            news.joined(each)
        news.changed([first, second])
        assert (told(first), told(second)) == ([], [])
        news.hears(first)
        news.hears(first)
        assert told(first) == [True]
        holds[first] = False
        news.changed([first])
        assert told(first) == [True, False]
        await asyncio.sleep(UNHEARD_S_MAX * 0.9)
        assert told(second) == []
        await asyncio.sleep(UNHEARD_S_MAX * 0.2)
        assert (told(second), told(third)) == ([False], [])
        fourth = consumer("d")
        holds[fourth] = True
        news.joined(fourth)
        news.left(fourth)
        await asyncio.sleep(2 * UNHEARD_S_MAX)
        assert told(fourth) == []
        news.joined(fourth)
        news.close()
        await asyncio.sleep(2 * UNHEARD_S_MAX)
        assert told(fourth) == []

    virtual(scenario())
