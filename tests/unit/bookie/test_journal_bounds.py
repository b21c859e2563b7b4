"""The journal at its exact bounds: accepted and refused records, and notifications."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk

from magnetar.bookie.api import BookieError, BookieReadOnly
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.files import (
    JournalPosition,
    JournalTrim,
    JournalWriter,
    file_ids,
    file_name,
)
from magnetar.bookie.journal.journal import RECORD_EXTRA_BYTES_MAX
from magnetar.bookie.settings import BookieSettings

from .test_journal import DIRECTORY, SALT, SETTINGS, START, Rig

FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")


async def test_queue_accepts_adds_up_to_its_exact_bound() -> None:
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


async def test_low_water_is_notified_once_at_the_exact_mark() -> None:
    size = 1000 + codec.HEAD_BYTES
    settings = replace(SETTINGS, journal_queue_bytes_low=size)
    rig = Rig(SimDisk(), settings=settings)
    rig.journal.hold()
    reported: list[str] = []
    rig.add(b"x" * 1000)
    rig.journal.notify_low(lambda: reported.append("at the mark"))
    rig.add(b"")
    rig.journal.notify_low(lambda: reported.append("above"))
    await asyncio.sleep(0)
    assert reported == ["at the mark"]
    rig.journal.release()
    await rig.settle()
    rig.add(b"x")
    await rig.settle()
    assert reported == ["at the mark", "above"]


async def test_low_water_is_notified_when_a_commit_reaches_the_mark() -> None:
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


async def test_pending_records_are_counted_until_completion() -> None:
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


async def test_refusal_completes_in_a_later_turn_and_in_order() -> None:
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


async def test_record_carries_the_durable_seq_of_its_encoding() -> None:
    """A bad record before it is then damage and not a torn write."""
    rig = Rig(SimDisk())
    for n in range(3):
        rig.add(b"%d" % n)
    await rig.settle()
    rig.add(b"later")
    rig.add(b"with it")
    await rig.settle()
    result = [item.record for item in rig.scan().records(0, START, -1)]
    assert [(record.seq, record.durable_seq) for record in result] == [
        (1, 0),
        (2, 0),
        (3, 0),
        (4, 3),
        (5, 3),
    ]


async def test_record_vouches_for_no_record_that_is_only_queued() -> None:
    """A crash now loses those; the next start would take their torn writes for damage."""
    settings = replace(SETTINGS, journal_commit_bytes_max=1)
    rig = Rig(SimDisk(), settings=settings)
    rig.journal.hold()
    rig.journal.append(codec.KIND_FENCE, 1, lambda _: rig.fence(9))
    rig.fence(2)
    rig.fence(3)
    rig.journal.release()
    await rig.settle()
    records = {item.record.seq: item.record for item in rig.scan().records(0, START, -1)}
    assert records[4].ledger_id == 9, "it was appended when the first of three was durable"
    assert records[4].durable_seq == 1


@pytest.mark.parametrize("step", ["write", "sync"])
async def test_records_queued_behind_a_failed_commit_are_not_written(step: str) -> None:
    """After a failed sync the system may have dropped pages: a later sync proves nothing."""
    rig = Rig(SimDisk(), settings=replace(SETTINGS, journal_commit_bytes_max=1))
    rig.add(b"durable")
    await rig.settle()
    rig.journal.hold()
    for number in range(3):
        rig.add(b"queued %d" % number)
    faults = [BROKEN]
    rig.disk.fault = lambda kind, _: faults.pop() if kind == step and faults else None
    rig.journal.release()
    done = await rig.settle()
    assert faults == []
    assert [type(item.error) for item in done] == [BookieReadOnly] * 3
    assert len(rig.failed) == 1
    bodies = [item.body for item in rig.scan().records(0, START, -1)]
    assert bodies[0] == b"durable"
    assert not {b"queued 1", b"queued 2"} & {bytes(body) for body in bodies}


async def test_gap_record_covers_exactly_the_refused_numbers() -> None:
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
    result = [item.record for item in rig.scan().records(0, START, -1)]
    assert [(record.kind, record.first_entry, record.seq) for record in result] == [
        (codec.KIND_FENCE, -1, 1),
        (codec.KIND_GAP, 2, 3),
        (codec.KIND_FENCE, -1, 4),
        (codec.KIND_GAP, 5, 5),
        (codec.KIND_FENCE, -1, 6),
    ]


async def test_aborted_journal_drops_queued_records() -> None:
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


async def test_close_commits_queued_records() -> None:
    rig = Rig(SimDisk())
    rig.journal.hold()
    rig.add(b"last")
    await rig.journal.close()
    assert [item.error for item in rig.done] == [None]
    assert [body for _, _, body in rig.read_back()] == [b"last"]


async def test_commit_reports_its_end_and_bytes() -> None:
    rig = Rig(SimDisk())
    rig.add(b"x" * 100)
    rig.fence(1)
    await rig.settle()
    commit = rig.commits[0]
    assert commit.end == rig.writer.position
    assert commit.end.seq == 2
    result = list(rig.scan().records(0, START, -1))
    assert commit.end.offset == result[-1].offset + result[-1].record.size
    assert commit.bytes_written == 100 + 2 * codec.HEAD_BYTES


@pytest.mark.parametrize("spare_bytes", [-1, 0])
async def test_the_reserve_is_used_to_its_last_byte_for_fences(spare_bytes: int) -> None:
    """A fence that fits into the preallocated bytes is written; one byte more is refused."""
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


@pytest.mark.parametrize("refused", [False, True], ids=["records", "records and gaps"])
async def test_a_commit_reserves_the_room_that_it_writes_before_it_writes(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """A disk that gets full in the middle of a write would end the journal."""
    rig = Rig(SimDisk())
    room: list[int] = []
    reserve, write = rig.writer.reserve, rig.writer.write

    def reserved(size_bytes: int) -> None:
        room.append(size_bytes)
        reserve(size_bytes)

    def written(buffers: list[bytes], seq: int, *, durable: bool) -> None:
        room[-1] -= sum(map(len, buffers))
        write(buffers, seq, durable=durable)

    monkeypatch.setattr(rig.writer, "reserve", reserved)
    monkeypatch.setattr(rig.writer, "write", written)
    for size_bytes in range(1, 40):
        rig.journal.hold()
        for number in range(20):
            rig.add(b"x" * size_bytes)
            if refused and number % 2:
                rig.fence(1)
        rig.journal.release(BookieReadOnly("no room") if refused else None)
        await rig.settle()
    assert len(room) >= 39
    assert min(room) >= 0, "more was written than reserved"
    assert rig.journal.failure is None


async def test_preallocation_error_other_than_full_disk_is_final() -> None:
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
        JournalWriter(
            files=disk,
            directory=DIRECTORY,
            incarnation=SALT,
            settings=settings,
            start=position,
            spares=trim.spares,
            on_new_file=begun.append,
        ),
        begun,
    )


def test_room_is_preallocated_in_steps_with_the_reserve_beside_it() -> None:
    disk = SimDisk()
    created, _ = writer(disk, SETTINGS)
    step, reserve = SETTINGS.journal_preallocate_bytes, SETTINGS.journal_reserve_bytes
    assert created.room == step - START
    fits = step - START - reserve
    created.reserve(fits)
    assert created.room == step - START
    created.reserve(fits + 1)
    assert created.room == 2 * step - START
    assert len(disk.inodes[DIRECTORY / file_name(1)].data) == 2 * step


def test_a_file_rolls_only_when_it_would_grow_beyond_its_size() -> None:
    disk = SimDisk()
    created, begun = writer(disk, SETTINGS)
    whole = SETTINGS.journal_file_bytes - START
    created.reserve(whole + 1)
    assert begun == [1], "a file that holds nothing yet takes a record of any size"
    created.write([bytes(8)], 1, durable=True)
    created.reserve(whole - 8)
    assert begun == [1]
    created.reserve(whole - 8 + 1)
    assert begun == [1, 2]
    assert created.position == JournalPosition(2, START, 1)
    header = codec.decode_file_header(disk.read_all(DIRECTORY / file_name(2))[:START])
    assert (header.file_id, header.first_seq, header.recycled) == (2, 2, False)


def test_file_on_a_full_disk_is_created_with_the_reserve_only() -> None:
    settings = replace(SETTINGS, journal_reserve_bytes=8 << 10)
    created, begun = writer(SimDisk(capacity=8 << 10), settings)
    assert begun == [1]
    assert created.room == (8 << 10) - START
    with pytest.raises(OSError, match="No space left"):
        writer(SimDisk(capacity=(8 << 10) - 1), settings)


@pytest.mark.parametrize("size", [0, 100, 8 << 10, 12 << 10])
def test_a_spare_with_room_for_the_reserve_is_enough_on_a_full_disk(size: int) -> None:
    """A file that was created on a full disk is shorter than others when it becomes a spare."""
    settings = replace(SETTINGS, journal_reserve_bytes=8 << 10)
    disk = SimDisk()
    spare = (DIRECTORY / file_name(1)).with_suffix(".spare")
    disk.open(spare, create=True).write([bytes(size)], 0, durable=True)
    needed = max(size, 8 << 10)
    disk.capacity = needed
    if size == needed:
        disk.fault = lambda kind, _: FULL if kind == "preallocate" else None
    created, begun = writer(disk, settings)
    assert begun == [1]
    assert created.room == needed - START
    assert len(disk.inodes[created.path].data) == needed


def test_error_while_a_file_is_created_is_not_a_full_disk() -> None:
    disk = SimDisk()
    disk.fault = lambda kind, _: BROKEN if kind == "preallocate" else None
    with pytest.raises(OSError, match="Input/output"):
        writer(disk, SETTINGS)
    assert disk.used() == 0


def test_file_of_a_failed_roll_counts_as_recycled() -> None:
    disk = SimDisk()
    disk.fault = lambda kind, _: BROKEN if kind == "sync" else None
    with pytest.raises(OSError, match="Input/output"):
        writer(disk, SETTINGS)
    disk.fault = None
    created, begun = writer(disk, SETTINGS)
    assert begun == [1]
    header = codec.decode_file_header(disk.read_all(created.path)[:START])
    assert header.recycled
    assert created.room == SETTINGS.journal_preallocate_bytes - START


def test_checkpoint_names_a_new_file_only_after_its_name_is_durable() -> None:
    disk = SimDisk()
    disk.fault = lambda kind, _: BROKEN if kind == "sync directory" else None
    begun: list[int] = []
    trim = JournalTrim(disk, DIRECTORY, SETTINGS)
    with pytest.raises(OSError, match="Input/output"):
        JournalWriter(
            files=disk,
            directory=DIRECTORY,
            incarnation=SALT,
            settings=SETTINGS,
            start=JournalPosition(1, START, 0),
            spares=trim.spares,
            on_new_file=begun.append,
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


def test_damaged_file_is_renamed() -> None:
    disk = SimDisk()
    filled(disk, range(1, 4))
    trim = JournalTrim(disk, DIRECTORY, SETTINGS)
    damaged = DIRECTORY / file_name(1)
    trim.keep({damaged})
    trim(JournalPosition(3, START, 0))
    assert disk.names(DIRECTORY) == sorted(
        [f"{damaged.name}.damaged", file_name(2).replace(".journal", ".spare"), file_name(3)]
    )


def test_spares_that_cannot_be_removed_are_ignored() -> None:
    disk = SimDisk()
    filled(disk, range(1, 4))
    trim = JournalTrim(disk, DIRECTORY, SETTINGS)
    trim(JournalPosition(4, START, 0))
    assert len(trim.spares) > 1
    disk.fault = lambda kind, _: BROKEN if kind == "remove" else None
    trim.drop_spares()
    assert not trim.spares


def test_files_without_a_number_are_not_journal_files() -> None:
    disk = SimDisk()
    filled(disk, range(3, 5))
    for name in ("x.journal", "0000000000000009.spare", "0000000000000008"):
        disk.open(DIRECTORY / name, create=True)
    assert file_ids(disk, Path(DIRECTORY)) == [3, 4]
