"""The metadata store on a real etcd that dies, changes its leader, compacts, pauses, is cut off."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.etcd import (
    EtcdMember,
    Proxy,
    compact,
    leader_of,
    open_on,
    start_cluster,
    start_etcd,
    stop_all,
)

from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError
from magnetar.metadata.etcd.store import EtcdStore
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import (
    BadRevision,
    Compacted,
    MetadataUnavailable,
    Put,
    Watch,
    WatchEvent,
)

WITHIN_S = 30.0
"""Far more than anything here takes, so that what hangs fails."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    member = start_etcd(tmp_path)
    yield member
    member.stop()


@pytest.fixture
async def proxy(etcd: EtcdMember) -> AsyncIterator[Proxy]:
    proxy = Proxy(etcd.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


def through(proxy: Proxy, member: EtcdMember) -> EtcdMember:
    """The member as seen through the proxy."""
    return EtcdMember(member.directory, proxy.port, member.peer_port)


async def take(watch: Watch, count: int) -> list[WatchEvent]:
    async with asyncio.timeout(WITHIN_S):
        return [await anext(watch) for _ in range(count)]


class Writer:
    """Creates one key after the other, and keeps what it was told of each."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.written: dict[str, int] = {}
        self.unknown: list[str] = []
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        number = 0
        while True:
            key = f"/w/{number:06}"
            number += 1
            try:
                self.written[key] = await self._store.put(key, b"")
            except MetadataUnavailable:
                self.unknown.append(key)

    async def more(self, count: int) -> None:
        """Returns when so many more were written."""
        goal = len(self.written) + count
        async with asyncio.timeout(WITHIN_S):
            while len(self.written) < goal:  # noqa: ASYNC110 - the writer knows no waiters
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def check(self, watch: Watch) -> None:
        """What was acknowledged is there, and the watch saw what is there: once, in order."""
        records = {record.key: record.revision for record in await self._store.list("/w/")}
        assert records.items() >= self.written.items()
        others = set(records) - set(self.written)
        assert len(others) <= len(self.unknown) + 1, "the last one was cancelled"
        seen = await take(watch, len(records))
        assert {event.record.key: event.record.revision for event in seen} == records
        revisions = [event.record.revision for event in seen]
        assert revisions == sorted(set(revisions))


async def test_killed_and_restarted_nothing_is_lost_and_all_goes_on(etcd: EtcdMember) -> None:
    store = await open_on(etcd)
    watch = store.watch("/w/")
    lease = await store.grant_lease(120)
    await store.put("/own", b"", lease_id=lease.id)
    writer = Writer(store)
    for _ in range(2):
        await writer.more(50)
        etcd.stop()
        await asyncio.sleep(0.5)
        etcd.start()
        await writer.more(50)
    await writer.stop()
    await writer.check(watch)
    await lease.keep_alive()
    assert lease.valid
    assert await store.get("/own") is not None
    await store.close()


async def test_the_leader_of_three_is_killed(tmp_path: Path) -> None:
    members = start_cluster(tmp_path)
    try:
        leader = await leader_of(members)
        # The first endpoint is the leader's, more often than not where it hurts.
        store = await open_on(leader, *(each for each in members if each is not leader))
        watch = store.watch("/w/")
        lease = await store.grant_lease(120)
        await store.put("/n", b"0", lease_id=lease.id)
        writer = Writer(store)
        counted = [asyncio.ensure_future(count_up(store)) for _ in range(3)]
        await writer.more(20)
        leader.stop()
        await writer.more(100)
        await lease.keep_alive()
        leader.start()
        await writer.more(20)
        await writer.stop()
        for task in counted:
            task.cancel()
        await asyncio.gather(*counted, return_exceptions=True)
        await writer.check(watch)
        record = await store.get("/n")
        assert record is not None
        sure = sum(task_counts[0] for task_counts in counts.values())
        unsure = sum(task_counts[1] for task_counts in counts.values())
        assert sure <= int(record.value) <= sure + unsure + len(counted)
        await store.close()
    finally:
        stop_all(members)


counts: dict[str, list[int]] = {}


async def count_up(store: EtcdStore) -> None:
    """Increments by compare-and-swap; counts what was surely done, and what may have been."""
    task = asyncio.current_task()
    assert task is not None
    mine = counts[task.get_name()] = [0, 0]
    while True:
        try:
            record = await store.get("/n")
            assert record is not None
            value = str(int(record.value) + 1).encode()
            try:
                await store.put("/n", value, expected=record.revision)
                mine[0] += 1
            except BadRevision:
                continue
            except MetadataUnavailable:
                mine[1] += 1
        except MetadataUnavailable:
            continue


async def test_without_a_quorum_it_says_so_and_goes_on_with_one(tmp_path: Path) -> None:
    members = start_cluster(tmp_path)
    try:
        await leader_of(members)
        alone, *others = members
        store = await open_on(alone, operation_timeout_s=5.0)
        watch = store.watch("/a")
        await store.put("/a", b"1")
        await take(watch, 1)
        stop_all(others)
        with pytest.raises(MetadataUnavailable):
            await store.get("/a")
        for member in others:
            member.spawn()
        await leader_of(members)
        revision = await store.put("/a", b"2")
        assert [event.record.revision for event in await take(watch, 1)] == [revision]
        await store.close()
    finally:
        stop_all(members)


async def test_compacted_under_a_watch_that_was_cut_off(etcd: EtcdMember, proxy: Proxy) -> None:
    near = await open_on(through(proxy, etcd))
    far = await open_on(etcd, root=near.root)
    watch, other = near.watch("/a/"), near.watch("/b/")
    await far.put("/a/1", b"")
    await take(watch, 1)
    proxy.cut()
    await proxy.reset()
    await far.put("/a/2", b"")
    await far.put("/a/3", b"")
    await compact(etcd, await far.revision())
    proxy.heal()
    with pytest.raises(Compacted):
        await take(watch, 1)
    with pytest.raises(Compacted):
        await take(other, 1)
    again = near.watch("/a/")
    revision = await far.put("/a/4", b"")
    assert (await take(again, 1))[0].record.revision == revision
    await near.close()
    await far.close()


async def test_an_idle_watch_outlives_compaction_by_progress(tmp_path: Path) -> None:
    etcd = start_etcd(tmp_path, experimental_watch_progress_notify_interval="200ms")
    try:
        store = await open_on(etcd)
        idle = store.watch("/idle/")
        revision = 0
        for _ in range(50):
            revision = await store.put("/busy", b"")
        async with asyncio.timeout(WITHIN_S):
            while idle.next_revision <= revision:  # type: ignore[attr-defined] # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await compact(etcd, revision)
        etcd.stop()
        etcd.start()
        late = await store.put("/idle/late", b"")
        assert [event.record.revision for event in await take(idle, 1)] == [late]
        await store.close()
    finally:
        etcd.stop()


async def test_a_paused_etcd_is_waited_for_and_writes_say_that_they_are_in_doubt(
    etcd: EtcdMember,
) -> None:
    store = await open_on(etcd, attempt_timeout_s=4.0)
    revision = await store.put("/a", b"1")
    watch = store.watch("/a")
    await store.put("/a", b"2", expected=revision)
    etcd.signal(signal.SIGSTOP)
    reading = asyncio.ensure_future(store.get("/a"))
    with pytest.raises(MetadataUnavailable, match="may or may not have happened"):
        await store.put("/b", b"")
    assert not reading.done()
    etcd.signal(signal.SIGCONT)
    record = await asyncio.wait_for(reading, WITHIN_S)
    assert record is not None
    assert record.value == b"2"
    await store.put("/a", b"3")
    assert [event.record.value for event in await take(watch, 2)] == [b"2", b"3"]
    await store.close()


class Told:
    """A listener of a session."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.changed = asyncio.Event()

    def suspended(self) -> None:
        self._note("suspended")

    async def established(self, *, renewed: bool) -> None:
        self._note("renewed" if renewed else "established")

    def _note(self, word: str) -> None:
        self.words.append(word)
        self.changed.set()

    async def heard(self, count: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while len(self.words) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.mark.parametrize("away_s", [6.0, pytest.param(60.0, marks=pytest.mark.long)])
@pytest.mark.timeout(120)
async def test_unreachable_nothing_hangs_and_all_goes_on(
    etcd: EtcdMember, proxy: Proxy, away_s: float
) -> None:
    near = await open_on(through(proxy, etcd), operation_timeout_s=4.0, keepalive_timeout_s=3.0)
    far = await open_on(etcd, root=near.root)
    watch = near.watch("/a/")
    told = Told()
    session = MetadataSession(near, 5.0, SystemClock(), "p")
    session.add_listener(told)
    await session.start()
    await near.put("/own", b"", lease_id=session.lease_id)
    proxy.cut()
    loop = asyncio.get_running_loop()
    cut_at = loop.time()
    calls = (near.get("/a"), near.list("/"), near.put("/a/x", b""), near.grant_lease(2))
    failures = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(failure) for failure in failures] == [MetadataUnavailable] * len(calls)
    assert all(near.address in str(failure) for failure in failures)
    assert loop.time() - cut_at < WITHIN_S
    await told.heard(2)
    assert not session.valid
    await asyncio.sleep(max(cut_at + away_s - loop.time(), 0))
    revision = await far.put("/a/1", b"")
    async with asyncio.timeout(WITHIN_S):
        while await far.get("/own") is not None:  # noqa: ASYNC110 - etcd looks now and then
            await asyncio.sleep(0.05)
    proxy.heal()
    assert (await take(watch, 1))[0].record.revision == revision
    await told.heard(3)
    assert told.words == ["renewed", "suspended", "renewed"]
    assert await near.put("/a/2", b"", lease_id=session.lease_id) > revision
    await session.stop()
    assert await far.get("/a/2") is None
    await near.close()
    await far.close()


async def test_a_write_that_replaces_is_repeated_others_are_not(
    etcd: EtcdMember, proxy: Proxy
) -> None:
    store = await open_on(through(proxy, etcd), attempt_timeout_s=3.0)
    revision = await store.put("/a", b"1")
    proxy.cut()
    replacing = asyncio.ensure_future(store.put("/a", b"2", expected=revision))
    creating = asyncio.ensure_future(store.transact([Put("/b", b"", 0)]))
    with pytest.raises(MetadataUnavailable):
        await creating
    proxy.heal()
    # Either the first try got through late or a later one did; in doubt it says so.
    try:
        written = await asyncio.wait_for(replacing, WITHIN_S)
    except MetadataUnavailable:
        written = None
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"2"
    assert written in (None, record.revision)
    await store.close()


async def test_a_cluster_that_nobody_answers_for_is_said_so_in_time(tmp_path: Path) -> None:
    member = start_etcd(tmp_path)
    member.stop()
    with pytest.raises(MetadataUnavailable, match=r"endpoint status") as failure:
        await open_on(member, operation_timeout_s=0.5)
    assert member.address in failure.value.message
    assert failure.value.http_status == 503
    assert isinstance(failure.value, MetadataError)
