"""The collector and the entry logs in memory: which logs are dead, small, old or kept."""

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.memory_index import MemoryIndexStore
from tests.support.sim_disk import SimDisk

from magnetar.bookie.api import EntryCorrupt
from magnetar.bookie.cache.write_cache import LedgerEntries, segment_of
from magnetar.bookie.entry_log.codec_v1 import FILE_HEADER_BYTES, decode_file_header
from magnetar.bookie.entry_log.collector import SMALL_LOG_SHARE, SMALL_LOGS_MIN, Collector
from magnetar.bookie.entry_log.flush import pieces
from magnetar.bookie.entry_log.logs import BlockLocation, EntryLogs, LogWriter, file_name, log_ids
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import (
    FLAG_DELETED,
    FLAG_EMPTIED,
    FLAG_FENCED,
    Index,
    LedgerRecord,
    View,
)
from magnetar.bookie.index.store import Batch, IndexDamaged
from magnetar.bookie.settings import BookieSettings

from .conftest import SMALL

LOGS = Path("/logs")
SALT = bytes(16)
BROKEN = OSError(errno.EIO, "Input/output error")
FULL = OSError(errno.ENOSPC, "No space left on device")
LIVES = LedgerRecord(0, 0, 0, -1, 0)


class Rig:
    """Logs and an index in memory; each call of `log` makes one log."""

    def __init__(self, settings: BookieSettings = SMALL) -> None:
        self.disk = SimDisk()
        self.settings = settings
        self.logs = EntryLogs(self.disk, LOGS, SALT, settings)
        self.index = Index(MemoryIndexStore())
        self.collector = Collector(self.logs, self.index, settings)

    def log(self, *ledgers: int, size: int = 100) -> list[View]:
        """A sealed log with one block of one entry of each of the ledgers."""
        writer = LogWriter(self.logs)
        views = []
        for ledger_id in ledgers:
            entries = [b"%d;" % ledger_id + bytes(size)]
            first = len(list(self.index.views(ledger_id)))
            placed = writer.append(ledger_id, [segment_of(entries)], [(first, 1)], entries)
            views.append(View(ledger_id, first, first, *placed))
            batch = Batch()
            index_format.put_view(batch, views[-1])
            self.index.add_usage(batch, placed.log_id, ledger_id, placed.length)
            index_format.put_ledger(batch, ledger_id, LIVES)
            self.index.store.write(batch)
        writer.sync()
        writer.abandon()
        return views

    def record(self, ledger_id: int, flags: int, deleted_ms: int = -1) -> None:
        """Deletes or empties a ledger, as a flush does."""
        batch = Batch()
        index_format.put_ledger(batch, ledger_id, LedgerRecord(0, 0, 0, deleted_ms, flags))
        if flags & (FLAG_DELETED | FLAG_EMPTIED):
            index_format.drop_entries(batch, ledger_id)
        self.index.store.write(batch)

    def readable(self, ledgers: Sequence[int]) -> None:
        """Checks that every view of the ledgers refers to a good block."""
        for ledger_id in ledgers:
            views = list(self.index.views(ledger_id))
            assert views
            for view in views:
                block = self.logs.read(view)
                assert block.entries[0].startswith(b"%d;" % ledger_id)


def failing(rig: Rig, *errors: Exception) -> None:
    """Has the next syncs of the index fail."""
    store, faults = rig.index.store, list(errors)
    sync = store.sync

    def fails() -> None:
        if faults:
            raise faults.pop()
        sync()

    store.sync = fails  # type: ignore[method-assign]


def test_log_is_removed_only_without_views() -> None:
    rig = Rig()
    rig.log(1, 2)
    rig.log(3)
    rig.record(1, FLAG_DELETED, deleted_ms=0)
    size = rig.logs.file(1).size()
    assert rig.collector.collect(0.0, 0, join_small=False).logs_removed == 0
    rig.record(2, FLAG_EMPTIED | FLAG_FENCED)
    report = rig.collector.collect(0.0, 0, join_small=False)
    assert (report.logs_removed, report.bytes_freed) == (1, size)
    assert rig.logs.ids() == [2]
    assert list(rig.index.usage(1)) == []
    rig.readable([3])


def test_log_with_a_writer_is_not_collected() -> None:
    rig = Rig()
    writer = LogWriter(rig.logs)
    writer.append(1, [segment_of([b"x"])], [(0, 1)], [b"x"])
    writer.sync()
    assert rig.logs.sealed_ids() == []
    assert rig.collector.collect(1.0, 0, join_small=True).logs_removed == 0
    writer.abandon()
    assert rig.logs.sealed_ids() == [1]
    assert rig.collector.collect(1.0, 0, join_small=True).logs_removed == 1


def live_share(rig: Rig, log_id: int) -> float:
    live = sum(length for _, length in rig.index.usage(log_id))
    return live / (rig.logs.file(log_id).size() - FILE_HEADER_BYTES)


@pytest.mark.parametrize(("ratio", "rewritten"), [(0.5, 0), (0.5001, 1)])
def test_a_log_is_rewritten_below_its_live_share(ratio: float, rewritten: int) -> None:
    rig = Rig()
    rig.log(1, 2)
    rig.record(1, FLAG_DELETED, deleted_ms=0)
    assert live_share(rig, 1) == 1.0
    report = rig.collector.collect(ratio, 0, join_small=False)
    assert report.logs_compacted == report.logs_removed == rewritten
    assert (report.bytes_copied > 0) == bool(rewritten)
    rig.readable([2])
    assert rig.logs.ids() == ([2] if rewritten else [1])
    if rewritten:
        assert live_share(rig, 2) == 1.0


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("count", [SMALL_LOGS_MIN - 1, SMALL_LOGS_MIN])
def test_small_logs_are_joined_when_there_are_enough(count: int, join: bool) -> None:
    rig = Rig()
    for ledger_id in range(1, count + 1):
        rig.log(ledger_id)
    report = rig.collector.collect(0.0, 0, join_small=join)
    joined = join and count == SMALL_LOGS_MIN
    assert report.logs_compacted == (count if joined else 0)
    rig.readable(range(1, count + 1))


def test_log_is_small_below_its_share_of_a_full_log() -> None:
    rig = Rig()
    for ledger_id in range(1, SMALL_LOGS_MIN + 1):
        rig.log(ledger_id)
    size = rig.logs.file(1).size()
    for entry_log_bytes, joined in ((size * SMALL_LOG_SHARE, 0), (size * SMALL_LOG_SHARE + 1, 4)):
        settings = replace(SMALL, entry_log_bytes=entry_log_bytes)
        collector = Collector(rig.logs, rig.index, settings)
        assert collector.collect(0.0, 0, join_small=True).logs_compacted == joined


@pytest.mark.parametrize(("age_ms", "dropped"), [(4_999, []), (5_000, [1])])
def test_tombstone_is_kept_for_tombstone_kept_s(age_ms: int, dropped: list[int]) -> None:
    rig = Rig(replace(SMALL, tombstone_kept_s=5.0))
    rig.record(1, FLAG_DELETED, deleted_ms=1_000)
    rig.record(2, FLAG_EMPTIED | FLAG_FENCED)
    rig.record(3, FLAG_FENCED)
    report = rig.collector.collect(0.0, 1_000 + age_ms, join_small=False)
    assert report.tombstones_dropped == dropped
    kept = [ledger_id for ledger_id, _ in rig.index.ledgers()]
    assert kept == [ledger_id for ledger_id in (1, 2, 3) if ledger_id not in dropped]


def test_a_collection_that_finds_nothing_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index on a full disk refuses every write, even an empty one."""
    rig = Rig()
    rig.log(1)

    def full(_: Batch) -> None:
        raise FULL

    monkeypatch.setattr(rig.index.store, "write", full)
    report = rig.collector.collect(0.0, 0, join_small=True)
    assert (report.logs_removed, report.logs_compacted) == (0, 0)
    assert rig.logs.ids() == [1]


def test_copied_blocks_stay_when_the_next_copy_fails() -> None:
    """The log of a failed copy is removed, so it must not contain blocks with views."""
    rig = Rig()
    for ledger_id in (1, 2):
        rig.log(ledger_id, 10 + ledger_id)
        rig.record(10 + ledger_id, FLAG_DELETED, deleted_ms=0)
    read_raw, reads = rig.logs.read_raw, [BROKEN]

    def fails_once(view: View) -> bytes:
        if view.ledger_id == 2 and reads:
            raise reads.pop()
        return read_raw(view)

    rig.logs.read_raw = fails_once  # type: ignore[method-assign]
    report = rig.collector.collect(0.9, 0, join_small=False)
    assert report.logs_compacted == 1
    rig.readable([1, 2])
    assert rig.collector.collect(0.9, 0, join_small=False).logs_compacted == 1
    rig.readable([1, 2])


def test_a_log_that_cannot_be_removed_is_reported_and_keeps_no_other_from_its_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    for ledger_id in (1, 2, 3):
        rig.log(ledger_id)
        rig.record(ledger_id, FLAG_DELETED, deleted_ms=0)
    rig.logs.close()
    bad = LOGS / file_name(2)
    rig.disk.fault = lambda step, path: BROKEN if step == "remove" and path == bad else None
    report = rig.collector.collect(0.9, 0, join_small=False)
    rig.disk.fault = None
    assert (report.logs_removed, rig.logs.ids()) == (2, [2])
    (record,) = [each for each in caplog.records if "not collected" in each.message]
    assert bad.name in str(record.__dict__)
    assert rig.collector.collect(0.9, 0, join_small=False).logs_removed == 1


def test_copies_with_possible_views_stay_when_a_later_copy_fails() -> None:
    """The index reports a failure, but has the writes after it is reopened."""
    rig = Rig()
    for ledger_id in (1, 2):
        rig.log(ledger_id, 10 + ledger_id)
        rig.record(10 + ledger_id, FLAG_DELETED, deleted_ms=0)
    failing(rig, IndexDamaged("reopened", "", 0))
    with pytest.raises(IndexDamaged):
        rig.collector.collect(0.9, 0, join_small=False)
    rig.disk.fault = lambda step, _: BROKEN if step == "write" else None
    assert rig.collector.collect(0.9, 0, join_small=False).logs_compacted == 0
    rig.readable([1, 2])


def test_full_disk_ends_compaction_without_partial_copies() -> None:
    rig = Rig()
    for ledger_id in (1, 2, 3):
        rig.log(ledger_id, 10 + ledger_id)
        rig.record(10 + ledger_id, FLAG_DELETED, deleted_ms=0)
    rig.log(4)
    rig.record(4, FLAG_DELETED, deleted_ms=0)
    created: list[Path] = []

    def fault(step: str, path: Path) -> OSError | None:
        if step == "create":
            created.append(path)
        return FULL if step == "write" and path.suffix == ".log" else None

    rig.disk.fault = fault
    report = rig.collector.collect(0.9, 0, join_small=False)
    assert report.logs_removed == 1, "the dead go all the same"
    assert report.logs_compacted == 0
    assert len(created) == 1, "with the room that they leave, the next pass goes on"
    assert rig.logs.ids() == [1, 2, 3]
    rig.disk.fault = None
    assert rig.collector.collect(0.9, 0, join_small=False).logs_compacted == 3
    rig.readable([1, 2, 3])


@pytest.mark.parametrize("failures", [1, 2])
def test_a_log_stays_until_its_copy_is_durably_in_the_index(failures: int) -> None:
    """A full disk keeps unsynced index writes, and a power cut drops them."""
    rig = Rig()
    rig.log(1, 11)
    rig.record(11, FLAG_DELETED, deleted_ms=0)
    store = rig.index.store
    assert isinstance(store, MemoryIndexStore)
    store.sync()
    failing(rig, *[FULL] * failures)
    assert rig.collector.collect(0.9, 0, join_small=False).logs_compacted == 0
    for _ in range(failures):
        rig.collector.collect(0.0, 0, join_small=False)
        rig.readable([1])
        after_cut = Rig()
        after_cut.logs, after_cut.index = rig.logs, Index(MemoryIndexStore(store.synced))
        after_cut.readable([1])
    assert rig.logs.ids() == [2], "the copy is durable, so the old log went"


def test_other_error_skips_only_its_log() -> None:
    rig = Rig()
    for ledger_id in (1, 2, 3):
        rig.log(ledger_id, 10 + ledger_id)
        rig.record(10 + ledger_id, FLAG_DELETED, deleted_ms=0)
    faults = [BROKEN]
    rig.disk.fault = lambda step, _: faults.pop() if step == "sync" and faults else None
    assert rig.collector.collect(0.9, 0, join_small=False).logs_compacted == 2
    rig.readable([1, 2, 3])


def test_a_damaged_block_is_not_copied_and_its_log_is_kept() -> None:
    rig = Rig()
    views = rig.log(1, 2, 3)
    rig.record(1, FLAG_DELETED, deleted_ms=0)
    rig.disk.flip(LOGS / file_name(1), 8 * (views[1].offset + views[1].length - 20))
    report = rig.collector.collect(0.9, 0, join_small=False)
    assert (report.logs_damaged, report.logs_compacted, report.logs_removed) == (1, 0, 0)
    with pytest.raises(EntryCorrupt):
        rig.readable([2])
    rig.readable([3])
    assert list(rig.index.views(2)) == [views[1]]
    assert next(iter(rig.index.views(3))).log_id == 2


def test_the_usage_of_a_ledger_follows_its_blocks() -> None:
    rig = Rig()
    views = rig.log(1, 1, 2)
    rig.record(2, FLAG_DELETED, deleted_ms=0)
    rig.collector.collect(0.9, 0, join_small=False)
    assert list(rig.index.usage(2)) == [(1, views[0].length + views[1].length)]
    assert list(rig.index.usage(1)) == []


@pytest.mark.parametrize("step", ["create", "write", "sync directory"])
def test_log_that_cannot_be_created_leaves_no_file(step: str) -> None:
    rig = Rig()
    rig.disk.fault = lambda kind, _: BROKEN if kind == step else None
    with pytest.raises(OSError, match="Input/output"):
        rig.logs.create()
    rig.disk.fault = None
    assert rig.logs.ids() == []
    log_id, _ = rig.logs.create()
    assert log_id == 2, "no number is given twice"
    rig.disk.open(LOGS / file_name(1), create=True)
    assert rig.logs.sealed_ids() == [1], "the failed one is nobody's"
    assert EntryLogs(rig.disk, LOGS, SALT, SMALL).create()[0] == 3


def test_open_logs_are_bounded_and_evicted_least_recently_used() -> None:
    rig = Rig(replace(SMALL, entry_logs_open_max=2))
    for ledger_id in (1, 2, 3):
        rig.log(ledger_id)
    first, second = rig.logs.file(1), rig.logs.file(2)
    assert rig.logs.file(1) is first
    rig.logs.file(3)
    assert rig.logs.file(1) is first
    assert rig.logs.file(2) is not second
    rig.logs.close()
    assert rig.logs.file(2) is not second


def test_full_log_is_finished() -> None:
    rig = Rig()
    writer = LogWriter(rig.logs)
    places: list[BlockLocation] = []
    entries = [bytes(100)]
    for number in range(3):
        places.append(writer.append(1, [segment_of(entries)], [(number, 1)], entries))
    length = places[0].length
    assert [item.offset for item in places] == [
        FILE_HEADER_BYTES + number * length for number in range(3)
    ]
    assert length % 8 == 0
    rig.logs.settings = replace(SMALL, entry_log_bytes=FILE_HEADER_BYTES + 3 * length + 1)
    assert writer.append(1, [segment_of(entries)], [(3, 1)], entries).log_id == 1
    assert writer.append(1, [segment_of(entries)], [(4, 1)], entries).log_id == 2
    assert rig.logs.sealed_ids() == [], "the index does not have what is in the first yet"
    writer.sync()
    assert writer.bytes_written == 5 * length
    writer.committed()
    assert rig.logs.sealed_ids() == [1]
    size = rig.logs.file(1).size()
    assert size == FILE_HEADER_BYTES + 4 * length
    assert decode_file_header(rig.disk.read_all(rig.logs.path(2))) == (SALT, 2)


def test_sync_covers_every_written_log() -> None:
    rig = Rig(replace(SMALL, entry_log_bytes=200))
    writer = LogWriter(rig.logs)
    for number in range(4):
        entries = [bytes(300)]
        writer.append(1, [segment_of(entries)], [(number, 1)], entries)
    writer.sync()
    assert rig.logs.ids() == [1, 2, 3, 4]
    for log_id in rig.logs.ids():
        inode = rig.disk.inodes[rig.logs.path(log_id)]
        assert not inode.unsynced
        assert inode.synced == inode.data
    entries = [bytes(100)]
    writer.append(1, [segment_of(entries)], [(9, 1)], entries)
    writer.sync()
    assert not rig.disk.inodes[rig.logs.path(max(rig.logs.ids()))].unsynced


def test_failed_attempt_on_a_full_disk_removes_its_logs() -> None:
    rig = Rig(replace(SMALL, entry_log_bytes=200))
    kept = LogWriter(rig.logs)
    kept.append(1, [segment_of([b"x"])], [(0, 1)], [b"x"])
    kept.sync()
    kept.committed()
    for number in range(3):
        entries = [bytes(300)]
        kept.append(1, [segment_of(entries)], [(1 + number, 1)], entries)
    kept.abandon(discard=True)
    assert rig.logs.ids() == rig.logs.sealed_ids() == [1]
    entries = [bytes(300)]
    placed = kept.append(1, [segment_of(entries)], [(9, 1)], entries)
    assert placed.offset == FILE_HEADER_BYTES
    kept.sync()
    kept.abandon()
    assert rig.logs.ids() == rig.logs.sealed_ids() == [1, placed.log_id]


def test_files_without_a_number_are_not_logs() -> None:
    disk = SimDisk()
    for name in ("0000000007.log", "x.log", "0000000009.tmp", "0000000008"):
        disk.open(LOGS / name, create=True)
    assert log_ids(disk, LOGS) == [7]
    assert EntryLogs(disk, LOGS, SALT, SMALL).create()[0] == 8


def test_view_must_match_its_block() -> None:
    rig = Rig()
    (view,) = rig.log(1)
    assert rig.logs.read(view).ledger_id == 1
    for fields in ({"ledger_id": 2}, {"first": -1}, {"last": 1}, {"first": 1, "last": 0}):
        wrong = structs.replace(view, **fields)
        for read in (rig.logs.read, lambda item: rig.logs.read_run([item])):
            with pytest.raises(EntryCorrupt, match="it holds ledger 1 entries 0 to 0") as raised:
                read(wrong)
            assert (raised.value.path, raised.value.offset) == (str(rig.logs.path(1)), view.offset)
    with pytest.raises(EntryCorrupt, match="the file ends 8 bytes short"):
        rig.logs.read(structs.replace(view, length=view.length + 8))


def test_a_run_ends_before_its_first_bad_block() -> None:
    rig = Rig()
    views = rig.log(1, 2, 3)
    assert [block.ledger_id for block in rig.logs.read_run(views)] == [1, 2, 3]
    wrong = structs.replace(views[1], ledger_id=9)
    assert [block.ledger_id for block in rig.logs.read_run([views[0], wrong, views[2]])] == [1]
    with pytest.raises(EntryCorrupt):
        rig.logs.read_run([wrong, views[2]])
    rig.disk.fault = None
    reading = rig.logs.file(1)
    reading.read = reading.read_once = _broken  # type: ignore[method-assign]
    for read in (lambda: rig.logs.read(views[0]), lambda: rig.logs.read_run(views)):
        with pytest.raises(EntryCorrupt, match="Input/output"):
            read()


def _broken(offset: int, length: int) -> bytes:
    raise BROKEN


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [([90, 20], [1, 1]), ([60, 40, 1], [2, 1]), ([200, 200], [1, 1]), ([10] * 25, [10, 10, 5])],
)
def test_group_too_large_for_a_block_is_split(sizes: list[int], counts: list[int]) -> None:
    held = LedgerEntries()
    entries = [bytes(size) for size in sizes]
    held.append(range(len(entries)), entries, segment_of(entries))
    settings = replace(SMALL, block_bytes=100, block_bytes_max=100)
    result = list(pieces(held, settings, merge=True))
    assert [entry for _, _, group in result for entry in group] == entries
    cut = [segment.count for segments, _, _ in result for segment in segments]
    assert cut == counts
