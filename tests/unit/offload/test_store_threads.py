"""A folder that hangs delays only its own reads."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from magnetar.metadata.memory import MemoryStore
from magnetar.offload import file_format, store_threads, trash
from magnetar.offload.cold_files import ColdFiles, FileRef
from magnetar.offload.errors import ColdFileMissing, ColdStoreUnavailable
from magnetar.offload.file_format import EntryFile, fetch, size_of
from magnetar.offload.folder_reads import read_range
from magnetar.offload.store_threads import (
    STORES_MAX,
    THREADS_PER_STORE_MAX,
    WAITING_MAX,
    StoreThreads,
)
from magnetar.offload.stores import StoreSpec, open_object_store
from magnetar.offload.trash import TrashedFile, empty_trash, put_in_trash

HUNG_S = 20.0
"""Until a test that hangs is given up; nothing is measured by it."""


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Creates a folder whose `file` blocks every open until the test ends."""
    monkeypatch.setattr(store_threads, "IDLE_S", 0.0)
    folder = tmp_path / "hung"
    folder.mkdir()
    os.mkfifo(folder / "file")
    before = set(threading.enumerate())
    yield folder
    release(folder / "file")
    for thread in set(threading.enumerate()) - before:
        thread.join(HUNG_S)


def release(fifo: Path) -> None:
    """Whoever waits for a writer has one, and fails to read at an offset of a pipe."""
    with contextlib.suppress(OSError):
        writing = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        fifo.unlink()
        os.close(writing)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_format, "FETCH_TIMEOUT_S", 0.02)
    monkeypatch.setattr(store_threads, "HANGS_AFTER_S", 0.0)


@pytest.fixture
async def loop_with_one_thread() -> asyncio.AbstractEventLoop:
    """Its default executor has one, which resolves names."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    return loop


async def stick(folder: Path) -> None:
    """All threads of the folder's store hang."""
    store = open_object_store(StoreSpec("filesystem", str(folder)))
    hanging: list[Path] = []

    def noted(path: Path, start: int, end: int) -> bytes:
        hanging.append(path)
        return read_range(path, start, end)

    async with asyncio.timeout(HUNG_S):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("magnetar.offload.file_format.read_range", noted)
            # A read that is given up before its thread has had a turn hangs nowhere.
            while len(hanging) < THREADS_PER_STORE_MAX:
                with pytest.raises(ColdStoreUnavailable, match=r"no answer in|reads hang"):
                    await fetch(store, "file", 0, 1)
                await asyncio.sleep(0.001)


async def test_names_are_resolved_and_other_folders_read_where_one_hangs(
    hung: Path, tmp_path: Path, impatient: None, loop_with_one_thread: asyncio.AbstractEventLoop
) -> None:
    try:
        await stick(hung)
        async with asyncio.timeout(HUNG_S):
            assert await loop_with_one_thread.getaddrinfo("127.0.0.1", 80)
        store = open_object_store(StoreSpec("filesystem", str(hung)))
        for asked in (fetch(store, "file", 0, 1), size_of(store, "file")):
            with pytest.raises(ColdStoreUnavailable, match="does not answer: 8 reads hang"):
                await asked
        with pytest.raises(ColdStoreUnavailable, match="reads hang"):
            await EntryFile.open(store, "file", file_bytes=100)
        (tmp_path / "well").mkdir()
        (tmp_path / "well" / "file").write_bytes(b"abc")
        well = open_object_store(StoreSpec("filesystem", str(tmp_path / "well")))
        file_format.FETCH_TIMEOUT_S = HUNG_S  # type: ignore[misc]  # set back by `impatient`
        assert await fetch(well, "file", 1, 3) == b"bc"
        assert await size_of(well, "file") == 3
        with pytest.raises(ColdFileMissing):
            await size_of(well, "absent")
    finally:
        release(hung / "file")


async def test_a_folder_that_answers_again_is_read_again(hung: Path, impatient: None) -> None:
    await stick(hung)
    (hung / "other").write_bytes(b"abc")
    threads = [each for each in threading.enumerate() if each.name == f"store {hung}"]
    assert len(threads) == THREADS_PER_STORE_MAX
    release(hung / "file")
    for thread in threads:
        await asyncio.to_thread(thread.join, HUNG_S)
        assert not thread.is_alive()
    file_format.FETCH_TIMEOUT_S = HUNG_S  # type: ignore[misc]  # set back by `impatient`
    store = open_object_store(StoreSpec("filesystem", str(hung)))
    assert await fetch(store, "other", 0, 3) == b"abc"


async def test_stores_that_hang_as_they_are_opened_take_no_thread_of_the_loop(
    hung: Path, monkeypatch: pytest.MonkeyPatch, loop_with_one_thread: asyncio.AbstractEventLoop
) -> None:
    """For the trash and for reads; the event loop continues meanwhile."""
    spec = StoreSpec("filesystem", str(hung))

    def opened(_spec: StoreSpec) -> None:
        os.close(os.open(hung / "file", os.O_RDONLY))

    monkeypatch.setattr(trash, "_opened", opened)
    monkeypatch.setattr(trash, "DELETE_TIMEOUT_S", 0.02)
    monkeypatch.setattr("magnetar.offload.cold_files.open_object_store", opened)
    monkeypatch.setattr("magnetar.offload.cold_files.FETCH_DEADLINE_S", 0.02)
    metadata = MemoryStore()
    await metadata.transact([put_in_trash("a/b/persistent/t", [TrashedFile(spec, "file")], 1)])
    files = ColdFiles()
    try:
        assert "cannot be opened in time" in (await empty_trash(metadata)).left[0][1]
        with pytest.raises(ColdStoreUnavailable, match="has not answered"):
            await files.open(FileRef(spec, "file"))
        async with asyncio.timeout(HUNG_S):
            assert await loop_with_one_thread.getaddrinfo("127.0.0.1", 80)
    finally:
        release(hung / "file")
        await files.close()


ENDING = """
import asyncio, sys
from magnetar.offload import file_format
from magnetar.offload.errors import ColdStoreUnavailable
from magnetar.offload.stores import StoreSpec, open_object_store

async def main():
    file_format.FETCH_TIMEOUT_S = 0.02
    try:
        store = open_object_store(StoreSpec("filesystem", sys.argv[1]))
        await file_format.fetch(store, "file", 0, 1)
    except ColdStoreUnavailable:
        print("hung")

asyncio.run(main())
"""


def test_a_process_ends_whatever_hangs(hung: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING, str(hung)],
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("hung\n", "")


def test_calls_wait_for_a_thread_and_not_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "IDLE_S", 0.0)
    threads, go = StoreThreads(), threading.Event()
    begun = threading.Barrier(THREADS_PER_STORE_MAX + 1)

    def first() -> int:
        begun.wait(HUNG_S)
        return -1 if go.wait(HUNG_S) else -2

    running = [threads.submit("a", first) for _ in range(THREADS_PER_STORE_MAX)]
    begun.wait(HUNG_S)
    waiting: list[Future[int]] = [
        threads.submit("a", lambda at=at: at)  # type: ignore[misc]
        for at in range(WAITING_MAX)
    ]
    with pytest.raises(ColdStoreUnavailable, match=f"{WAITING_MAX} reads wait"):
        threads.submit("a", int)
    assert threads.submit("b", int).result(HUNG_S) == 0
    assert waiting[7].cancel()
    last = threads.submit("a", int)
    go.set()
    assert [each.result(HUNG_S) for each in running] == [-1] * THREADS_PER_STORE_MAX
    done = [each.result(HUNG_S) for each in waiting if not each.cancelled()]
    assert done == [at for at in range(WAITING_MAX) if at != 7]
    assert last.result(HUNG_S) == 0


def test_stores_in_use_have_a_bound_and_idle_ones_do_not_count() -> None:
    threads, go = StoreThreads(), threading.Event()
    for at in range(STORES_MAX):
        assert threads.submit(f"idle {at}", int).result(HUNG_S) == 0
    busy = [threads.submit(f"busy {at}", lambda: go.wait(HUNG_S)) for at in range(STORES_MAX)]
    with pytest.raises(ColdStoreUnavailable, match=f"{STORES_MAX} other stores"):
        threads.submit("one more", int)
    go.set()
    assert all(each.result(HUNG_S) for each in busy)


async def test_what_work_raises_is_raised_to_who_waits() -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        await store_threads.in_thread_of("a", lambda: os.stat("absent"))
