"""Contract of every metadata store: watches."""

import asyncio
import gc

import pytest

from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Compacted,
    Delete,
    EventKind,
    InvalidOperation,
    MetadataStore,
    Put,
    StoreClosed,
    Watch,
    WatchEvent,
)

WITHIN_S = 30.0
"""Far more than any event takes, so that a missing one fails and does not hang."""


async def take(watch: Watch, count: int) -> list[WatchEvent]:
    return [await asyncio.wait_for(anext(watch), WITHIN_S) for _ in range(count)]


async def seen(watch: Watch, count: int) -> list[tuple[EventKind, str, bytes, int]]:
    return [
        (event.kind, event.record.key, event.record.value, event.record.revision)
        for event in await take(watch, count)
    ]


async def nothing_more(store: MetadataStore, watch: Watch, marker: str = "/a/~marker") -> None:
    """A marker written now is the next thing the watch sees."""
    revision = await store.put(marker, b"")
    assert await seen(watch, 1) == [(EventKind.PUT, marker, b"", revision)]


async def test_a_watch_sees_changes_in_order_each_once(store: MetadataStore) -> None:
    await store.put("/a/old", b"0")
    watch = store.watch("/a/")
    first = await store.put("/a/x", b"1")
    await store.put("/ab", b"elsewhere")
    second = await store.put("/a/x", b"2")
    await store.delete("/a/old")
    assert await seen(watch, 3) == [
        (EventKind.PUT, "/a/x", b"1", first),
        (EventKind.PUT, "/a/x", b"2", second),
        (EventKind.DELETE, "/a/old", b"", second + 1),
    ]
    await nothing_more(store, watch)


async def test_a_transaction_is_seen_whole_in_the_order_of_its_operations(
    store: MetadataStore,
) -> None:
    await store.put("/a/2", b"")
    watch = store.watch("/a")
    revision = await store.transact(
        [Put("/a/9", b"n"), Delete("/a/2"), Delete("/a/none"), Put("/b", b""), Put("/a/1", b"o")]
    )
    assert await seen(watch, 3) == [
        (EventKind.PUT, "/a/9", b"n", revision),
        (EventKind.DELETE, "/a/2", b"", revision),
        (EventKind.PUT, "/a/1", b"o", revision),
    ]
    await nothing_more(store, watch)


async def test_what_was_refused_is_not_seen(store: MetadataStore) -> None:
    await store.put("/a/1", b"")
    watch = store.watch("/a/")
    with pytest.raises(BadRevision):
        await store.transact([Put("/a/2", b""), Put("/a/1", b"", ABSENT)])
    await store.delete("/a/3")
    await nothing_more(store, watch)


async def test_an_event_tells_of_what_can_be_read(store: MetadataStore) -> None:
    watch = store.watch("/a")
    write = asyncio.ensure_future(store.put("/a", b"1"))
    (event,) = await take(watch, 1)
    assert await store.get("/a") == event.record
    assert await write == event.record.revision


async def test_a_watch_resumes_from_a_revision_without_gap_or_repeat(store: MetadataStore) -> None:
    base = await store.revision()
    for i in range(20):
        await store.put(f"/a/{i}", b"")
    whole = await seen(store.watch("/a/", from_revision=base + 1), 20)
    for cut in (1, 7, 19):
        resumed = store.watch("/a/", from_revision=whole[cut - 1][3] + 1)
        assert await seen(resumed, 20 - cut) == whole[cut:]
    await nothing_more(store, resumed)


async def test_from_revision_is_inclusive_and_may_be_the_future(store: MetadataStore) -> None:
    now = await store.put("/a", b"now")
    here, later = store.watch("/a", from_revision=now), store.watch("/a", from_revision=now + 2)
    await store.put("/a", b"next")
    after = await store.put("/a", b"after")
    assert (await seen(here, 1))[0][3] == now
    assert await seen(later, 1) == [(EventKind.PUT, "/a", b"after", after)]
    for revision in (0, -1):
        with pytest.raises(InvalidOperation):
            store.watch("/", from_revision=revision)


async def test_a_past_that_is_gone_is_compacted(form) -> None:
    store: MetadataStore = form.store
    first = await store.put("/a/first", b"")
    await store.put("/a/second", b"")
    await form.forget_past()
    last = await store.put("/a/last", b"")
    watch = store.watch("/a/", from_revision=first)
    with pytest.raises(Compacted):
        await take(watch, 1)
    assert [event[3] for event in await seen(store.watch("/a/", from_revision=last), 1)] == [last]


async def test_a_slow_watcher_is_cut_off_or_catches_up_and_disturbs_nobody(form) -> None:
    store: MetadataStore = form.store
    slow, quick = store.watch("/a/"), store.watch("/a/")
    total = 12_000
    for start in range(0, total, 500):
        await asyncio.gather(*(store.put(f"/a/{i}", b"") for i in range(start, start + 500)))
        await take(quick, 500)
    await nothing_more(store, quick)
    if form.keeps_past:
        revisions = [event.record.revision for event in await take(slow, total)]
        assert revisions == list(range(revisions[0], revisions[0] + total))
    else:
        with pytest.raises(Compacted):
            await take(slow, total)


async def test_many_watchers_see_the_same(store: MetadataStore) -> None:
    watches = [store.watch("/a/") for _ in range(20)] + [store.watch("/a/x") for _ in range(20)]
    others = [store.watch(f"/other/{i}") for i in range(50)]
    await store.put("/a/x/1", b"1")
    await store.delete("/a/x/1")
    expected = await seen(watches[0], 2)
    for watch in watches[1:]:
        assert await seen(watch, 2) == expected
    for i, watch in enumerate(others):
        await nothing_more(store, watch, f"/other/{i}")


async def test_a_waiting_watcher_is_woken(store: MetadataStore) -> None:
    watch = store.watch("/a")
    waiting = asyncio.ensure_future(take(watch, 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    await store.put("/a", b"")
    assert (await waiting)[0].record.key == "/a"


async def test_a_cancelled_wait_loses_nothing(store: MetadataStore) -> None:
    watch = store.watch("/a")
    waiting = asyncio.ensure_future(take(watch, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    revision = await store.put("/a", b"")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [event[3] for event in await seen(watch, 1)] == [revision]


async def test_close_ends_watches_after_what_they_hold(store: MetadataStore) -> None:
    waiting, holding = store.watch("/none"), store.watch("/a")
    waiter = asyncio.ensure_future(take(waiting, 1))
    await asyncio.sleep(0)
    await store.put("/a", b"")
    await store.close()
    with pytest.raises(StoreClosed):
        await waiter
    assert len(await take(holding, 1)) == 1
    for _ in range(2):
        with pytest.raises(StoreClosed):
            await take(holding, 1)


async def test_a_closed_watch_ends(store: MetadataStore) -> None:
    watch = store.watch("/a")
    await store.put("/a", b"")
    watch.close()
    watch.close()
    assert [event async for event in watch] == []
    await store.put("/a", b"")
    assert [event async for event in watch] == []


async def test_dropped_watches_are_forgotten(store: MetadataStore) -> None:
    for i in range(2_000):
        store.watch(f"/dropped/{i}")
    gc.collect()
    await store.put("/dropped/1", b"")
    watch = store.watch("/dropped/1")
    revision = await store.put("/dropped/1", b"")
    assert [event[3] for event in await seen(watch, 1)] == [revision]
