"""The checkpoint and plain files: durability, and short reads and writes."""

import contextlib
import errno
import os
from pathlib import Path

import pytest
from rocksdict import DbClosedError
from tests.support.sim_disk import SimDisk

from magnetar.bookie.index.store import (
    ARENA_BLOCK_BYTES,
    INFO_LOG_BYTES_MAX,
    INFO_LOGS_KEPT,
    OPEN_FILES_MAX,
    WRITE_BUFFER_BYTES,
    IndexDamaged,
    RocksIndexStore,
)
from magnetar.bookie.journal.checkpoint import Checkpoint, CheckpointDamaged, Mark, read_mark
from magnetar.bookie.journal.files import JournalPosition
from magnetar.disk import direct_file as direct_io
from magnetar.disk.files import UNREADABLE_ERRNOS
from magnetar.disk.os_file import OsFile
from magnetar.disk.os_files import OsFiles

from .conftest import Opener, add, collect_garbage, read_all

DATA = Path("/data")
SALT = bytes(16)


def test_the_checkpoint_on_the_disk_is_the_one_in_memory() -> None:
    disk = SimDisk()
    checkpoint = Checkpoint(disk, DATA, SALT, Mark(JournalPosition(1, 10, 5), 1))
    assert read_mark(disk, DATA, SALT) is None
    checkpoint.journal_begun(3)
    for mark in (
        Mark(JournalPosition(1, 10, 5), 3),
        Mark(JournalPosition(2, 20, 6), 3, index_notes=True),
    ):
        assert checkpoint.mark == mark
        assert read_mark(disk, DATA, SALT) == mark
        checkpoint.advance(JournalPosition(2, 20, 6))
    disk.fault = lambda step, _: OSError(5, "Input/output error") if step == "rename" else None
    with pytest.raises(OSError, match="Input/output"):
        checkpoint.advance(JournalPosition(9, 9, 9))
    assert checkpoint.mark == Mark(JournalPosition(2, 20, 6), 3, index_notes=True), (
        "nothing is durable of that"
    )


def test_a_damaged_checkpoint_stays_until_a_flush_moves_it_and_then_names_the_newest_file() -> None:
    disk = SimDisk()
    checkpoint = Checkpoint(disk, DATA, SALT, Mark(JournalPosition(0, 4096, -1), 0))
    for file_id in (5, 6):
        checkpoint.journal_begun(file_id)
        assert read_mark(disk, DATA, SALT) is None
        assert checkpoint.mark.newest_file_id == file_id
    checkpoint.advance(JournalPosition(6, 4096, 9))
    mark = Mark(JournalPosition(6, 4096, 9), 6, index_notes=True)
    assert read_mark(disk, DATA, SALT) == checkpoint.mark == mark


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.EACCES, errno.EMFILE])
def test_only_medium_errors_make_a_checkpoint_damaged(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other errors, e.g. a missing permission, must not lead to a replay of the whole journal."""
    disk = SimDisk()
    checkpoint = Checkpoint(disk, DATA, SALT, Mark(JournalPosition(1, 10, 5), 1))
    checkpoint.advance(JournalPosition(2, 20, 6))

    def unread(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(disk, "read_all", unread)
    if number in UNREADABLE_ERRNOS:
        with pytest.raises(CheckpointDamaged, match="/data/checkpoint cannot be read"):
            read_mark(disk, DATA, SALT)
    else:
        with pytest.raises(OSError, match="/data/checkpoint") as raised:
            read_mark(disk, DATA, SALT)
        assert raised.value.errno == number


def test_read_continues_after_a_short_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    file = OsFiles().open(path, read_only=True)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 7), offset))
    assert file.read(3, 50) == bytes(range(3, 53))
    assert file.read(90, 50) == bytes(range(90, 100))
    assert file.read(100, 5) == b""
    file.close()


@pytest.mark.parametrize("most", [1, 5, 8])
def test_write_continues_after_a_short_write(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"....")
    file = OsFiles().open(path)
    assert type(file) is OsFile
    pwritev = os.pwritev
    synced: list[int] = []

    def less(fd: int, buffers: list[bytes], offset: int, flags: int = 0) -> int:
        return pwritev(fd, [b"".join(buffers)[:most]], offset)

    monkeypatch.setattr(os, "pwritev", less)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    buffers = [b"one", b"", b"two2", b"three", b"4"]
    assert file.write(buffers, 2, durable=True) == 13
    assert path.read_bytes() == b"..onetwo2three4"
    assert len(synced) == 1
    file.close()


def test_unwritten_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = direct_io.open_direct(path, os.open(path, os.O_RDWR | os.O_CREAT), trim=True)
    file.close()
    file.close()
    assert path.stat().st_size == 0


def test_a_file_is_closed_once(tmp_path: Path) -> None:
    """Its descriptor may be another file's by the second time."""
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    file = OsFiles().open(path, read_only=True)
    assert file.read_once(10, 5) == bytes(5)
    file.close()
    others = [path.open("rb") for _ in range(4)]
    file.close()
    for another in others:
        assert another.read() == bytes(100)
        another.close()


@pytest.mark.parametrize(
    ("text", "file", "offset"),
    [
        ("Corruption: block checksum in /x/index/000012.sst offset 77 size 9", "000012.sst", 77),
        ("IO error: While appending to file: /x/index/000013.log: bad", "000013.log", 0),
        ("Corruption: /x/index/MANIFEST-000004 is short", "MANIFEST-000004", 0),
        ("something else", "index", 0),
    ],
)
def test_index_failure_has_file_and_offset(
    tmp_path: Path, text: str, file: str, offset: int
) -> None:
    store = RocksIndexStore(tmp_path / "index")
    failure = store._failure(RuntimeError(text))
    assert isinstance(failure, IndexDamaged)
    assert (Path(failure.path).name, failure.offset) == (file, offset)
    assert failure.message == f"index {tmp_path / 'index'}: {text}"
    full = store._failure(RuntimeError("IO error: No space left on device"))
    assert isinstance(full, OSError)
    assert full.errno == errno.ENOSPC
    store.close()


class Reopened(RocksIndexStore):
    """Reopens the database once during a read, as after a failed write."""

    def interrupted(self, error: Exception) -> None:
        """Fails like a read of a closed database."""
        former = self._db
        self._restart()
        self._retry_or_raise(former, error)


def test_read_interrupted_by_a_reopened_index_is_repeated(tmp_path: Path) -> None:
    store = Reopened(tmp_path / "index")
    store.interrupted(DbClosedError("closed"))
    store.interrupted(RuntimeError("Already mutably borrowed"))
    with pytest.raises(IndexDamaged):
        store.interrupted(RuntimeError("Corruption"))
    with pytest.raises(IndexDamaged):
        store._retry_or_raise(store._db, DbClosedError("closed, and not reopened"))
    assert store.generation == 3
    store.close()


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_a_bookie_that_has_ended_has_no_file_open(
    open_bookie: Opener, tmp_path: Path, end: str
) -> None:
    """Whoever still refers to it, as a process that opens the next one in the same directory."""
    bookie = await open_bookie()
    folder = str(tmp_path)
    await add(bookie, 1, range(20))
    await bookie.flush()
    await add(bookie, 1, range(20, 30))
    assert await read_all(bookie, 1) == list(range(30))
    await add(bookie, 2, range(20))
    await bookie.flush()
    await bookie.delete_ledger(2)
    await collect_garbage(bookie)
    assert await read_all(bookie, 1) == list(range(30))
    assert any("entry-logs" in path for path in open_files(folder))
    await (bookie.close() if end == "close" else bookie.abort())
    assert open_files(folder) == []


def open_files(folder: str) -> list[str]:
    """Returns the files below a folder that this process has open."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            path = str(descriptor.readlink())
            if path.startswith(folder):
                found.append(path)
    return sorted(found)


def test_the_index_runs_with_its_bounds_and_checks(tmp_path: Path) -> None:
    """RocksDB writes the options that it uses into its directory."""
    store = RocksIndexStore(tmp_path / "index")
    store.close()
    (file,) = (tmp_path / "index").glob("OPTIONS-*")
    lines = (line.strip().partition("=") for line in file.read_text().splitlines())
    used = {name: text for name, _, text in lines}
    wanted = {
        "max_open_files": OPEN_FILES_MAX,
        "write_buffer_size": WRITE_BUFFER_BYTES,
        "max_write_buffer_number": 2,
        "arena_block_size": ARENA_BLOCK_BYTES,
        "max_log_file_size": INFO_LOG_BYTES_MAX,
        "keep_log_file_num": INFO_LOGS_KEPT,
        "cache_index_and_filter_blocks": "true",
        "pin_l0_filter_and_index_blocks_in_cache": "true",
        "filter_policy": "bloomfilter",
        "checksum": "kCRC32c",
        "paranoid_checks": "true",
    }
    assert {name: used[name] for name in wanted} == {k: str(v) for k, v in wanted.items()}
