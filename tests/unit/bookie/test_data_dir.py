"""Opening a data directory: identity, lock, and refusals."""

import asyncio
import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie import identity
from magnetar.bookie.api import ID_END, NoSuchLedger
from magnetar.bookie.identity import DataDirError, Identity
from magnetar.bookie.index.index import Index, put_flushed
from magnetar.bookie.index.store import Batch, RocksIndexStore
from magnetar.bookie.inspect.inspection import inspect
from magnetar.bookie.journal import checkpoint
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.checkpoint import Mark
from magnetar.bookie.local import LocalBookie
from magnetar.disk.os_files import OsFiles

from .conftest import DATA, Opener, add, open_sim, read_all


async def test_second_open_fails_with_the_pid_of_the_owner(
    open_bookie: Opener, tmp_path: Path
) -> None:
    await open_bookie()
    with pytest.raises(DataDirError, match=rf"{tmp_path}.*in use by process {os.getpid()}"):
        await open_bookie()


async def test_directory_can_be_reopened_after_close(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    before = bookie.identity
    await bookie.close()
    bookie = await open_bookie()
    assert bookie.identity == before
    assert await read_all(bookie, 1) == [0, 1, 2]


async def test_a_failed_open_leaves_nothing_locked(open_bookie: Opener) -> None:
    await (await open_bookie()).close()
    with pytest.raises(DataDirError, match="bookie 'b1', not of 'b2'"):
        await open_bookie(bookie_id="b2")
    await open_bookie()


async def test_an_empty_disk_is_another_incarnation(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    before = bookie.identity
    await bookie.close()
    shutil.rmtree(tmp_path / "data")
    bookie = await open_bookie()
    assert bookie.identity.bookie_id == before.bookie_id
    assert bookie.identity.incarnation != before.incarnation


async def test_a_newer_format_is_refused(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    public = bookie.identity
    await bookie.close()
    newer = Identity(public.bookie_id, public.incarnation, 2)
    (tmp_path / "data" / "identity").write_bytes(identity.encode(newer))
    with pytest.raises(DataDirError, match="format version 2"):
        await open_bookie()


async def test_data_without_an_identity_is_not_formatted(
    open_bookie: Opener, tmp_path: Path
) -> None:
    await (await open_bookie()).close()
    (tmp_path / "data" / "identity").unlink()
    with pytest.raises(DataDirError, match="no identity file"):
        await open_bookie()


async def test_lost_index_is_not_treated_as_new(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    await bookie.close()
    shutil.rmtree(tmp_path / "data" / "index")
    with pytest.raises(DataDirError, match="index is empty although entries were stored"):
        await open_bookie()


async def test_an_index_of_another_bookie_is_refused(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    await bookie.close()
    other = await LocalBookie.open(tmp_path / "other", "b1")
    await add(other, 1, range(3))
    await other.close()
    shutil.rmtree(tmp_path / "data" / "index")
    shutil.copytree(tmp_path / "other" / "index", tmp_path / "data" / "index")
    with pytest.raises(DataDirError, match="belongs to another bookie"):
        await open_bookie()


async def two_flushes(open_bookie: Opener, data: Path) -> Path:
    """Entries 0 to 4 and 5 to 9 of ledger 1, flushed apart; returns the index after the first."""
    bookie = await open_bookie()
    await add(bookie, 1, range(5))
    await bookie.close()
    shutil.copytree(data / "index", data.parent / "before")
    bookie = await open_bookie()
    await add(bookie, 1, range(5, 10))
    await bookie.close()
    await (await open_bookie()).abort()  # it names a new journal file in the checkpoint
    return data.parent / "before"


def without_note(index: Path) -> None:
    """Changes the index to that of a release without `flushed_seq`."""
    store = RocksIndexStore(index)
    batch = Batch()
    batch.delete(b"mflushed")
    store.write(batch)
    store.sync()
    store.close()


def checkpoint_without_flag(data: Path) -> None:
    """Writes the checkpoint like a release without the flag."""
    path = data / checkpoint.FILE_NAME
    salt = identity.decode((data / "identity").read_bytes(), data).salt
    mark = checkpoint.decode(path.read_bytes(), salt)
    path.write_bytes(checkpoint.encode(salt, Mark(mark.position, mark.newest_file_id)))


@pytest.mark.parametrize("noted", [True, False])
async def test_index_older_than_the_checkpoint_is_refused(
    open_bookie: Opener, tmp_path: Path, noted: bool
) -> None:
    """It would report entries as never stored that the journal no longer has."""
    data = tmp_path / "data"
    before = await two_flushes(open_bookie, data)
    if not noted:
        without_note(before)
    shutil.rmtree(data / "index")
    shutil.copytree(before, data / "index")
    with pytest.raises(DataDirError, match="older than the checkpoint"):
        await open_bookie()
    result = inspect(OsFiles(), data)
    assert any("older than the checkpoint" in finding.text for finding in result.findings)
    assert result.damaged


async def test_data_of_a_release_without_flushed_seq_is_opened(
    open_bookie: Opener, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    await two_flushes(open_bookie, data)
    without_note(data / "index")
    checkpoint_without_flag(data)
    assert not inspect(OsFiles(), data).damaged
    bookie = await open_bookie()
    assert await read_all(bookie, 1) == list(range(10))
    await add(bookie, 1, range(10, 12))
    await bookie.close()
    store = RocksIndexStore(data / "index")
    assert Index(store).flushed_seq == 3
    store.close()


async def test_data_is_opened_after_a_rollback_to_an_older_release(
    open_bookie: Opener, tmp_path: Path
) -> None:
    """The older release flushes and moves the checkpoint, but does not update `flushed_seq`."""
    data = tmp_path / "data"
    await two_flushes(open_bookie, data)
    store = RocksIndexStore(data / "index")
    batch = Batch()
    put_flushed(batch, 1)
    store.write(batch)
    store.sync()
    store.close()
    checkpoint_without_flag(data)
    bookie = await open_bookie()
    assert await read_all(bookie, 1) == list(range(10))
    assert not bookie.stats().fault


async def test_flush_cut_before_its_checkpoint_is_repeated() -> None:
    """A power cut between index sync and checkpoint: `flushed_seq` is ahead of it."""
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    await add(bookie, 1, range(5))
    disk.fault = lambda _, path: (
        OSError(errno.EIO, "no power") if path.name.startswith("checkpoint") else None
    )
    with pytest.raises(OSError, match="no power"):
        await bookie.flush()
    assert Index(index).flushed_seq == 1
    await bookie.abort()
    disk = disk.after_cut(random.Random(1))
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced))
    assert await read_all(bookie, 1) == list(range(5))
    await bookie.close()


@pytest.mark.parametrize("content", [b"", b"garbage", None])
async def test_without_its_checkpoint_the_whole_journal_is_replayed(
    open_bookie: Opener, tmp_path: Path, content: bytes | None
) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(5))
    await bookie.flush()
    await add(bookie, 1, range(5, 8))
    await bookie.ledger_end(1, fence=True)
    await bookie.abort()
    path = tmp_path / "data" / "checkpoint"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    bookie = await open_bookie()
    assert await read_all(bookie, 1) == list(range(8))
    assert (await bookie.ledger_end(1)).fenced
    assert bookie.stats().damaged_ranges == 0
    assert bookie.stats().ledgers_in_limbo_through == -1


async def test_unreadable_checkpoint_is_treated_as_missing() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    await add(bookie, 1, range(5))
    await bookie.flush()
    await add(bookie, 1, range(5, 8))
    await bookie.abort()
    disk = disk.after_cut(random.Random(1))
    disk.unreadable[DATA / checkpoint.FILE_NAME] = [(0, 512)]
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced))
    assert await read_all(bookie, 1) == list(range(8))
    await bookie.close()


async def test_bookie_with_damaged_checkpoint_on_a_full_disk_serves_reads() -> None:
    """The first flush that has room replaces the checkpoint."""
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    await add(bookie, 1, range(5))
    await bookie.flush()
    await add(bookie, 1, range(5, 8))
    await bookie.abort()
    disk = disk.after_cut(random.Random(1))
    disk.inodes[DATA / checkpoint.FILE_NAME].data[20] ^= 1
    disk.inodes[DATA / checkpoint.FILE_NAME].sync()
    disk.capacity = disk.used() + 14_000
    index = SimIndexStore(disk, DATA / "index", index.synced)
    bookie = await open_sim(disk, index)
    assert await read_all(bookie, 1) == list(range(8))
    disk.capacity = 1 << 40
    await bookie.flush()
    await bookie.close()
    bookie = await open_sim(disk, index)
    assert await read_all(bookie, 1) == list(range(8))
    assert bookie.stats().ledgers_in_limbo_through == -1
    await bookie.close()


async def test_unreadable_identity_is_reported() -> None:
    disk = SimDisk()
    await (await open_sim(disk, SimIndexStore(disk, DATA / "index"))).abort()
    disk = disk.after_cut(random.Random(1))
    disk.unreadable[DATA / "identity"] = [(0, 512)]
    with pytest.raises(DataDirError, match="/data/identity cannot be read: Input/output error"):
        await open_sim(disk, SimIndexStore(disk, DATA / "index"))


@pytest.mark.parametrize("name", ["", "a b", "x" * 256, "a/b"])
async def test_a_bookie_id_is_checked(open_bookie: Opener, name: str) -> None:
    with pytest.raises(DataDirError, match="invalid bookie id"):
        await open_bookie(bookie_id=name)


async def test_fence_is_kept_after_its_caller_is_cancelled(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    await bookie.flush()
    asking = asyncio.create_task(bookie.ledger_end(1, fence=True))
    await asyncio.sleep(0)  # its record is queued
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled()
    # Durable after the fence, so that the checkpoint of the flush is beyond both.
    await add(bookie, 2, range(1))
    await bookie.flush()
    await bookie.abort()
    bookie = await open_bookie()
    assert (await bookie.ledger_end(1)).fenced


@pytest.mark.parametrize("first", [ID_END - 1, ID_END])
async def test_record_with_invalid_entry_ids_is_skipped(
    first: int, open_bookie: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older release journalled and acknowledged such a group."""
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    done = asyncio.Event()
    bookie._journal.append(
        codec.KIND_ADD,
        5,
        lambda _: done.set(),
        entry_ids=range(first, first + 2),
        lengths=codec.pack_lengths([b"a", b"b"]),
        body=(b"ab",),
        body_bytes=2,
        body_crc=codec.entries_crc([b"ab"]),
    )
    await asyncio.wait_for(done.wait(), 20)
    await add(bookie, 1, range(3, 6))
    await bookie.abort()
    bookie = await open_bookie()
    assert "journal record skipped" in caplog.text
    assert await read_all(bookie, 1) == list(range(6))
    await bookie.flush()
    with pytest.raises(NoSuchLedger):
        await bookie.ledger_end(5)
    assert await add(bookie, 5, range(3)) is None
