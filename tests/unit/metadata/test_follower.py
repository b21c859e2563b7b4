"""A followed part of the store: the known state always existed, and becomes the present one."""

import asyncio

import pytest
from tests.unit.ledger.cluster import virtual

from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError
from magnetar.core.tasks import TaskSet
from magnetar.metadata.follower import LIST_TIMEOUT_S, RETRY_S, Follower
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Compacted, MetadataUnavailable, Record

PREFIX = "/a/"


class Heard:
    """Records the calls of `changed`; `until` waits for a state of the records."""

    def __init__(self, store: MemoryStore) -> None:
        self.changes: list[tuple[str, int | None]] = []
        self.news = asyncio.Event()
        self.following = Follower(store, PREFIX, self._changed)

    def _changed(self, key: str, record: Record | None) -> None:
        self.changes.append((key, None if record is None else record.revision))
        self.news.set()

    async def until(self, **values: bytes) -> None:
        wanted = {PREFIX + key: value for key, value in values.items()}
        async with asyncio.timeout(20):
            while {k: r.value for k, r in self.following.records.items()} != wanted:
                self.news.clear()
                await self.news.wait()


async def test_it_has_what_there_is_and_follows_what_changes() -> None:
    store, tasks = MemoryStore(SystemClock()), TaskSet("test")
    await store.put("/a/x", b"1")
    await store.put("/b/x", b"1")
    heard = Heard(store)
    tasks.start(heard.following.run(), "follow")
    await heard.following.ready()
    await heard.until(x=b"1")
    await store.put("/a/y", b"2")
    await store.delete("/a/x")
    await heard.until(y=b"2")
    assert heard.changes[-1] == ("/a/x", None)
    await store.close()
    await tasks.stop()


async def test_late_news_does_not_undo_what_is_known_already() -> None:
    store = MemoryStore(SystemClock())
    heard = Heard(store)
    new = Record("/a/x", b"new", 5)
    assert heard.following.seen(new)
    assert not heard.following.seen(Record("/a/x", b"old", 4))
    assert heard.following.records == {"/a/x": new}
    assert heard.following.seen(new)  # it is still valid
    assert heard.changes == [("/a/x", 5)]


async def test_what_was_read_before_it_went_is_not_taken_again() -> None:
    store, tasks = MemoryStore(SystemClock()), TaskSet("test")
    heard = Heard(store)
    tasks.start(heard.following.run(), "follow")
    await heard.following.ready()
    await store.put("/a/x", b"1")
    read = await store.get("/a/x")
    assert read is not None
    await heard.until(x=b"1")
    await store.delete("/a/x")
    await heard.until()
    assert not heard.following.seen(read)
    assert not heard.following.records
    await tasks.stop()


async def test_a_watch_that_was_cut_off_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.metadata.follower.RETRY_S", 0.001)
    store, tasks = MemoryStore(SystemClock()), TaskSet("test")
    await store.put("/a/x", b"1")
    await store.put("/a/y", b"1")
    heard = Heard(store)
    tasks.start(heard.following.run(), "follow")
    await heard.until(x=b"1", y=b"1")
    # While the store is unavailable, one record is deleted and another changes.
    failures = iter([MetadataUnavailable("away")] * 3)
    revision = store.revision

    async def failing() -> int:
        if (error := next(failures, None)) is not None:
            raise error
        return await revision()

    monkeypatch.setattr(store, "revision", failing)
    for watch in [w for watches in store._hub._watches.values() for w in watches]:
        watch.end(MetadataUnavailable("away"))
    await store.delete("/a/x")
    await store.put("/a/y", b"2")
    await heard.until(y=b"2")
    await store.close()
    await tasks.stop()


async def test_a_bug_of_a_listener_does_not_end_the_following(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.metadata.follower.RETRY_S", 0.001)
    store, tasks = MemoryStore(SystemClock()), TaskSet("test")
    bugs = [RuntimeError("a bug")]

    class Buggy(Heard):
        def _changed(self, key: str, record: Record | None) -> None:
            if key == "/a/x" and bugs:
                raise bugs.pop()
            super()._changed(key, record)

    heard = Buggy(store)
    tasks.start(heard.following.run(), "follow")
    await heard.following.ready()
    await store.put("/a/x", b"1")
    await store.put("/a/y", b"2")
    await heard.until(x=b"1", y=b"2")
    assert not bugs
    await store.close()
    await tasks.stop()


async def test_a_key_that_a_read_found_gone_is_gone_unless_it_was_written_since() -> None:
    heard = Heard(MemoryStore(SystemClock()))
    following = heard.following
    for revision in (4, 5):
        following.seen(Record("/a/x", b"", revision))
    following.missing("/a/x", 4)
    following.missing("/a/none", 4)
    assert heard.changes == [("/a/x", 4), ("/a/x", 5)], "it was read before that write"
    following.missing("/a/x", 5)
    assert heard.changes[-1] == ("/a/x", None)
    assert not following.records
    # A late event of a deleted record does not create it again.
    assert not following.seen(Record("/a/x", b"", 5))
    assert following.seen(Record("/a/x", b"", 6))


async def test_what_was_written_here_stays_though_a_list_was_read_before_it() -> None:
    """A list of an older revision lacks it, which does not mean that it was deleted."""
    store, tasks = MemoryStore(SystemClock()), TaskSet("test")
    await store.put("/a/w", b"1")
    heard = Heard(store)
    read = store.list

    async def slow(prefix: str) -> list[Record]:
        found = await read(prefix)
        at = await store.put("/a/x", b"2")
        heard.following.seen(Record("/a/x", b"2", at))
        store.list = read  # type: ignore[method-assign]
        return found

    store.list = slow  # type: ignore[method-assign]
    tasks.start(heard.following.run(), "follow")
    await heard.following.ready()
    await heard.until(w=b"1", x=b"2")
    assert ("/a/x", None) not in heard.changes
    await store.close()
    await tasks.stop()


async def test_what_changes_between_the_revision_and_the_list_is_not_missed() -> None:
    store, tasks = MemoryStore(SystemClock()), TaskSet("test")
    await store.put("/a/x", b"1")
    heard = Heard(store)
    read = store.list

    async def overtaken(prefix: str) -> list[Record]:
        found = await read(prefix)
        await store.delete("/a/x")
        await store.put("/a/y", b"2")
        return found

    store.list = overtaken  # type: ignore[method-assign]
    tasks.start(heard.following.run(), "follow")
    await heard.until(y=b"2")
    await store.close()
    await tasks.stop()


async def test_what_is_learnt_otherwise_during_a_list_hides_nothing_that_others_change() -> None:
    """This process writes a key and finds it deleted; another process writes another key before."""
    store, tasks = MemoryStore(SystemClock()), TaskSet("test")
    heard = Heard(store)
    read = store.list

    async def overtaken(prefix: str) -> list[Record]:
        found = await read(prefix)
        await store.put("/a/others", b"2")
        revision = await store.put("/a/own", b"1")
        assert heard.following.seen(Record("/a/own", b"1", revision))
        await store.delete("/a/own")
        heard.following.missing("/a/own", revision)
        return found

    store.list = overtaken  # type: ignore[method-assign]
    tasks.start(heard.following.run(), "follow")
    await heard.until(others=b"2")
    await store.close()
    await tasks.stop()


@pytest.mark.parametrize("error", [MetadataUnavailable("away"), Compacted("too slow")])
async def test_what_went_while_nothing_was_followed_is_noticed(
    monkeypatch: pytest.MonkeyPatch, error: MetadataError
) -> None:
    monkeypatch.setattr("magnetar.metadata.follower.RETRY_S", 0.001)
    store, tasks = MemoryStore(SystemClock()), TaskSet("test")
    await store.put("/a/x", b"1")
    heard = Heard(store)
    tasks.start(heard.following.run(), "follow")
    await heard.until(x=b"1")
    for watch in [w for watches in store._hub._watches.values() for w in watches]:
        watch.end(error)
    await store.delete("/a/x")
    await heard.until()
    await store.close()
    await tasks.stop()


async def test_the_following_ends_with_its_store() -> None:
    store = MemoryStore(SystemClock())
    heard = Heard(store)
    running = asyncio.ensure_future(heard.following.run())
    await heard.following.ready()
    await store.close()
    await asyncio.wait_for(running, 20)
    again = Heard(store).following
    await asyncio.wait_for(again.run(), 20)
    assert not again._listed.is_set()


def test_a_list_that_is_never_answered_is_given_up_and_read_again() -> None:
    async def scenario() -> None:
        store, tasks = MemoryStore(SystemClock()), TaskSet("test")
        await store.put("/a/x", b"1")
        read, asked = store.list, []

        async def stuck(prefix: str) -> list[Record]:
            asked.append(asyncio.get_running_loop().time())
            if len(asked) == 1:
                await asyncio.Event().wait()
            return await read(prefix)

        store.list = stuck  # type: ignore[method-assign]
        heard = Heard(store)
        tasks.start(heard.following.run(), "follow")
        await heard.following.ready()
        assert asked[1] - asked[0] == pytest.approx(LIST_TIMEOUT_S + RETRY_S)
        await store.close()
        await tasks.stop()

    virtual(scenario())
