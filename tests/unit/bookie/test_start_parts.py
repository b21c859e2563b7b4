"""A start with a torn tail or missing numbers, and the state after it."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.memory_index import MemoryIndexStore
from tests.support.sim_disk import SimDisk, SimFile, SimIndexStore

from magnetar.bookie.api import BookieError
from magnetar.bookie.cache.write_cache import WriteCacheHalf, segment_of
from magnetar.bookie.entry_log import logs as entry_log
from magnetar.bookie.entry_log.logs import EntryLogs, LogWriter
from magnetar.bookie.index.index import FLAG_FENCED, Index
from magnetar.bookie.index.ledgers import Ledgers
from magnetar.bookie.index.store import Batch
from magnetar.bookie.inspect.inspection import inspect
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.files import file_name
from magnetar.bookie.journal.replay import Replay
from magnetar.bookie.journal.scan import JournalScan
from magnetar.bookie.local import LocalBookie
from magnetar.core.log import FIELDS
from magnetar.disk.files import Append

from .conftest import DATA, SMALL, add, entry, open_sim, read_all
from .test_journal_scan import SALT, Maker, scanned

BY_HAND = replace(SMALL, tick_s=1000.0)
JOURNAL = DATA / "journal"
BROKEN = OSError(errno.EIO, "Input/output error")


async def again(
    disk: SimDisk, bookie: LocalBookie, index: SimIndexStore
) -> tuple[LocalBookie, SimIndexStore]:
    await bookie.abort()
    index = SimIndexStore(disk, DATA / "index", index.synced)
    return await open_sim(disk, index, BY_HAND), index


async def test_torn_tail_is_cut_and_reported_once() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    await add(bookie, 1, range(3))
    end = bookie._journal._writer.position.offset
    path = bookie._journal._writer.path
    start = codec.FILE_HEADER_BYTES
    disk.inodes[path].data[end : end + 40] = disk.inodes[path].data[start : start + 40]
    disk.inodes[path].sync()
    for torn in ([end], []):
        bookie, index = await again(disk, bookie, index)
        assert [element.offset for element in bookie._parts.recovered.torn] == torn
        assert bookie._parts.recovered.damage == []
        assert len(disk.inodes[path].data) == end
        assert await read_all(bookie, 1) == [0, 1, 2]
    await bookie.abort()


def test_record_after_missing_numbers_is_valid() -> None:
    """Its number shows the loss; no mark precedes it."""
    maker = Maker()
    maker.add(b"one" * 30)
    maker.seq += 2
    maker.add(b"four" * 30)
    maker.add(b"five" * 30)
    result, bad, _ = scanned(maker)
    assert result == [1, 4, 5]
    assert [(item.first_seq, item.last_seq, item.damage) for item in bad] == [(2, 3, True)]


@pytest.mark.parametrize(
    ("first_seq", "flushed", "missing"),
    [(None, 5, None), (7, None, None), (6, 5, None), (7, 5, (6, 6)), (10, 5, (6, 9))],
)
def test_without_a_checkpoint_the_journal_begins_where_the_index_ends(
    first_seq: int | None, flushed: int | None, missing: tuple[int, int] | None
) -> None:
    disk = SimDisk()
    index = Index(MemoryIndexStore())
    replay = Replay(
        files=disk,
        journal_dir=JOURNAL,
        incarnation=SALT,
        settings=BY_HAND,
        index=index,
        ledgers=Ledgers(index),
        flush=lambda *_: None,
        carried=Batch(),
        now_ms=lambda: 0,
    )
    scan = JournalScan(disk, JOURNAL, SALT)
    scan.first_seq, scan.ends = first_seq, {4: 10, 3: 20}
    replay._check_first(scan, flushed)
    if missing is None:
        assert scan.bad == []
        assert scan.durable_seq == -1
        return
    (result,) = scan.bad
    assert (result.path, result.file_id) == (JOURNAL / file_name(3), 3)
    assert (result.offset, result.end) == (0, 0)
    assert (result.first_seq, result.last_seq) == missing
    assert scan.durable_seq == missing[1]


@pytest.mark.parametrize(
    ("at", "byte"), [(56, 0), (56, 99), (57, 0x80), (58, 1), (59, 1), (60, 1), (63, 1)]
)
def test_invalid_head_claims_no_tables(at: int, byte: int) -> None:
    ids = (4, 6, 7)
    head = codec.encode_head(
        codec.KIND_ADD, 5, 4, 7, -1, entry_ids=ids, lengths=bytes(12), body_bytes=0, body_crc=0
    )
    assert codec.head_bytes_claimed(head[: codec.HEAD_BYTES]) == len(head)
    plain = codec.encode_head(
        codec.KIND_ADD, 5, 4, 7, -1, entry_ids=range(3), lengths=bytes(12), body_bytes=0, body_crc=0
    )
    assert codec.head_bytes_claimed(plain[: codec.HEAD_BYTES]) == len(plain)
    assert codec.head_bytes_claimed(head[: codec.HEAD_BYTES - 1]) == codec.HEAD_BYTES
    changed = bytearray(head[: codec.HEAD_BYTES])
    changed[at] = byte
    assert codec.head_bytes_claimed(bytes(changed)) == codec.HEAD_BYTES


async def test_start_with_a_flush_leaves_states_evictable() -> None:
    """Excess states are evicted, except those of a flush under way."""
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    for first in range(0, 30, 3):
        await add(bookie, 1, range(first, first + 3))
    await bookie.abort()
    index = SimIndexStore(disk, DATA / "index", index.synced)
    bookie = await open_sim(disk, index, replace(BY_HAND, write_cache_bytes=1000))
    assert index.generation == 0
    assert bookie._ledgers.flushing is False
    assert await read_all(bookie, 1) == list(range(30))
    await bookie.close()


async def test_the_inspector_opens_no_file_to_write_to_it() -> None:
    class Watched(SimDisk):
        opened: list[tuple[str, bool]] = []  # noqa: RUF012

        def open(
            self,
            path: Path,
            *,
            create: bool = False,
            read_only: bool = False,
            append: Append | None = None,
        ) -> SimFile:
            self.opened.append((path.name, read_only))
            return super().open(path, create=create, read_only=read_only, append=append)

    disk = Watched()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    await add(bookie, 1, range(3))
    await bookie.flush()
    await bookie.abort()
    disk.opened.clear()
    assert not inspect(disk, DATA, lambda _: index).damaged
    assert {name for name, read_only in disk.opened if not read_only} == set()
    assert len(disk.opened) > 3


async def test_flushes_follow_each_other_while_entries_arrive() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, replace(BY_HAND, write_cache_bytes=1000))
    for entry_id in range(6):
        assert await add(bookie, 1, [entry_id], size=1000) is None
        for _ in range(3):
            await asyncio.sleep(0)
        assert bookie.stats().flushes == entry_id + 1
        assert bookie._stage.flushing_s == 0
        assert bookie.stats().fault == ""
    await bookie.close()


@pytest.mark.parametrize(("sizes", "writes"), [([400] * 6, 2), ([2000] * 3, 3), ([100] * 3, 0)])
def test_blocks_are_gathered_up_to_the_write_size(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], writes: int
) -> None:
    monkeypatch.setattr(entry_log, "WRITE_BYTES", 1000)
    disk = SimDisk()
    writer = LogWriter(EntryLogs(disk, DATA / "entry-logs", SALT, BY_HAND))
    writer.append(1, [segment_of([b"x"])], [(0, 1)], [b"x"])
    writer.sync()
    done: list[str] = []
    disk.fault = lambda step, _: done.append(step)
    for number, size in enumerate(sizes, 1):
        writer.append(1, [segment_of([bytes(size)])], [(number, 1)], [bytes(size)])
    assert done.count("write") == writes
    writer.sync()
    assert done.count("write") == writes + (100 in sizes)
    assert done.count("sync") == 1


async def test_only_deletes_are_applied_ahead_of_a_flush_without_room() -> None:
    """Other ledger records would refer to entries that no log has yet."""
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    for ledger_id in (1, 2, 3):
        await add(bookie, ledger_id, range(3))
    await bookie.flush()
    await add(bookie, 1, range(3, 6))
    await bookie.ledger_end(2, fence=True)
    await bookie.delete_ledger(3)
    await bookie._stage.apply_deletes()
    records = dict(bookie._parts.index.ledgers())
    assert records[1].last_entry == 2
    assert not records[2].flags & FLAG_FENCED
    assert records[3].deleted_ms >= 0
    assert [view.ledger_id for view in bookie._parts.index.all_views()] == [1, 2]
    await bookie.flush()
    assert dict(bookie._parts.index.ledgers())[2].flags & FLAG_FENCED
    await bookie.close()


@pytest.mark.parametrize(
    "rewrites",
    [
        [[4]],
        [[4, 5]],
        [[0, 1]],
        [[7]],
        [[4, 5], [4, 5]],
        [[3, 4, 5], [4]],
        [[4], [3, 4, 5]],
        [[0, 1, 2, 3, 4, 5, 6, 7], [2, 3], [5]],
    ],
    ids=str,
)
async def test_rewritten_entry_is_read_with_its_latest_bytes(
    rewrites: list[list[int]],
) -> None:
    """On disk, in the flushing half, and in the active half."""
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), BY_HAND)
    await add(bookie, 1, range(8))
    await bookie.flush()
    newest = {entry_id: entry(1, entry_id) for entry_id in range(8)}
    for number, rewritten in enumerate(rewrites):
        data = [b"again %d %d" % (number, entry_id) for entry_id in rewritten]
        answered: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
        bookie.add_entries(
            1, rewritten, data, last_add_confirmed=-1, on_added=answered.set_result, recovery=True
        )
        assert await answered is None
        newest |= dict(zip(rewritten, data, strict=True))
        if number == 0 and len(rewrites) > 1:
            bookie._stage._running = True  # as a flush that takes long
            bookie._halves.flushing, bookie._halves.active = (
                bookie._halves.active,
                WriteCacheHalf(),
            )
            bookie._ledgers.get(1).last_indexed = 7
    result: dict[int, bytes] = {}
    while len(result) < 8:
        for item in await bookie.read_entries(1, len(result), 7, bytes_max=10_000):
            result[item.entry_id] = item.data
    assert result == newest
    bookie._stage._running = False
    await bookie.abort()


async def test_failed_journal_gives_its_error() -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), BY_HAND)
    disk.fault = lambda _, path: BROKEN if path.suffix == ".journal" else None
    error = await add(bookie, 1, range(3))
    assert str(error).endswith("until a restart: [Errno 5] Input/output error")
    assert bookie.stats().read_only_reason == str(error)
    assert "journal stopped until a restart" in bookie.stats().fault
    disk.fault = None
    await bookie.close()


async def test_a_start_reports_what_it_replayed(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    store = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, store)
    for number in range(3):
        assert await add(bookie, 1, [2 * number, 2 * number + 1], size=500) is None
    await bookie.abort()
    with caplog.at_level("INFO"):
        again = await open_sim(disk, store)
    (record,) = [each for each in caplog.records if each.message == "bookie data opened"]
    fields = vars(record)[FIELDS]
    assert fields["records_replayed"] == 3
    assert 3_000 < fields["bytes_replayed"] < 6_000
    assert fields["damaged_ranges"] == 0
    await again.abort()
