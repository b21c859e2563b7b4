"""A flipped bit or a cut anywhere in a bookie's files: found, named, and never served.

One data directory is made by a real bookie, killed with entries in the journal as well as in
entry logs. Then, copy after copy of it is damaged in one place and opened: whatever is answered
must be the bytes that were acknowledged, or an error that says that they cannot be had. "No such
entry" would be a lie, and so would a fence that has gone. The inspector has to name the place.
"""

import asyncio
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.memory_index import MemoryIndexStore
from tests.support.sim_disk import Inode, SimDisk, SimIndexStore

from magnetar.bookie.api import BookieError, EntryCorrupt, EntryUnknown, LedgerFenced
from magnetar.bookie.identity import DataDirError, read_identity
from magnetar.bookie.index.store import IndexStore, RocksIndexStore
from magnetar.bookie.inspect.inspection import Inspection, inspect
from magnetar.bookie.journal import codec_v1 as journal_codec
from magnetar.bookie.journal.files import file_name
from magnetar.bookie.journal.scan import JournalScan, ScannedRecord
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.settings import BookieSettings
from magnetar.disk.files import Files
from magnetar.disk.os_files import OsFiles

SETTINGS = BookieSettings(
    journal_file_bytes=16 << 10,
    journal_preallocate_bytes=8 << 10,
    journal_reserve_bytes=1 << 10,
    journal_mark_idle_s=0.001,
    write_cache_bytes=1 << 20,
    block_bytes=1500,
    block_bytes_max=3000,
    entry_log_bytes=3 << 10,
    disk_usage_high=1.0,
    disk_free_bytes_min=0,
    disk_reserve_bytes=0,
)
FENCED = 6
MARK_S_MAX = 60.0
"""For the journal's thread on a busy machine; it writes the mark 1 ms after the last commit."""
ALL_LEDGERS = (1, 2, 3, FENCED)


def entry(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d " % (ledger_id, entry_id) * (entry_id % 7 + 3)


@dataclass
class Made:
    """A data directory, what is in it, and its files in memory."""

    path: Path
    acked: set[tuple[int, int]]
    files: dict[Path, bytes]
    index: dict[bytes, bytes]

    def disk(self) -> SimDisk:
        disk = SimDisk()
        disk.inodes = {
            path: Inode(bytearray(data), bytearray(data)) for path, data in self.files.items()
        }
        return disk


async def add(bookie: LocalBookie, ledger_id: int, ids: range) -> BookieError | None:
    answer: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    entries = [entry(ledger_id, id_) for id_ in ids]
    bookie.add_entries(ledger_id, ids, entries, last_add_confirmed=-1, on_added=answer.set_result)
    return await asyncio.wait_for(answer, 20)


async def fill(path: Path) -> set[tuple[int, int]]:
    acked: set[tuple[int, int]] = set()
    bookie = await LocalBookie.open(path, "b1", settings=SETTINGS)
    for turn in range(8):
        for ledger_id in ALL_LEDGERS:
            first = turn * 8
            ids = range(first, first + 8)
            assert await add(bookie, ledger_id, ids) is None
            acked |= {(ledger_id, id_) for id_ in ids}
        if turn in (3, 5):
            await bookie.flush()
        if turn == 6:
            await marked(path)
    await bookie.ledger_end(FENCED, fence=True)
    # Single entries, as unbatched producers send them.
    for turn in range(8, 11):
        for ledger_id in (1, 2, 3):
            for id_ in range(turn * 8, turn * 8 + 8):
                assert await add(bookie, ledger_id, range(id_, id_ + 1)) is None
                acked.add((ledger_id, id_))
    # The mark that follows a pause is what proves the last record durable.
    await marked(path)
    await bookie.abort()
    return acked


async def marked(path: Path) -> None:
    """Waits until the journal's last record is a mark; raises `TimeoutError` if none comes."""
    async with asyncio.timeout(MARK_S_MAX):
        while True:
            if records(OsFiles(), path)[-1].record.kind == journal_codec.KIND_MARK:
                return
            await asyncio.sleep(0.005)


def records(files: Files, path: Path) -> list[ScannedRecord]:
    """The valid records of a data directory's journal."""
    identity = read_identity(files, path)
    assert identity is not None
    scan = JournalScan(files, path / "journal", identity.salt)
    return list(scan.records(0, journal_codec.FILE_HEADER_BYTES, -1))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("bookie") / "data"
    acked = asyncio.run(fill(path))
    store = RocksIndexStore(path / "index")
    index = dict(store.scan(b"\0", b"\xff"))
    store.close()
    files = {
        item: item.read_bytes()
        for item in path.rglob("*")
        if item.is_file() and item.parent.name != "index" and item.name != "lock"
    }
    return Made(path, acked, files, index)


async def check(bookie: LocalBookie, acked: set[tuple[int, int]]) -> int:
    """How many entries cannot be had; fails where an answer is a lie."""
    missing = 0
    for ledger_id, entry_id in sorted(acked):
        try:
            found = await bookie.read_entries(ledger_id, entry_id, entry_id, bytes_max=1)
        except EntryCorrupt as error:
            missing += bool(error.path)
        except EntryUnknown:
            missing += 1
        else:
            assert found[0].data == entry(ledger_id, entry_id)
    assert isinstance(await add(bookie, FENCED, range(900, 901)), LedgerFenced)
    return missing


async def open_and_check(made: Made, disk: SimDisk) -> int:
    index = SimIndexStore(disk, made.path / "index", made.index)
    bookie = await LocalBookie.open(
        made.path, "b1", settings=SETTINGS, files=disk, open_index=lambda _: index, threads=False
    )
    missing = await check(bookie, made.acked)
    # A ledger made after the damage is as good as any.
    assert await add(bookie, 1000, range(3)) is None
    assert len(await bookie.read_entries(1000, 0, 2, bytes_max=1000)) == 3
    # What was found out outlives the next start.
    await bookie.flush()
    await bookie.abort()
    index = SimIndexStore(disk, made.path / "index", index.synced)
    bookie = await LocalBookie.open(
        made.path, "b1", settings=SETTINGS, files=disk, open_index=lambda _: index, threads=False
    )
    assert await check(bookie, made.acked) == missing
    assert len(await bookie.read_entries(1000, 0, 2, bytes_max=1000)) == 3
    await bookie.close()
    return missing


def inspected(made: Made, disk: SimDisk) -> Inspection:
    return inspect(disk, made.path, lambda _: memory_index(made))


def places(made: Made, disk: SimDisk, path: Path, kind: str) -> list[int]:
    """The offsets of the inspector's findings of this kind in the file."""
    found = inspected(made, disk).findings
    return [item.offset for item in found if item.kind == kind and item.file == str(path)]


def memory_index(made: Made) -> IndexStore:
    return MemoryIndexStore(made.index)


def marks_between_records(made: Made) -> list[tuple[Path, int]]:
    """File and offset of each mark that another record of its file follows.

    The journal's thread writes a mark whenever adds pause for `journal_mark_idle_s`, so a busy
    machine adds marks at any place.
    """
    return [
        (made.path / "journal" / file_name(item.file_id), item.offset)
        for item, following in pairwise(records(made.disk(), made.path))
        if item.record.kind == journal_codec.KIND_MARK and item.file_id == following.file_id
    ]


def used_bytes(made: Made) -> Iterator[tuple[Path, int]]:
    """Each file with the bytes of it that mean something."""
    ends = {Path(item.file): item.used_bytes for item in inspected(made, made.disk()).journals}
    for path, data in made.files.items():
        if path.suffix != ".spare":
            yield path, ends.get(path, len(data))


async def test_the_directory_is_sound_to_begin_with(made: Made) -> None:
    found = inspected(made, made.disk())
    assert not [item for item in found.findings if item.kind != "note"]
    names = {path.suffix or path.name for path, _ in used_bytes(made)}
    assert names == {".journal", ".log", "checkpoint", "identity"}
    assert await open_and_check(made, made.disk()) == 0


@pytest.mark.parametrize("part", range(4))
async def test_a_flipped_bit_in_any_file(made: Made, part: int) -> None:
    rng = random.Random(part)
    marks = marks_between_records(made)
    for path, used in used_bytes(made):
        heads = [range(at, at + journal_codec.HEAD_BYTES) for file, at in marks if file == path]
        for _ in range(12):
            bit = rng.randrange(used * 8)
            disk = made.disk()
            disk.flip(path, bit)
            # A mark is written without a sync, so a bad one looks torn: no number is missing.
            torn = any(bit // 8 in head for head in heads)
            named = places(made, disk, path, "torn" if torn else "damage")
            assert named, f"{path.name} bit {bit} was not found"
            assert any(offset <= bit // 8 for offset in named)
            if torn:
                assert await open_and_check(made, disk) == 0
            elif path.name == "identity":
                # Whose data it is, is the one thing that nothing else says.
                with pytest.raises(DataDirError, match=str(path)):
                    await open_and_check(made, disk)
            else:
                await open_and_check(made, disk)


async def test_a_flipped_bit_in_a_mark_between_records_loses_nothing(made: Made) -> None:
    """It is named, and no entry and no fence is given up for it."""
    rng = random.Random(11)
    marks = marks_between_records(made)
    assert marks
    for path, offset in marks:
        at = offset + rng.randrange(journal_codec.HEAD_BYTES)
        disk = made.disk()
        disk.flip(path, at * 8 + rng.randrange(8))
        assert places(made, disk, path, "torn") == [offset]
        assert not inspected(made, disk).damaged
        assert await open_and_check(made, disk) == 0


@pytest.mark.parametrize("kind", [".journal", ".log"])
async def test_lost_sectors(made: Made, kind: str) -> None:
    """Whole sectors that read as zeros, as some disks do when they fail."""
    rng = random.Random(7)
    for path, used in used_bytes(made):
        if path.suffix != kind:
            continue
        for _ in range(10):
            disk = made.disk()
            start = rng.randrange(used) // 512 * 512
            length = rng.choice((512, 1024, 4096))
            data = disk.inodes[path].data
            length = min(length, len(data) - start)
            if start + length >= used and kind == ".journal":
                continue  # zeros to the end are what an unfinished write leaves
            if data[start : start + length] == bytes(length):
                continue
            data[start : start + length] = bytes(length)
            disk.inodes[path].sync()
            assert inspected(made, disk).damaged, f"{path.name} {start} {length} of {used}"
            await open_and_check(made, disk)


async def test_a_torn_tail_of_the_journal_is_cut(made: Made) -> None:
    """What was being written when the power went was promised to nobody; all else is there."""
    newest = max(path for path in made.files if path.suffix == ".journal")
    (facts,) = [item for item in inspected(made, made.disk()).journals if item.file == str(newest)]
    for torn in (b"\x01", b"garbage" * 20, bytes(64) + b"late sector"):
        disk = made.disk()
        data = disk.inodes[newest].data
        data[facts.used_bytes : facts.used_bytes + len(torn)] = torn
        disk.inodes[newest].sync()
        assert not inspected(made, disk).damaged
        assert await open_and_check(made, disk) == 0


async def test_lost_files(made: Made) -> None:
    for path in made.files:
        if path.suffix == ".spare" or path.name == "identity":
            continue
        disk = made.disk()
        del disk.inodes[path]
        if path.name != "checkpoint":
            assert inspected(made, disk).damaged, path.name
        missing = await open_and_check(made, disk)
        assert (missing > 0) == (path.name != "checkpoint")


async def test_a_flipped_bit_in_the_index(made: Made, tmp_path: Path) -> None:
    """RocksDB's own files: its checksums have to tell, and we have to pass that on."""
    rng = random.Random(3)
    tables = [path for path in (made.path / "index").iterdir() if path.suffix == ".sst"]
    manifest = next(path for path in (made.path / "index").iterdir() if "MANIFEST" in path.name)
    targets = [path for path in (*tables, manifest) for _ in range(6)]
    refused = 0
    for number, target in enumerate(targets):
        copy = tmp_path / str(number)
        shutil.copytree(made.path, copy)
        content = bytearray((copy / "index" / target.name).read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (copy / "index" / target.name).write_bytes(content)
        try:
            bookie = await LocalBookie.open(copy, "b1", settings=SETTINGS)
        except DataDirError as error:
            refused += str(copy / "index") in str(error)
        else:
            await check(bookie, made.acked)
            await bookie.abort()
        shutil.rmtree(copy)
    assert refused > 3
