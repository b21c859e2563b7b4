"""A writer of entry logs after an error: failed blocks never reappear."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.bookie.test_collector import BROKEN, LOGS, Rig

from magnetar.bookie.cache.write_cache import segment_of
from magnetar.bookie.entry_log.codec_v1 import FILE_HEADER_BYTES
from magnetar.bookie.entry_log.logs import BlockLocation, LogWriter, file_name
from magnetar.bookie.index.index import View

from .conftest import SMALL


def append(writer: LogWriter, number: int, size: int = 100) -> BlockLocation:
    entries = [b"%d;" % number + bytes(size)]
    return writer.append(1, [segment_of(entries)], [(number, 1)], entries)


@pytest.mark.parametrize("discard", [True, False])
def test_writer_begins_a_new_log_after_a_failed_sync(discard: bool) -> None:
    rig = Rig()
    writer = LogWriter(rig.logs)

    def fault(step: str, path: Path) -> OSError | None:
        return BROKEN if step == "sync" and path == LOGS / file_name(1) else None

    rig.disk.fault = fault
    append(writer, 0)
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    writer.abandon(discard=discard)
    placed = append(writer, 1)
    assert (placed.log_id, placed.offset) == (2, FILE_HEADER_BYTES)
    writer.sync()
    assert not rig.disk.inodes[LOGS / file_name(2)].unsynced
    assert rig.logs.ids() == ([2] if discard else [1, 2])


def test_failed_blocks_are_not_written_to_the_next_log() -> None:
    rig = Rig()
    writer = LogWriter(rig.logs)
    append(writer, 0)
    faults = [BROKEN]
    rig.disk.fault = lambda step, _: faults.pop() if step == "write" and faults else None
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    writer.abandon()
    written = writer.bytes_written
    placed = append(writer, 1)
    writer.sync()
    assert writer.bytes_written - written == placed.length
    assert rig.logs.file(2).size() == FILE_HEADER_BYTES + placed.length
    assert b"1;" in rig.logs.file(2).read(placed.offset, placed.length)


def test_sync_covers_all_appends_since_the_last() -> None:
    rig = Rig()
    writer = LogWriter(rig.logs)
    for number in range(3):
        append(writer, number)
        writer.sync()
        writer.committed()
        inode = rig.disk.inodes[LOGS / file_name(1)]
        assert not inode.unsynced
        assert b"%d;" % number in inode.synced
    assert rig.logs.sealed_ids() == []


def test_finished_log_is_synced_exactly_once_more() -> None:
    rig = Rig(replace(SMALL, entry_log_bytes=1))
    writer = LogWriter(rig.logs)
    synced: list[str] = []

    def note(step: str, path: Path) -> None:
        if step == "sync":
            synced.append(path.name)

    rig.disk.fault = note
    for number in range(3):
        append(writer, number)
        append(writer, number)
        writer.sync()
    log = file_name
    assert synced == [log(1), log(2), log(2), log(3), log(4), log(4), log(5), log(6)]


def test_copied_blocks_fill_a_log_like_new_ones() -> None:
    rig = Rig()
    (view,) = rig.log(1)
    block = rig.logs.read_raw(view)
    rig.logs.settings = replace(SMALL, entry_log_bytes=FILE_HEADER_BYTES + 2 * len(block))
    writer = LogWriter(rig.logs)
    places = [writer.append_encoded(block) for _ in range(5)]
    assert [item.log_id for item in places] == [2, 2, 3, 3, 4]
    writer.sync()
    for placed in places:
        assert rig.logs.read(View(1, view.first, view.last, *placed)).ledger_id == 1
