"""Writes of the embedded store that go to disk together: their bounds, order and failure."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from random import Random

import pytest
from tests.unit.metadata.test_lease_table import Clock

from magnetar.core.errors import MetadataError, TooManyRequests
from magnetar.metadata import embedded
from magnetar.metadata.embedded import EmbeddedStore, open_embedded
from magnetar.metadata.operations import Change
from magnetar.metadata.store import BadRevision, Check, Delete, LeaseLost, Put, StoreClosed

WITHIN_S = 20.0


class Disk:
    """Holds the writer's groups until the test lets them go, or fails them."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.groups: list[list[str]] = []
        self.revisions: list[int] = []
        self.failure: Exception | None = None
        self._write = store._files.write
        self._going = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self.holding = True
        store._files.write = self._held  # type: ignore[method-assign]

    def _held(self, changes: Iterable[Change], revision: int) -> None:
        changes = list(changes)
        self.groups.append([change.key for change in changes])
        self.revisions.append(revision)
        self._arrived.release()
        if self.holding:
            assert self._going.acquire(timeout=WITHIN_S)
        if self.failure is not None:
            raise self.failure
        self._write(changes, revision)

    async def arrived(self) -> None:
        """Returns once the writer has another group."""
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, self._arrived.acquire, True, WITHIN_S)

    def go(self) -> None:
        self._going.release()

    def go_on(self) -> None:
        self.holding = False
        self._going.release()


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[EmbeddedStore]:
    store = await open_embedded(tmp_path, clock)
    yield store
    await store.close()


def started(*calls: "object") -> "list[asyncio.Task[object]]":
    return [asyncio.ensure_future(call) for call in calls]  # type: ignore[call-overload]


async def test_a_group_has_no_more_commits_than_its_bound(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "GROUP_COMMITS_MAX", 3)
    disk = Disk(store)
    disk.holding = False
    revisions = await asyncio.gather(*(store.put(f"/{number}", b"") for number in range(7)))
    assert [len(group) for group in disk.groups] == [3, 3, 1]
    assert disk.revisions == [3, 6, 7]
    assert revisions == list(range(1, 8))


async def test_a_group_has_no_more_bytes_than_its_bound_and_the_commit_that_passed_it(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "GROUP_BYTES_MAX", 100)
    disk = Disk(store)
    disk.holding = False
    # Of 50 bytes each, with the key.
    await asyncio.gather(*(store.put(f"/{number}", bytes(48)) for number in range(5)))
    assert [len(group) for group in disk.groups] == [2, 2, 1]
    await store.put("/big", bytes(1_000))
    assert disk.groups[-1] == ["/big"]


async def test_what_gathers_while_a_group_is_written_goes_with_the_next(
    store: EmbeddedStore,
) -> None:
    disk = Disk(store)
    first = started(store.put("/a", b"1"))
    await disk.arrived()
    later = started(store.put("/b", b""), store.put("/a", b"2"), store.delete("/a"))
    await asyncio.sleep(0)
    assert await store.revision() == 0, "nothing is durable"
    assert await store.get("/a") is None
    disk.go()
    await disk.arrived()
    assert await asyncio.gather(*first) == [1]
    assert [each.done() for each in later] == [False] * 3
    record = await store.get("/a")
    assert record is not None
    assert (record.value, await store.revision()) == (b"1", 1)
    disk.go_on()
    assert await asyncio.gather(*later) == [2, 3, True]
    assert disk.groups == [["/a"], ["/b", "/a", "/a"]]
    assert await store.get("/a") is None
    assert store._pending == {}


async def test_a_key_with_two_writes_under_way_reads_as_the_first_once_that_is_durable(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "GROUP_COMMITS_MAX", 1)
    disk = Disk(store)
    writes = started(store.put("/a", b"1"), store.put("/a", b"2", expected=1))
    for value, revision in ((None, 0), (b"1", 1)):
        await disk.arrived()
        record = await store.get("/a")
        assert (record and record.value, await store.revision()) == (value, revision)
        listed = [each.value for each in await store.list("/")]
        assert listed == ([] if value is None else [value])
        disk.go()
    assert await asyncio.gather(*writes) == [1, 2]


@pytest.mark.parametrize(
    "refused", [Put("/a", b"", 7), Delete("/a", 7), Check("/a", 7)], ids=["put", "delete", "check"]
)
async def test_a_refusal_because_of_a_write_under_way_waits_for_it(
    store: EmbeddedStore, refused: Put | Delete | Check
) -> None:
    """Told at once, its caller would read the past and try again in vain."""
    disk = Disk(store)
    (write,) = started(store.put("/a", b"1"))
    await disk.arrived()
    (loser,) = started(store.transact([refused]))
    (other,) = started(store.transact([Check("/elsewhere", 7)]))
    for _ in range(3):
        await asyncio.sleep(0)
    assert other.done(), "nothing that is under way concerns it"
    assert not loser.done()
    disk.go_on()
    await write
    with pytest.raises(BadRevision) as failure:
        await loser
    assert failure.value.actual == 1
    with pytest.raises(BadRevision):
        await other


async def test_no_more_writes_wait_than_the_bound(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "WRITES_WAITING_MAX", 2)
    disk = Disk(store)
    writes = started(store.put("/a", b""))
    await disk.arrived()
    writes += started(store.put("/b", b""), store.put("/c", b""))
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="2 metadata writes"):
        await store.put("/d", b"")
    disk.go_on()
    assert await asyncio.gather(*writes) == [1, 2, 3]
    assert await store.put("/d", b"") == 4


# -- failures


async def test_a_failed_group_fails_all_that_wait_and_none_is_seen(store: EmbeddedStore) -> None:
    disk = Disk(store)
    watch = store.watch("/")
    disk.failure = OSError(28, "No space left on device")
    writes = started(store.put("/a", b""), store.put("/b", b""))
    await disk.arrived()
    writes += started(store.put("/c", b""), store.transact([Check("/a", 1)]))
    given_up = writes[1]
    await asyncio.sleep(0)
    given_up.cancel()
    disk.go_on()
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(outcomes[1], asyncio.CancelledError)
    for outcome in (outcomes[0], *outcomes[2:]):
        assert isinstance(outcome, MetadataError)
        assert "No space left on device" in outcome.message
    assert len(disk.groups) == 1
    assert await store.list("/") == []
    assert await store.revision() == 0
    disk.failure = None
    for write in (store.put("/d", b""), store.delete("/a"), store.put("/a", b"", expected=1)):
        with pytest.raises(MetadataError):
            await write
    assert len(disk.groups) == 1, "what is on disk is unknown: nothing more is written"
    await store.close()
    with pytest.raises(StoreClosed):
        await anext(watch)


async def test_a_write_whose_caller_left_is_made_all_the_same(store: EmbeddedStore) -> None:
    disk = Disk(store)
    first, second = started(store.put("/a", b"1"), store.put("/b", b"2"))
    await disk.arrived()
    first.cancel()
    disk.go_on()
    assert await second == 2
    assert [record.key for record in await store.list("/")] == ["/a", "/b"]


# -- leases


async def test_no_write_is_made_under_a_lease_that_is_over(
    store: EmbeddedStore, clock: Clock
) -> None:
    lease = await store.grant_lease(10.0)
    await store.put("/a", b"", lease_id=lease.id)
    clock.seconds += 10.0
    with pytest.raises(LeaseLost):
        await store.put("/b", b"", lease_id=lease.id)
    assert await store.put("/c", b"") == 3, "the deletion of what it had is a revision before it"
    assert [record.key for record in await store.list("/")] == ["/c"]


async def test_a_lease_that_ends_takes_also_what_is_being_written_under_it(
    store: EmbeddedStore, clock: Clock
) -> None:
    disk = Disk(store)
    lease = await store.grant_lease(10.0)
    (write,) = started(store.put("/a", b"", lease_id=lease.id))
    await disk.arrived()
    clock.seconds += 10.0
    later = started(store.put("/b", b""))
    await asyncio.sleep(0)
    disk.go_on()
    assert await write == 1
    assert await asyncio.gather(*later) == [3]
    assert [record.key for record in await store.list("/")] == ["/b"]


async def test_a_revocation_has_happened_once_it_returns(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    lease = await store.grant_lease(10.0)
    await store.put("/a", b"", lease_id=lease.id)
    disk = Disk(store)
    (revoking,) = started(lease.revoke())
    await disk.arrived()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not revoking.done()
    disk.go_on()
    await revoking
    assert await store.list("/") == []
    # One that has no keys has nothing to wait for.
    disk.holding = True
    await asyncio.wait_for((await store.grant_lease(10.0)).revoke(), WITHIN_S)
    disk.holding = False


# -- others


async def test_a_long_listing_lets_others_run(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LIST_TURN_RECORDS", 10)
    await store.transact([Put(f"/a/{number}", b"") for number in range(50)])
    for listing in (store.list("/a/"), store.children("/a/")):
        task = asyncio.ensure_future(listing)
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(await task) == 50
        assert turns > 4


# -- the end


async def test_close_waits_for_what_is_under_way_and_frees_the_files(
    tmp_path: Path, clock: Clock
) -> None:
    store = await open_embedded(tmp_path, clock)
    disk = Disk(store)
    lease = await store.grant_lease(10.0)
    writes = started(store.put("/a", b""), store.put("/b", b"", lease_id=lease.id))
    await disk.arrived()
    closing = started(store.close(), store.close())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not lease.valid
    with pytest.raises(StoreClosed):
        await store.get("/a")
    assert not any(each.done() for each in closing)
    disk.go_on()
    await asyncio.gather(*closing)
    assert await asyncio.gather(*writes) == [1, 2]
    names = [thread.name for thread in threading.enumerate() if thread.is_alive()]
    again = await open_embedded(tmp_path, clock)
    assert [record.key for record in await again.list("/")] == ["/a"]
    await again.close()
    assert names.count("magnetar-metadata-writer") <= 1


async def test_a_store_that_cannot_be_opened_leaves_no_thread(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "000001.log").write_bytes(b"x" * 100)
    before = threading.active_count()
    with pytest.raises(MetadataError, match="corrupt"):
        await open_embedded(tmp_path, clock)
    for thread in threading.enumerate():
        if thread.name == "magnetar-metadata-writer":
            thread.join(WITHIN_S)
    assert threading.active_count() <= before


async def test_records_in_memory_are_those_on_disk(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "RECENT_RECORDS_MAX", 3)
    rng, model = Random(7), dict[str, tuple[bytes, int]]()
    store = await open_embedded(tmp_path / "recent", clock)
    keys = [f"/k/{number}" for number in range(6)]
    for _ in range(300):
        key, size = rng.choice(keys), rng.choice((1, embedded.RECENT_VALUE_BYTES_MAX + 1))
        if rng.random() < 0.3:
            assert await store.delete(key) is (model.pop(key, None) is not None)
        else:
            value, expected = rng.randbytes(size), model.get(key, (b"", 0))[1]
            model[key] = value, await store.put(key, value, expected=expected)
        for read in keys:
            record = await store.get(read)
            assert (record and (record.value, record.revision)) == model.get(read)
        assert len(store._recent) <= 3
    await store.close()
    store = await open_embedded(tmp_path / "recent", clock)
    for read in keys:
        record = await store.get(read)
        assert (record and (record.value, record.revision)) == model.get(read)
    await store.close()


async def test_a_record_that_was_just_written_is_not_read_from_disk(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("/other", b"x" * (embedded.RECENT_VALUE_BYTES_MAX + 1))
    await store.put("/key", b"1")
    read = list[str]()
    monkeypatch.setattr(store._files, "get", read.append)
    await store.get("/key")
    await store.put("/key", b"2")
    await store.get("/other")
    assert read == ["/other"]
