"""The journal: makes groups of entries durable in their order, many with one sync.

`append` encodes a record on the caller's thread and queues it. The thread "bookie-journal" takes
all records that were queued during the last sync, writes and syncs them with one system call
(`RWF_DSYNC`), and wakes the event loop once per commit; the loop completes the groups in order. The
thread only flattens buffers, so that it holds the GIL for a few tenths of a microsecond per group.
An idle journal commits a single add at once, without a linger time. When adds pause, the thread
writes a mark that proves which records were durable (see `journal.codec_v1`).

Bounds: `journal_queue_bytes_max` of queued bytes; beyond it adds are refused. Callers watch
`pending_bytes` and `notify_low`. On a full disk, adds are refused at once, fences and deletes when
the reserve is used up (`journal.files`), until the disk has room. Any other failure of the thread,
an IO error or a bug, is final: all pending records and all later appends fail until the bookie
restarts and replays the journal.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

import msgspec

from magnetar.bookie.api import BookieError, BookieReadOnly
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.files import FULL_ERRNOS, JournalPosition, JournalWriter
from magnetar.bookie.settings import BookieSettings
from magnetar.core.cork import cork
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.journal.journal")

RECORD_EXTRA_BYTES_MAX: Final = 2 * codec.MARK_BYTES + codec.ALIGNMENT + codec.HEAD_BYTES
"""Bytes that a record may need besides its own: padding, mark, and a gap record before it."""

CLOSE_TIMEOUT_S: Final = 30.0


class QueuedRecord(msgspec.Struct, gc=False):
    """A record that is not durable yet. `error` is set if it is refused or fails."""

    head: bytes
    body: Sequence[bytes]
    length: int
    seq: int
    is_add: bool
    done: "Callable[[QueuedRecord], None]"
    context: object
    error: "BookieError | None" = None


class Commit(msgspec.Struct, gc=False):
    """The records of one sync, refused ones included."""

    records: list[QueuedRecord]
    end: JournalPosition
    bytes_written: int
    seconds: float


class Journal:
    """Queues records and commits them on its own thread. For the event loop's thread."""

    def __init__(
        self,
        writer: JournalWriter,
        settings: BookieSettings,
        *,
        on_commit: Callable[[Commit], None],
        on_full: Callable[[BookieError], None],
        on_failed: Callable[[BookieError], None],
        threaded: bool = True,
    ) -> None:
        """Owns `writer`. The callbacks run on the loop's thread: `on_commit` after a commit's
        completions, `on_full` when a full disk made it refuse adds, `on_failed` once, after a final
        failure.
        """
        self._settings = settings
        self._on_commit = on_commit
        self._on_full = on_full
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[QueuedRecord | None] = SimpleQueue()
        self._next_seq = writer.seq + 1
        self._durable_seq = writer.seq
        self._pending_bytes = 0
        self._pending_count = 0
        self._progress_at = 0.0
        """Loop time at which the queue last became non-empty or a commit completed."""
        self._low_water: list[Callable[[], None]] = []
        self._failure: BookieError | None = None
        self._may_commit = threading.Event()
        self._may_commit.set()
        self._add_refusal: BookieError | None = None
        self._scheduled = False
        self._aborted = False
        # Used only by the journal's thread once it runs.
        self._writer = writer
        self._unmarked = False
        self._broken: BookieError | None = None
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._run, name="bookie-journal", daemon=True)
            self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes of appended records that are not durable yet."""
        return self._pending_bytes

    @property
    def pending_count(self) -> int:
        """Number of appended records that are not completed yet."""
        return self._pending_count

    @property
    def waited_s(self) -> float:
        """Seconds since a commit last completed, if records are pending; 0 while held."""
        if not self._pending_count or not self._may_commit.is_set():
            return 0.0
        return self._loop.time() - self._progress_at

    def overflow(self, size: int) -> BookieError | None:
        """Returns the error that refuses an add of `size` bytes, None if the queue has room."""
        if self._pending_bytes + size <= self._settings.journal_queue_bytes_max:
            return None
        return BookieError(
            f"the journal's queue is full: {self._pending_bytes} bytes wait to be written"
        )

    @property
    def failure(self) -> BookieError | None:
        """The final failure, None if there is none."""
        return self._failure

    def notify_low(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the loop, when `pending_bytes` is at most the low-water mark."""
        if self._pending_bytes <= self._settings.journal_queue_bytes_low:
            self._loop.call_soon(callback)
        else:
            self._low_water.append(callback)

    def append(
        self,
        kind: int,
        ledger_id: int,
        done: Callable[[QueuedRecord], None],
        context: object = None,
        *,
        last_add_confirmed: int = -1,
        entry_ids: Sequence[int] = (),
        lengths: bytes = b"",
        body: Sequence[bytes] = (),
        body_bytes: int = 0,
        body_crc: int = 0,
    ) -> None:
        """Queues a record; then `done(record)` runs on the loop, `record.error` None if durable."""
        seq = self._next_seq
        head = codec.encode_head(
            kind,
            seq,
            self._durable_seq,
            ledger_id,
            last_add_confirmed,
            entry_ids=entry_ids,
            lengths=lengths,
            body_bytes=body_bytes,
            body_crc=body_crc,
        )
        length = len(head) + body_bytes
        item = QueuedRecord(head, body, length, seq, kind == codec.KIND_ADD, done, context)
        if self._failure is not None:
            self.refuse(done, context, self._failure)
            return
        self._next_seq = seq + 1
        self._pending_bytes += length
        self._enqueue(item)

    def refuse(
        self, done: Callable[[QueuedRecord], None], context: object, error: BookieError
    ) -> None:
        """Completes a request with `error`, after all records that were appended before."""
        item = QueuedRecord(b"", (), 0, 0, False, done, context, error)
        if self._pending_count == 0:
            self._loop.call_soon(done, item)
        else:
            self._enqueue(item)

    def hold(self) -> None:
        """Stops commits until `release`, when the write cache has room again."""
        self._may_commit.clear()

    def release(self, refusal: BookieError | None = None) -> None:
        """Ends `hold`. With a refusal, later and queued adds fail with it; fences and deletes are
        still committed, as they need no room in the write cache."""
        self._add_refusal = refusal
        if not self._may_commit.is_set():
            self._progress_at = self._loop.time()
        self._may_commit.set()
        if self._thread is None:
            self._schedule()

    def abort(self) -> None:
        """Stops after the current commit and drops the queued records."""
        self._aborted = True
        self._may_commit.set()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)
        self._writer.close()

    async def close(self) -> None:
        """Commits the queued records and stops the thread."""
        self.release()
        if self._thread is not None:
            self._queue.put(None)
            thread = self._thread
            await asyncio.get_running_loop().run_in_executor(None, thread.join, CLOSE_TIMEOUT_S)
        else:
            self._commit_queued()
        self._writer.close()

    def _enqueue(self, item: QueuedRecord) -> None:
        if not self._pending_count:
            self._progress_at = self._loop.time()
        self._pending_count += 1
        self._queue.put(item)
        if self._thread is None:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._commit_queued)

    def _committed(self, commit: Commit) -> None:
        """Completes a commit's records, on the loop's thread."""
        records = commit.records
        self._progress_at = self._loop.time()
        self._pending_count -= len(records)
        self._pending_bytes -= commit.bytes_written
        self._durable_seq = commit.end.seq
        with cork:
            for item in records:
                try:
                    item.done(item)
                except Exception:
                    log.exception("completion of a journal record raised")
        self._notify_if_low()
        self._on_commit(commit)

    def _notify_if_low(self) -> None:
        if self._low_water and self._pending_bytes <= self._settings.journal_queue_bytes_low:
            callbacks, self._low_water = self._low_water, []
            for callback in callbacks:
                self._loop.call_soon(callback)

    def _failed(self, error: BookieError, records: list[QueuedRecord]) -> None:
        self._pending_count -= len(records)
        if self._failure is None:
            self._failure = error
            self._on_failed(error)
        for item in records:
            self._pending_bytes -= item.length
            item.error = item.error or error
            try:
                item.done(item)
            except Exception:
                log.exception("completion of a journal record raised")
        self._notify_if_low()

    def _run(self) -> None:
        queue = self._queue
        mark_idle_s = self._settings.journal_mark_idle_s
        more = True
        while more:
            batch: list[QueuedRecord] = []
            try:
                try:
                    first = queue.get(timeout=mark_idle_s) if self._unmarked else queue.get()
                except Empty:
                    self._write_mark()
                    continue
                if not self._may_commit.is_set():
                    self._may_commit.wait()
                if self._aborted:
                    return
                more = self._take(first, batch)
                if batch:
                    self._commit_or_fail(batch)
            except Exception as error:  # noqa: BLE001 - the thread must live to complete records
                self._fail_finally(error)
                self._call_loop(self._failed, self._broken, batch)

    def _take(self, item: QueuedRecord | None, batch: list[QueuedRecord]) -> bool:
        """Moves `item` and the queued records behind it to `batch`, up to a commit's bound.

        Returns False when the journal is closed.
        """
        room = self._settings.journal_commit_bytes_max
        waiting = self._queue.qsize()
        while item is not None:
            batch.append(item)
            room -= item.length
            if room <= 0 or waiting == 0:
                return True
            waiting -= 1
            item = self._queue.get_nowait()
        return False

    def _commit_queued(self) -> None:
        """The counterpart of `_run` without a thread, on the loop, for simulations."""
        self._scheduled = False
        while self._may_commit.is_set() and not self._aborted and not self._queue.empty():
            batch: list[QueuedRecord] = []
            self._take(self._queue.get_nowait(), batch)
            self._commit_or_fail(batch)

    def _commit_or_fail(self, batch: list[QueuedRecord]) -> None:
        if self._broken is None:
            try:
                commit = self._commit(batch)
            except Exception as error:  # noqa: BLE001 - logged; the batch fails
                self._fail_finally(error)
            else:
                self._call_loop(self._committed, commit)
                return
        self._call_loop(self._failed, self._broken, batch)

    def _fail_finally(self, error: Exception) -> None:
        """Makes a failure final, as the failed commit may be on the disk as a whole or in part."""
        if self._broken is not None:
            return
        bug = None if isinstance(error, OSError) else error
        text = str(error) if bug is None else repr(error)
        log.error(
            "journal failed, read-only until a restart",
            path=str(self._writer.path),
            error=text,
            exc_info=bug,
        )
        self._broken = BookieReadOnly(
            f"the journal failed, nothing is added until a restart: {text}"
        )

    def _call_loop(self, callback: Callable[..., None], *args: object) -> None:
        """Schedules a callback on the loop's thread; without a thread, calls it at once."""
        if self._thread is None:
            callback(*args)
            return
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.warning("event loop closed before the journal")

    def _commit(self, batch: list[QueuedRecord]) -> Commit:
        """Writes and syncs the batch; sets the errors of records that the disk has no room for."""
        total = sum(item.length for item in batch)
        if self._add_refusal is not None:
            _refuse(batch, self._add_refusal)
        writer = self._writer
        try:
            writer.reserve(total + len(batch) * RECORD_EXTRA_BYTES_MAX)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self._refuse_beyond_reserve(batch, error)
        tails = writer.marks.tails
        buffers: list[bytes] = []
        seq = writer.seq
        for item in batch:
            if item.error is not None:
                continue
            if item.seq != seq + 1:
                # The records between were refused.
                gap = codec.encode_head(
                    codec.KIND_GAP, item.seq - 1, seq, -1, -1, first_entry=seq + 1
                )
                buffers += (gap, tails[-len(gap) % codec.ALIGNMENT])
            buffers.append(item.head)
            buffers += item.body
            buffers.append(tails[-item.length % codec.ALIGNMENT])
            seq = item.seq
        seconds = 0.0
        if buffers:
            started = time.perf_counter()
            writer.write(buffers, seq, durable=True)
            seconds = time.perf_counter() - started
            self._unmarked = True
        return Commit(batch, writer.position, total, seconds)

    def _write_mark(self) -> None:
        """Writes a mark: all records so far are durable, so bad bytes before it are damage."""
        self._unmarked = False
        writer = self._writer
        head = codec.encode_head(codec.KIND_MARK, writer.seq, writer.seq, -1, -1)
        try:
            writer.reserve(len(head) + codec.MARK_BYTES)
            writer.write((head, writer.marks.mark), writer.seq, durable=False)
        except OSError as error:
            log.warning("journal mark not written", path=str(writer.path), error=str(error))

    def _refuse_beyond_reserve(self, batch: list[QueuedRecord], error: OSError) -> None:
        """Refuses adds, and fences and deletes that do not fit into the preallocated room.

        A write beyond that room would fail in the middle, and a failed write is final.
        """
        log.warning("disk full, journal cannot grow", path=str(self._writer.path), error=str(error))
        refusal = BookieReadOnly(f"the disk is full, the journal cannot grow: {error}")
        _refuse(batch, refusal)
        room = self._writer.room
        for item in batch:
            if item.error is None:
                room -= item.length + RECORD_EXTRA_BYTES_MAX
                if room < 0:
                    item.error = refusal
        self._call_loop(self._on_full, refusal)


def _refuse(batch: list[QueuedRecord], refusal: BookieError) -> None:
    for item in batch:
        if item.is_add and item.error is None:
            item.error = refusal
