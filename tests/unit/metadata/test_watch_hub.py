"""The watches of an in-process store: compaction, delivery of events, and history."""

import asyncio
import gc
from itertools import pairwise

import pytest

from magnetar.metadata import watches
from magnetar.metadata.store import (
    Compacted,
    EventKind,
    InvalidOperation,
    Record,
    StoreClosed,
    WatchEvent,
)
from magnetar.metadata.watches import LocalWatch, WatchHub


def event(key: str, revision: int, value: bytes = b"") -> WatchEvent:
    return WatchEvent(EventKind.PUT, Record(key, value, revision))


def fill(hub: WatchHub, first: int, last: int, key: str = "/a") -> None:
    for revision in range(first, last + 1):
        hub.publish(revision, [event(key, revision)])


def queued(watch: LocalWatch) -> list[int]:
    return [each.record.revision for each in watch._queue]


def compacted(watch: LocalWatch) -> str | None:
    return str(watch._end) if isinstance(watch._end, Compacted) else None


def test_the_past_ends_at_the_bound_of_events_to_the_very_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "EVENTS_KEPT_MAX", 4)
    hub = WatchHub()
    fill(hub, 1, 4)
    assert queued(hub.watch("/", 1)) == [1, 2, 3, 4]
    fill(hub, 5, 6)
    assert queued(hub.watch("/", 3)) == [3, 4, 5, 6]
    assert compacted(hub.watch("/", 2)) == "revision 2 is compacted; watch from 3"
    assert queued(hub.watch("/", 7)) == queued(hub.watch("/", None)) == []


def test_the_past_ends_at_the_bound_of_bytes_keys_and_values_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "EVENTS_KEPT_BYTES_MAX", 20)
    hub = WatchHub()
    hub.publish(1, [event("/a", 1, bytes(8))])
    hub.publish(2, [event("/b", 2, bytes(8))])
    assert queued(hub.watch("/", 1)) == [1, 2]
    hub.publish(3, [event("/c", 3)])
    assert queued(hub.watch("/", 2)) == [2, 3]
    assert compacted(hub.watch("/", 1))
    hub.publish(4, [event("/d", 4, bytes(8))])
    assert compacted(hub.watch("/", 2))
    assert queued(hub.watch("/", 3)) == [3, 4]


def test_a_revision_of_which_one_event_is_gone_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "EVENTS_KEPT_MAX", 2)
    hub = WatchHub()
    hub.publish(1, [event("/a", 1), event("/b", 1)])
    assert queued(hub.watch("/", 1)) == [1, 1]
    hub.publish(2, [event("/a", 2)])
    assert compacted(hub.watch("/", 1))
    assert queued(hub.watch("/", 2)) == [2]


def test_nothing_before_the_store_was_opened_is_known() -> None:
    hub = WatchHub(revision=7)
    assert compacted(hub.watch("/", 7))
    assert compacted(hub.watch("/", 8)) is None
    for revision in (0, -1):
        with pytest.raises(InvalidOperation, match=f"no revision is {revision}"):
            hub.watch("/", revision)


def test_every_watch_gets_what_its_prefix_covers_of_the_past_and_later() -> None:
    keys = ["/a", "/a/b", "/ab", "/b", "/a/b/c"]
    prefixes = ["", "/", "/a", "/a/", "/a/b", "/a/b/c", "/a/b/c/d", "/c"]
    hub = WatchHub()
    early = {prefix: hub.watch(prefix, None) for prefix in prefixes}
    for revision, key in enumerate(keys, 1):
        hub.publish(revision, [event(key, revision)])
    late = {prefix: hub.watch(prefix, 1) for prefix in prefixes}
    for prefix in prefixes:
        wanted = [number for number, key in enumerate(keys, 1) if key.startswith(prefix)]
        assert queued(early[prefix]) == queued(late[prefix]) == wanted


def test_a_watch_from_the_future_gets_nothing_before() -> None:
    hub = WatchHub()
    fill(hub, 1, 2)
    watch = hub.watch("/", 5)
    fill(hub, 3, 6)
    assert queued(watch) == [5, 6]


async def test_a_watch_that_falls_behind_is_cut_off_at_the_bound_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "WATCH_EVENTS_MAX", 3)
    hub = WatchHub()
    slow, quick = hub.watch("/", None), hub.watch("/", None)
    fill(hub, 1, 3)
    assert queued(slow) == [1, 2, 3]
    for _ in range(3):
        await anext(quick)
    fill(hub, 4, 4)
    assert queued(quick) == [4]
    with pytest.raises(Compacted, match="fell behind"):
        await anext(slow)
    fill(hub, 5, 5)
    assert queued(slow) == []
    assert len(hub) == 1, "it is forgotten"


async def test_a_watch_that_ended_gets_nothing_more_and_keeps_its_first_reason() -> None:
    hub = WatchHub()
    watch = hub.watch("/", None)
    fill(hub, 1, 1)
    watch.end(StoreClosed("first"))
    watch.end(Compacted("second"))
    watch.offer(event("/a", 2))
    assert (await anext(watch)).record.revision == 1
    for _ in range(2):
        with pytest.raises(StoreClosed, match="first"):
            await anext(watch)


async def test_the_end_wakes_those_who_wait() -> None:
    hub = WatchHub()
    waiting = [asyncio.ensure_future(anext(hub.watch(prefix, None))) for prefix in ("/", "/", "/a")]
    await asyncio.sleep(0)
    hub.close()
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, StoreClosed) for outcome in outcomes)
    assert len(hub) == 0


def test_prefixes_that_nobody_watches_any_more_cost_nothing() -> None:
    hub = WatchHub()
    closed = [hub.watch(f"/{'x' * length}", None) for length in range(5)]
    kept = hub.watch("/kept", None)
    for watch in closed:
        watch.close()
    assert list(hub._watches) == ["/kept"]
    assert hub._lengths == (len("/kept"),)
    hub.watch("/dropped", None)
    gc.collect()
    assert len(hub) == 1
    fill(hub, 1, 1, "/kept/a")
    assert queued(kept) == [1]
    again = hub.watch("/new", None)
    assert sorted(hub._watches) == ["/kept", "/new"]
    again.close()
    assert hub._lengths == (len("/kept"),)


def test_one_of_several_watches_of_a_prefix_is_closed_alone() -> None:
    hub = WatchHub()
    first, second = hub.watch("/a", None), hub.watch("/a", None)
    first.close()
    fill(hub, 1, 2)
    assert (queued(first), queued(second)) == ([], [1, 2])


def test_lengths_are_in_order_so_that_the_search_may_stop() -> None:
    hub = WatchHub()
    held = [hub.watch(prefix, None) for prefix in ("/abc", "/", "/ab", "/abcdef")]
    assert all(one < other for one, other in pairwise(hub._lengths))
    fill(hub, 1, 1, "/abcd")
    assert [queued(watch) for watch in held] == [[1], [1], [1], []]
