"""Bounds of the work on stores: refused calls, rounds over the trash, and reads of files."""

import errno
import gc
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.unit.offload.test_cold_files import made

from magnetar.offload import folder_reads, store_threads
from magnetar.offload.cold import ColdLedger
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.errors import ColdFileCorrupt, ColdStoreUnavailable
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.folder_reads import read_range
from magnetar.offload.records import OffloadRecord
from magnetar.offload.store_threads import (
    HANGS_AFTER_S,
    STORES_MAX,
    THREADS_PER_STORE_MAX,
    WAITING_MAX,
    StoreThreads,
    _check,
    _Store,
)
from magnetar.offload.stores import FILESYSTEM, StoreSpec

WAIT_S = 20.0


@pytest.mark.parametrize(
    ("ages", "refused"),
    [
        ([HANGS_AFTER_S] * THREADS_PER_STORE_MAX, True),
        ([HANGS_AFTER_S] * (THREADS_PER_STORE_MAX - 1) + [HANGS_AFTER_S - 0.5], False),
        ([HANGS_AFTER_S] * (THREADS_PER_STORE_MAX - 1), False),
        ([1e6] * THREADS_PER_STORE_MAX, True),
        ([], False),
    ],
)
def test_a_store_hangs_once_all_of_its_threads_have_for_so_long(
    monkeypatch: pytest.MonkeyPatch, ages: list[float], refused: bool
) -> None:
    now = 1024.0  # exact in binary, as the ages are
    monkeypatch.setattr(time, "monotonic", lambda: now)
    store = _Store(threading.Lock())
    store.running = {thread: now - age for thread, age in enumerate(ages)}
    if refused:
        with pytest.raises(ColdStoreUnavailable, match="a does not answer: 8 reads hang"):
            _check("a", store)
    else:
        _check("a", store)


@pytest.mark.parametrize("cancelled", [0, 1, WAITING_MAX])
def test_calls_that_were_given_up_take_no_place_in_the_line(cancelled: int) -> None:
    store = _Store(threading.Lock())
    calls: list[Future[int]] = [Future() for _ in range(WAITING_MAX)]
    store.waiting = deque((call, int) for call in calls)
    for call in calls[:cancelled]:
        call.cancel()
    if cancelled:
        _check("a", store)
        assert [call for call, _ in store.waiting] == calls[cancelled:]
    else:
        with pytest.raises(ColdStoreUnavailable, match=f"{WAITING_MAX} reads wait"):
            _check("a", store)
        store.waiting.pop()
        _check("a", store)
        assert len(store.waiting) == WAITING_MAX - 1


def test_what_threads_share_is_changed_under_the_lock_alone() -> None:
    threads = StoreThreads()
    lock = threads._lock

    class Running(dict[int, float]):
        def __setitem__(self, key: int, value: float) -> None:
            assert lock.locked()
            super().__setitem__(key, value)

        def __delitem__(self, key: int) -> None:
            assert lock.locked()
            super().__delitem__(key)

    class Waiting(deque[Any]):
        def append(self, item: Any, /) -> None:
            assert lock.locked()
            super().append(item)

        def popleft(self) -> Any:
            assert lock.locked()
            return super().popleft()

    store = threads._stores["a"] = _Store(lock)
    store.running, store.waiting = Running(), Waiting()
    for at in range(5):
        assert threads.submit("a", lambda at=at: at).result(WAIT_S) == at  # type: ignore[misc]
    assert store.threads >= 1


def test_a_store_that_does_nothing_makes_room_for_another() -> None:
    threads, go = StoreThreads(), threading.Event()
    busy = [threads.submit(f"busy {at}", lambda: go.wait(WAIT_S)) for at in range(STORES_MAX - 1)]
    assert threads.submit("last", int).result(WAIT_S) == 0
    while store_threads._busy(threads._stores["last"]):
        pass
    last = threads.submit("one more", lambda: go.wait(WAIT_S))
    with pytest.raises(ColdStoreUnavailable, match=f"{STORES_MAX} other stores are in use"):
        threads.submit("too many", int)
    again = threads.submit("busy 0", int)
    go.set()
    assert all(each.result(WAIT_S) for each in (*busy, last))
    assert again.result(WAIT_S) == 0, "a store in use takes more calls"


def test_an_idle_thread_holds_nothing_of_its_last_call() -> None:
    class Content:
        pass

    threads = StoreThreads()
    answer = threads.submit("a", Content)
    held = weakref.ref(answer.result(WAIT_S))
    while not threads._stores["a"].idle:
        pass
    del answer
    gc.collect()
    assert held() is None


OPEN = os.open


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EACCES])
def test_a_folder_without_direct_reads_is_read_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))

    def refused(where: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(code, "refused")
        return OPEN(where, flags, mode)

    monkeypatch.setattr(os, "open", refused)
    if code == errno.EINVAL:
        assert read_range(path, 10, 20) == bytes(range(10, 20))
    else:
        with pytest.raises(OSError, match="refused"):
            read_range(path, 10, 20)
    with pytest.raises(OSError, match=r"refused|No such file"):
        read_range(tmp_path / "absent", 0, 1)


def test_a_system_without_direct_reads_reads_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    monkeypatch.delattr(os, "O_DIRECT")
    assert read_range(path, 10, 20) == bytes(range(10, 20))


@pytest.mark.parametrize("piece", [4096, 8192, 1 << 20])
def test_a_range_of_any_length_is_read_to_its_end_or_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(folder_reads, "PIECE_BYTES", piece)
    path = tmp_path / "file"
    content = bytes(at % 251 for at in range(3 * 4096 + 5))
    path.write_bytes(content)
    for start, end in (
        (0, 1),
        (0, piece),
        (1, piece + 1),
        (1, piece + 2),
        (100, 100),
        (0, len(content)),
        (5000, len(content) + 5000),
        (len(content), len(content) + 1),
    ):
        assert read_range(path, start, end) == content[start:end]
    held = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert str(path) not in held


@pytest.mark.parametrize(
    ("places", "first"),
    [([3], 1), ([3], 2), ([0, 9], 5), ([0, 1, 9], 2), ([0, 1, 9], 8), ([0, 2, 3], 1)],
)
async def test_a_file_with_a_gap_serves_nothing_in_its_place(
    tmp_path: Path, places: list[int], first: int
) -> None:
    """A read by entry id never returns another entry."""
    with (tmp_path / "a").open("wb") as sink:
        writer = EntryFileWriter(sink, managed_ledger="x")
        for entry_id in places:
            writer.add(5, entry_id, b"%d" % entry_id)
        size = writer.close().file_bytes
    files = ColdFiles()
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    ledger = ColdLedger(files, OffloadRecord(5, "a", spec, "a", size, 10, 1, 1, 1, 1, 1))
    with pytest.raises(ColdFileCorrupt, match=f"a has a gap at 5:{first}"):
        await ledger.read(first, 9, bytes_max=1000)
    await files.close()


async def test_a_read_ends_with_the_last_entry_that_was_requested(tmp_path: Path) -> None:
    """Within a row group of many."""
    ref = made(tmp_path, "a", data=[b""] * 30 + [bytes(20)])
    files = ColdFiles()
    record = OffloadRecord(5, "a", ref.store, ref.path, ref.file_bytes or 0, 31, 1, 1, 1, 1, 1)
    ledger = ColdLedger(files, record)
    for first, last in ((0, 0), (0, 7), (3, 5), (7, 7), (9, 30), (20, 25)):
        found = await ledger.read(first, last, bytes_max=1000)
        assert [entry.entry_id for entry in found] == list(range(first, last + 1))
    await files.close()
