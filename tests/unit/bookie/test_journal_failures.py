"""The journal when the disk or its thread fails: requests complete, and reads continue."""

import asyncio
import errno
import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk
from tests.unit.bookie.test_journal import SALT, SETTINGS, Rig, threaded

from magnetar.bookie.api import BookieError, BookieReadOnly
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.files import JournalPosition, JournalWriter, file_name
from magnetar.bookie.journal.journal import QueuedRecord
from magnetar.disk import files as files_api
from magnetar.disk.os_file import OsFile
from magnetar.disk.os_files import OsFiles


async def test_low_water_is_notified_after_a_failure() -> None:
    rig = Rig(SimDisk())
    rig.journal.hold()
    for n in range(20):
        rig.add(bytes(1000), entry_id=n)
    low = asyncio.Event()
    rig.journal.notify_low(low.set)
    rig.disk.fault = lambda *_: OSError(errno.EIO, "Input/output error")
    rig.journal.release()
    await asyncio.wait_for(low.wait(), 20)
    assert rig.journal.failure is not None
    assert rig.journal.pending_bytes == 0


async def test_fences_beyond_the_reserve_are_refused_and_the_journal_recovers() -> None:
    rig = Rig(SimDisk(64 << 10))
    for n in range(40):
        rig.add(bytes(900), entry_id=n)
        await rig.settle()
    rig.disk.capacity = rig.disk.used()  # others filled the disk
    answers: list[BookieError | None] = []
    for n in range(300):
        rig.fence(n)
        answers += [item.error for item in await rig.settle()]
    kept = answers.count(None)
    assert 5 < kept < 250
    assert not any(answers[:kept])
    assert all(isinstance(error, BookieReadOnly) for error in answers[kept:])
    assert rig.journal.failure is None
    rig.disk.capacity = 1 << 30  # there is room again
    rig.add(b"after", entry_id=41)
    rig.fence(400)
    assert [item.error for item in await rig.settle()] == [None, None]
    kinds = [kind for kind, _, _ in rig.read_back()]
    assert kinds.count(codec.KIND_FENCE) == kept + 1


async def test_journal_file_with_unsynced_name_is_renamed_again() -> None:
    """A successful sync after a failed one does not cover earlier writes."""
    rig = Rig(SimDisk())
    failures = [OSError(errno.ENOSPC, "No space left on device")]
    rig.disk.fault = lambda kind, _: failures.pop() if kind == "sync directory" else None
    answers: list[BookieError | None] = []
    for n in range(200):
        if not failures:
            rig.disk.fault = None
        rig.add(bytes(900), entry_id=n)
        answers += [item.error for item in await rig.settle()]
    assert any(answers)
    assert answers[-1] is None
    rig.disk = rig.disk.after_cut(random.Random(1))
    assert len(rig.read_back()) >= answers.count(None)


async def test_held_records_are_not_a_stall_of_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The journal is held; the flush is the part that hangs."""
    rig = Rig(SimDisk())
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    rig.journal.hold()
    rig.add(b"held", entry_id=0)
    now = 200.0
    assert rig.journal.waited_s == 0
    rig.journal.release()
    assert rig.journal.waited_s == 0, "the time on hold does not count"
    now = 203.0
    assert rig.journal.waited_s == 3
    rig.journal.release()
    assert rig.journal.waited_s == 3, "it was not held"
    await rig.settle()
    assert rig.journal.waited_s == 0


class BrokenFiles(OsFiles):
    """Files whose durable writes end with a bug."""

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = False,
        append: files_api.Append | None = None,
    ) -> OsFile:
        file = super().open(path, create=create, read_only=read_only)

        class Broken(OsFile):
            writes = 0

            def write(self, buffers: Sequence[bytes], offset: int, *, durable: bool = False) -> int:
                self.writes += durable
                if self.writes > 2:
                    raise IndexError("a bug")
                return super().write(buffers, offset, durable=durable)

        broken = Broken(path, file._fd)
        file._fd = -1
        return broken


async def test_bug_on_the_thread_fails_pending_and_later_records(tmp_path: Path) -> None:
    failed: list[BookieError] = []
    done: asyncio.Queue[QueuedRecord] = asyncio.Queue()
    journal = threaded(tmp_path, BrokenFiles(), lambda _: None, failed.append)
    errors: list[BookieError | None] = []
    for n in range(4):
        journal.append(codec.KIND_FENCE, n, done.put_nowait)
        errors.append((await asyncio.wait_for(done.get(), 20)).error)
    assert [type(error) for error in errors] == [type(None)] + [BookieReadOnly] * 3
    assert "a bug" in str(errors[-1])
    assert failed == [journal.failure]
    assert (journal.pending_bytes, journal.pending_count) == (0, 0)
    await journal.close()


async def test_spares_removed_while_a_file_is_created_are_ignored(tmp_path: Path) -> None:
    class Emptied(deque[Path]):
        """A queue that is full when checked, and emptied by another thread then."""

        def __bool__(self) -> bool:
            return True

    writer = JournalWriter(
        files=OsFiles(),
        directory=tmp_path,
        incarnation=SALT,
        settings=SETTINGS,
        start=JournalPosition(1, codec.FILE_HEADER_BYTES, 0),
        spares=Emptied(),
        on_new_file=lambda _: None,
    )
    assert writer.path.name == file_name(1)
    writer.close()
