"""Data directories that a bookie refuses, and that it leaves unchanged."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from google_crc32c import value
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie import identity as identity_file
from magnetar.bookie.identity import DataDirError, decode, open_identity, read_identity
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.store import Batch, IndexDamaged
from magnetar.bookie.local import LocalBookie

from .conftest import DATA, SMALL, add, open_sim, read_all

BY_HAND = replace(SMALL, tick_s=1000.0)


def test_an_empty_directory_is_formatted_once_and_durably() -> None:
    disk = SimDisk()
    created, new = open_identity(disk, DATA, "b1")
    assert (created.bookie_id, created.format_version, new) == ("b1", 1, True)
    again, new = open_identity(disk, DATA, "b1")
    assert (again, new) == (created, False)
    for seed in range(5):
        assert read_identity(disk.after_cut(Random(seed)), DATA) == created
    another, _ = open_identity(SimDisk(), DATA, "b1")
    assert another.incarnation != created.incarnation
    assert another.salt != created.salt
    assert created.public == ("b1", created.incarnation)


def test_directory_of_another_bookie_id_is_refused() -> None:
    disk = SimDisk()
    open_identity(disk, DATA, "b1")
    with pytest.raises(DataDirError, match="data of bookie 'b1', not of 'b2'"):
        open_identity(disk, DATA, "b2")
    for name in ("", "a b", "a/b", "x" * 256, "b1\n"):
        with pytest.raises(DataDirError, match="invalid bookie id"):
            open_identity(disk, DATA, name)


@pytest.mark.parametrize("name", ["journal", "entry-logs"])
def test_data_without_an_identity_is_not_a_new_bookie(name: str) -> None:
    disk = SimDisk()
    disk.open(DATA / name / "0000000001", create=True)
    with pytest.raises(DataDirError, match=f"holds data in {name}/ but no identity file"):
        open_identity(disk, DATA, "b1")
    assert read_identity(disk, DATA) is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'"x"', "cannot be read"),
        (b'{"format_version":1}', "cannot be read"),
        (b"{}", "format version None"),
        (b'{"format_version":0}', "format version 0"),
    ],
)
def test_invalid_identity_is_reported(line: bytes, text: str) -> None:
    with pytest.raises(DataDirError, match=text) as raised:
        decode(line + b"\ncrc32c:%08x\n" % value(line), Path("/data/identity"))
    assert "/data/identity" in str(raised.value)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_unreadable_identity_is_not_a_missing_identity(code: int) -> None:
    disk = SimDisk()
    open_identity(disk, DATA, "b1")

    def unreadable(_: Path) -> bytes:
        raise OSError(code, "no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "read_all", unreadable)
        expected = DataDirError if code == errno.EIO else OSError
        with pytest.raises(expected, match="no"):
            open_identity(disk, DATA, "b1")
    assert identity_file.FILE_NAME in disk.names(DATA)


def emptied(index: SimIndexStore) -> None:
    batch = Batch()
    batch.delete_range(b"\0", b"\xff")
    index.write(batch)


def anothers(index: SimIndexStore) -> None:
    batch = Batch()
    index_format.put_identity(batch, bytes(16))
    index.write(batch)


def of_another_version(index: SimIndexStore) -> None:
    batch = Batch()
    identities = index.get(b"midentity")
    assert identities is not None
    batch.put(b"midentity", bytes([identities[0] + 1]) + identities[1:])
    index.write(batch)


def older(index: SimIndexStore) -> None:
    batch = Batch()
    index_format.put_flushed(batch, 2)
    index.write(batch)


def without_note(index: SimIndexStore) -> None:
    batch = Batch()
    batch.delete(b"mflushed")
    index.write(batch)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (emptied, "is empty although entries were stored"),
        (anothers, "belongs to another bookie, incarnation or format version"),
        (of_another_version, "belongs to another bookie, incarnation or format version"),
        (older, "older than the checkpoint: it ends at journal record 2, .* is at 3"),
        (without_note, "older than the checkpoint: it ends before all records"),
    ],
)
async def test_foreign_index_is_refused_and_unchanged(
    change: Callable[[SimIndexStore], None], text: str
) -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    for entry_id in range(3):
        await add(bookie, 1, [entry_id])
    await bookie.flush()
    await bookie.abort()
    good = dict(index.synced)
    index = SimIndexStore(disk, DATA / "index", good)
    change(index)
    index.sync()
    before = {path: bytes(inode.data) for path, inode in disk.inodes.items()}
    for _ in range(2):
        with pytest.raises(DataDirError, match=text):
            await open_sim(disk, index, BY_HAND)
    after = {path: bytes(inode.data) for path, inode in disk.inodes.items()}
    assert {path: data for path, data in after.items() if path.name != "lock"} == {
        path: data for path, data in before.items() if path.name != "lock"
    }
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", good), BY_HAND)
    assert await read_all(bookie, 1) == [0, 1, 2]
    await bookie.close()


@pytest.mark.parametrize("fails", ["to open", "to read"])
async def test_damaged_index_error_says_what_to_do_and_releases_the_lock(fails: str) -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    await add(bookie, 1, range(3))
    await bookie.flush()
    await bookie.abort()

    class Damaged(SimIndexStore):
        closed = 0

        def get(self, key: bytes) -> bytes | None:
            raise IndexDamaged("index /data/index: bad block", "/data/index/7.sst", 77)

        def close(self) -> None:
            self.closed += 1

    damaged = Damaged(disk, DATA / "index", index.synced)

    def opened(_: Path) -> SimIndexStore:
        if fails == "to open":
            damaged.get(b"")
        return damaged

    for number in range(1, 3):
        with pytest.raises(DataDirError, match="bad block; run `magnetar bookie inspect /data`"):
            await LocalBookie.open(
                DATA, "b1", settings=BY_HAND, files=disk, open_index=opened, threads=False
            )
        assert damaged.closed == (number if fails == "to read" else 0)
    again = SimIndexStore(disk, DATA / "index", index.synced)
    bookie = await open_sim(disk, again, BY_HAND)
    assert await read_all(bookie, 1) == [0, 1, 2]
    await bookie.close()
