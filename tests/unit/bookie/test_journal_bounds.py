"""The journal at its bounds: what exactly fits, what is refused, what its callers learn."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk

from magnetar.bookie import journal_codec_v1 as codec
from magnetar.bookie.api import BookieError, BookieReadOnly
from magnetar.bookie.journal import RECORD_EXTRA_BYTES_MAX
from magnetar.bookie.journal_files import (
    JournalPosition,
    JournalTrim,
    JournalWriter,
    file_ids,
    file_name,
)
from magnetar.bookie.settings import BookieSettings

from .test_journal import DIRECTORY, SALT, SETTINGS, START, Rig

FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")


async def test_an_add_that_fills_the_queue_exactly_is_taken_and_one_byte_more_is_not() -> None:
    rig = Rig(SimDisk())
    bound = SETTINGS.journal_queue_bytes_max
    assert rig.journal.overflow(bound) is None
    assert rig.journal.overflow(bound + 1) is not None
    rig.journal.hold()
    rig.add(b"x" * 1000)
    pending = rig.journal.pending_bytes
    assert pending == 1000 + codec.HEAD_BYTES
    assert rig.journal.overflow(bound - pending) is None
    assert rig.journal.overflow(bound - pending + 1) is not None
    rig.journal.release()
    await rig.settle()


async def test_low_water_is_told_at_the_mark_itself_and_once() -> None:
    size = 1000 + codec.HEAD_BYTES
    settings = replace(SETTINGS, journal_queue_bytes_low=size)
    rig = Rig(SimDisk(), settings=settings)
    rig.journal.hold()
    told: list[str] = []
    rig.add(b"x" * 1000)
    rig.journal.notify_low(lambda: told.append("at the mark"))
    rig.add(b"")
    rig.journal.notify_low(lambda: told.append("above"))
    await asyncio.sleep(0)
    assert told == ["at the mark"]
    rig.journal.release()
    await rig.settle()
    rig.add(b"x")
    await rig.settle()
    assert told == ["at the mark", "above"]


async def test_low_water_is_told_when_a_commit_leaves_just_the_mark() -> None:
    size = 400 + codec.HEAD_BYTES
    settings = replace(SETTINGS, journal_commit_bytes_max=size, journal_queue_bytes_low=size)
    rig = Rig(SimDisk(), settings=settings)
    left: list[int] = []
    rig.add(b"x" * 400)
    rig.add(b"y" * 400)
    rig.journal.notify_low(lambda: left.append(rig.journal.pending_bytes))
    rig.commits.clear()
    await rig.settle()
    assert len(rig.commits) == 3, "one record each, and the refusal behind them"
    assert left == [0]


async def test_what_is_pending_is_counted_until_it_is_answered() -> None:
    rig = Rig(SimDisk())
    seen: list[tuple[int, int]] = []
    rig.journal.hold()
    rig.add(b"x" * 100)
    rig.fence(1)
    assert rig.journal.pending_count == 2
    assert rig.journal.pending_bytes == 100 + 2 * codec.HEAD_BYTES
    rig.journal.append(
        codec.KIND_FENCE,
        2,
        lambda _: seen.append((rig.journal.pending_count, rig.journal.pending_bytes)),
    )
    rig.journal.release()
    await rig.settle()
    assert seen == [(0, 0)]
    assert rig.journal.pending_count == 0


async def test_a_refusal_of_an_idle_journal_comes_in_a_later_turn_and_a_busy_ones_in_its_turn() -> (
    None
):
    rig = Rig(SimDisk())
    answers: list[tuple[str, BookieError | None]] = []
    refusal = BookieError("refused")
    rig.journal.refuse(lambda item: answers.append(("idle", item.error)), None, refusal)
    assert not answers
    await asyncio.sleep(0)
    assert answers == [("idle", refusal)]
    rig.journal.hold()
    rig.journal.append(
        codec.KIND_FENCE, 1, lambda item: answers.append(("fence", item.error)), None
    )
    rig.journal.refuse(lambda item: answers.append(("busy", item.error)), None, refusal)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(answers) == 1
    rig.journal.release()
    await rig.settle()
    assert answers[1:] == [("fence", None), ("busy", refusal)]


async def test_a_record_proves_what_was_durable_when_it_was_made() -> None:
    """A bad record in front of it is damage then, and not a torn write."""
    rig = Rig(SimDisk())
    for n in range(3):
        rig.add(b"%d" % n)
    await rig.settle()
    rig.add(b"later")
    rig.add(b"with it")
    await rig.settle()
    found = [item.record for item in rig.scan().records(0, START, -1)]
    assert [(record.seq, record.durable_seq) for record in found] == [
        (1, 0),
        (2, 0),
        (3, 0),
        (4, 3),
        (5, 3),
    ]


async def test_refused_numbers_are_passed_over_by_a_gap_of_just_those() -> None:
    rig = Rig(SimDisk())
    rig.fence(1)
    rig.journal.hold()
    rig.add(b"a")
    rig.add(b"b")
    rig.fence(2)
    rig.add(b"c")
    rig.fence(3)
    rig.journal.release(BookieReadOnly("no room"))
    await rig.settle()
    found = [item.record for item in rig.scan().records(0, START, -1)]
    assert [(record.kind, record.first_entry, record.seq) for record in found] == [
        (codec.KIND_FENCE, -1, 1),
        (codec.KIND_GAP, 2, 3),
        (codec.KIND_FENCE, -1, 4),
        (codec.KIND_GAP, 5, 5),
        (codec.KIND_FENCE, -1, 6),
    ]


async def test_an_aborted_journal_writes_nothing_of_what_waited() -> None:
    rig = Rig(SimDisk())
    rig.add(b"durable")
    await rig.settle()
    rig.journal.hold()
    rig.add(b"dropped")
    rig.journal.abort()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not rig.done
    assert [body for _, _, body in rig.read_back()] == [b"durable"]


async def test_closing_writes_what_waited() -> None:
    rig = Rig(SimDisk())
    rig.journal.hold()
    rig.add(b"last")
    await rig.journal.close()
    assert [item.error for item in rig.done] == [None]
    assert [body for _, _, body in rig.read_back()] == [b"last"]


async def test_a_commit_says_where_it_ended_and_what_it_wrote() -> None:
    rig = Rig(SimDisk())
    rig.add(b"x" * 100)
    rig.fence(1)
    await rig.settle()
    commit = rig.commits[0]
    assert commit.end == rig.writer.position
    assert commit.end.seq == 2
    found = list(rig.scan().records(0, START, -1))
    assert commit.end.offset == found[-1].offset + found[-1].record.size
    assert commit.bytes_written == 100 + 2 * codec.HEAD_BYTES


@pytest.mark.parametrize("spare_bytes", [-1, 0])
async def test_the_reserve_is_used_to_its_last_byte_for_fences(spare_bytes: int) -> None:
    """A fence that fits what is preallocated is written; one that lacks a byte is refused."""
    rig = Rig(SimDisk())
    rig.add(b"x")
    await rig.settle()
    each = codec.HEAD_BYTES + RECORD_EXTRA_BYTES_MAX
    rig.writer._allocated = rig.writer.position.offset + 2 * each + spare_bytes
    rig.disk.fault = lambda kind, _: FULL if kind == "preallocate" else None
    rig.fence(1)
    rig.add(b"takes no room")
    rig.fence(2)
    first, add, second = await rig.settle()
    assert first.error is None
    assert isinstance(add.error, BookieReadOnly)
    assert (second.error is None) == (spare_bytes == 0)
    assert len(rig.full) == 1
    assert rig.journal.failure is None


async def test_an_error_that_is_not_a_full_disk_is_final_while_room_is_made_too() -> None:
    rig = Rig(SimDisk())
    rig.disk.fault = lambda kind, _: BROKEN if kind == "preallocate" else None
    rig.add(b"x" * 30_000)
    done = await rig.settle()
    assert isinstance(done[0].error, BookieReadOnly)
    assert rig.journal.failure is not None
    assert not rig.full


def writer(
    disk: SimDisk, settings: BookieSettings, *, start: int = 1, seq: int = 0
) -> tuple[JournalWriter, list[int]]:
    """A writer that begins file `start`, and the files that it began."""
    begun: list[int] = []
    trim = JournalTrim(disk, DIRECTORY, settings)
    position = JournalPosition(start, codec.FILE_HEADER_BYTES, seq)
    return (
        JournalWriter(disk, DIRECTORY, SALT, settings, position, trim.spares, begun.append),
        begun,
    )


def test_room_is_preallocated_in_steps_with_the_reserve_beside_it() -> None:
    disk = SimDisk()
    made, _ = writer(disk, SETTINGS)
    step, reserve = SETTINGS.journal_preallocate_bytes, SETTINGS.journal_reserve_bytes
    assert made.room == step - START
    fits = step - START - reserve
    made.reserve(fits)
    assert made.room == step - START
    made.reserve(fits + 1)
    assert made.room == 2 * step - START
    assert len(disk.inodes[DIRECTORY / file_name(1)].data) == 2 * step


def test_a_file_rolls_only_when_it_would_grow_beyond_its_size() -> None:
    disk = SimDisk()
    made, begun = writer(disk, SETTINGS)
    whole = SETTINGS.journal_file_bytes - START
    made.reserve(whole + 1)
    assert begun == [1], "a file that holds nothing yet takes a record of any size"
    made.write([bytes(8)], 1, durable=True)
    made.reserve(whole - 8)
    assert begun == [1]
    made.reserve(whole - 8 + 1)
    assert begun == [1, 2]
    assert made.position == JournalPosition(2, START, 1)
    header = codec.decode_file_header(disk.read_all(DIRECTORY / file_name(2))[:START])
    assert (header.file_id, header.first_seq, header.recycled) == (2, 2, False)


def test_a_file_on_a_full_disk_is_begun_with_the_reserve_alone() -> None:
    settings = replace(SETTINGS, journal_reserve_bytes=8 << 10)
    made, begun = writer(SimDisk(capacity=8 << 10), settings)
    assert begun == [1]
    assert made.room == (8 << 10) - START
    with pytest.raises(OSError, match="No space left"):
        writer(SimDisk(capacity=(8 << 10) - 1), settings)


def test_an_error_while_a_file_is_begun_is_no_full_disk() -> None:
    disk = SimDisk()
    disk.fault = lambda kind, _: BROKEN if kind == "preallocate" else None
    with pytest.raises(OSError, match="Input/output"):
        writer(disk, SETTINGS)
    assert disk.used() == 0


def test_a_file_that_a_failed_roll_left_is_written_as_one_with_a_former_life() -> None:
    disk = SimDisk()
    disk.fault = lambda kind, _: BROKEN if kind == "sync" else None
    with pytest.raises(OSError, match="Input/output"):
        writer(disk, SETTINGS)
    disk.fault = None
    made, begun = writer(disk, SETTINGS)
    assert begun == [1]
    header = codec.decode_file_header(disk.read_all(made.path)[:START])
    assert header.recycled
    assert made.room == SETTINGS.journal_preallocate_bytes - START


def test_a_new_file_is_known_only_after_its_name_is_durable() -> None:
    disk = SimDisk()
    disk.fault = lambda kind, _: BROKEN if kind == "sync directory" else None
    begun: list[int] = []
    trim = JournalTrim(disk, DIRECTORY, SETTINGS)
    with pytest.raises(OSError, match="Input/output"):
        JournalWriter(
            disk,
            DIRECTORY,
            SALT,
            SETTINGS,
            JournalPosition(1, START, 0),
            trim.spares,
            begun.append,
        )
    assert begun == []


def filled(disk: SimDisk, ids: range) -> None:
    for file_id in ids:
        disk.open(DIRECTORY / file_name(file_id), create=True).write([b"x" * 100], 0, durable=True)


def test_only_files_below_the_mark_are_dropped_and_spares_are_bounded() -> None:
    disk = SimDisk()
    settings = replace(SETTINGS, journal_recycled_files_max=2)
    filled(disk, range(1, 8))
    trim = JournalTrim(disk, DIRECTORY, settings)
    trim(JournalPosition(1, START, 0))
    assert file_ids(disk, DIRECTORY) == list(range(1, 8))
    trim(JournalPosition(5, START, 0))
    assert file_ids(disk, DIRECTORY) == [5, 6, 7]
    spares = [DIRECTORY / file_name(each).replace(".journal", ".spare") for each in (1, 2)]
    assert list(trim.spares) == spares
    assert disk.names(DIRECTORY) == sorted(
        [*(each.name for each in spares), *(file_name(each) for each in (5, 6, 7))]
    )
    again = JournalTrim(disk, DIRECTORY, settings)
    assert list(again.spares) == spares
    again.drop_spares()
    assert not again.spares
    assert disk.names(DIRECTORY) == [file_name(each) for each in (5, 6, 7)]


def test_a_damaged_file_is_set_aside_under_another_name() -> None:
    disk = SimDisk()
    filled(disk, range(1, 4))
    trim = JournalTrim(disk, DIRECTORY, SETTINGS)
    damaged = DIRECTORY / file_name(1)
    trim.keep({damaged})
    trim(JournalPosition(3, START, 0))
    assert disk.names(DIRECTORY) == sorted(
        [f"{damaged.name}.damaged", file_name(2).replace(".journal", ".spare"), file_name(3)]
    )


def test_spares_that_cannot_be_removed_end_nothing() -> None:
    disk = SimDisk()
    filled(disk, range(1, 4))
    trim = JournalTrim(disk, DIRECTORY, SETTINGS)
    trim(JournalPosition(4, START, 0))
    assert len(trim.spares) > 1
    disk.fault = lambda kind, _: BROKEN if kind == "remove" else None
    trim.drop_spares()
    assert not trim.spares


def test_names_that_are_no_numbers_are_no_journal_files() -> None:
    disk = SimDisk()
    filled(disk, range(3, 5))
    for name in ("x.journal", "0000000000000009.spare", "0000000000000008"):
        disk.open(DIRECTORY / name, create=True)
    assert file_ids(disk, Path(DIRECTORY)) == [3, 4]
