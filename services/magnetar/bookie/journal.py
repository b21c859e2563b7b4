"""Journal: makes groups of entries durable, many with one sync, in the order they came.

`append` encodes a record on the caller's thread and queues it. One named thread takes all that
gathered while the last sync ran, writes it in one system call with its sync (`RWF_DSYNC`), and
wakes the event loop once for the whole commit; the loop then completes the groups in order. The
thread touches Python objects only to flatten the buffers, so that it holds the GIL for some tenths
of a microsecond per group. A lone add on an idle journal is committed at once: nothing lingers.
When adds pause, a mark is written that proves what was durable (see `journal_codec_v1`).

Bounds: `journal_queue_bytes_max` of queued bytes; beyond it adds are refused. Callers watch
`pending_bytes` and `notify_low`. A full disk refuses adds, and fences and deletes only once the
reserve is used up (`journal_files`); all are accepted again when the disk has room. Any other
failure of the journal's thread, an IO error or a bug, is final: all pending records fail, and so
does every later append, until the bookie is restarted and has replayed what is on the disk.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

import msgspec

from magnetar.bookie import journal_codec_v1 as codec
from magnetar.bookie.api import BookieError, BookieReadOnly
from magnetar.bookie.journal_files import FULL_ERRNOS, JournalPosition, JournalWriter
from magnetar.bookie.settings import BookieSettings
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.journal")

RECORD_EXTRA_BYTES_MAX: Final = 2 * codec.MARK_BYTES + codec.ALIGNMENT + codec.HEAD_BYTES
"""What a record may need beyond its own length: padding, mark, and a gap record before it."""

CLOSE_TIMEOUT_S: Final = 30.0


class Append(msgspec.Struct, gc=False):
    """One record on its way to the disk. `error` is set when it will not be written."""

    head: bytes
    body: Sequence[bytes]
    length: int
    seq: int
    is_add: bool
    done: "Callable[[Append], None]"
    context: object
    error: "BookieError | None" = None


class Commit(msgspec.Struct, gc=False):
    """What one sync made durable."""

    appends: list[Append]
    end: JournalPosition
    bytes_written: int
    seconds: float


class Journal:
    """The journal's writer. Its methods are for the event loop's thread."""

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
        """Takes `writer` over. The callbacks run on the loop's thread: `on_commit` after a
        commit's completions, `on_full` when adds were refused for want of disk, `on_failed` once,
        when writing ended for good.
        """
        self._settings = settings
        self._on_commit = on_commit
        self._on_full = on_full
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Append | None] = SimpleQueue()
        self._next_seq = writer.seq + 1
        self._durable_seq = writer.seq
        self._pending_bytes = 0
        self._pending_count = 0
        self._progress_at = 0.0
        """When a record last began to wait, or some that waited were completed; the loop's time."""
        self._low_water: list[Callable[[], None]] = []
        self._failure: BookieError | None = None
        self._may_commit = threading.Event()
        self._may_commit.set()
        self._add_refusal: BookieError | None = None
        self._scheduled = False
        self._aborted = False
        # What follows belongs to the writer's thread once it runs.
        self._writer = writer
        self._unmarked = False
        self._broken: BookieError | None = None
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._run, name="bookie-journal", daemon=True)
            self._thread.start()

    # --- the loop's side -------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet durable."""
        return self._pending_bytes

    @property
    def pending_count(self) -> int:
        """Records appended and not yet completed."""
        return self._pending_count

    @property
    def waited_s(self) -> float:
        """Seconds for which records wait and none was completed; 0 while `hold` makes them wait."""
        if not self._pending_count or not self._may_commit.is_set():
            return 0.0
        return self._loop.time() - self._progress_at

    def overflow(self, size: int) -> BookieError | None:
        """What an add of `size` bytes has to be refused with, None if the queue has room."""
        if self._pending_bytes + size <= self._settings.journal_queue_bytes_max:
            return None
        return BookieError(
            f"the journal's queue is full: {self._pending_bytes} bytes wait to be written"
        )

    @property
    def failure(self) -> BookieError | None:
        """Why nothing can be written any more."""
        return self._failure

    def notify_low(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the loop, when `pending_bytes` is at the low-water mark or below."""
        if self._pending_bytes <= self._settings.journal_queue_bytes_low:
            self._loop.call_soon(callback)
        else:
            self._low_water.append(callback)

    def append(
        self,
        kind: int,
        ledger_id: int,
        done: Callable[[Append], None],
        context: object = None,
        *,
        last_add_confirmed: int = -1,
        entry_ids: Sequence[int] = (),
        lengths: bytes = b"",
        body: Sequence[bytes] = (),
        body_bytes: int = 0,
        body_crc: int = 0,
    ) -> None:
        """Queues a record; `done(append)` follows on the loop, `append.error` None if durable."""
        seq = self._next_seq
        head = codec.encode_head(
            kind,
            seq,
            self._durable_seq,
            ledger_id,
            last_add_confirmed,
            entry_ids,
            lengths,
            body_bytes,
            body_crc,
        )
        length = len(head) + body_bytes
        item = Append(head, body, length, seq, kind == codec.KIND_ADD, done, context)
        if self._failure is not None:
            self.refuse(done, context, self._failure)
            return
        self._next_seq = seq + 1
        self._pending_bytes += length
        self._enqueue(item)

    def refuse(self, done: Callable[[Append], None], context: object, error: BookieError) -> None:
        """Completes with `error`, after everything that was appended before."""
        item = Append(b"", (), 0, 0, False, done, context, error)
        if self._pending_count == 0:
            self._loop.call_soon(done, item)
        else:
            self._enqueue(item)

    def hold(self) -> None:
        """Commits nothing more until `release`: the write cache will have room soon."""
        self._may_commit.clear()

    def release(self, refusal: BookieError | None = None) -> None:
        """Ends `hold`. With a refusal, adds get that from now on, those in the queue too; fences
        and deletes, which need no room and may make some, are committed."""
        self._add_refusal = refusal
        if not self._may_commit.is_set():
            self._progress_at = self._loop.time()
        self._may_commit.set()
        if self._thread is None:
            self._schedule()

    def abort(self) -> None:
        """Stops after the commit that is under way; what is queued behind it is dropped."""
        self._aborted = True
        self._may_commit.set()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)
        self._writer.close()

    async def close(self) -> None:
        """Commits what is queued and stops the thread."""
        self.release()
        if self._thread is not None:
            self._queue.put(None)
            thread = self._thread
            await asyncio.get_running_loop().run_in_executor(None, thread.join, CLOSE_TIMEOUT_S)
        else:
            self._commit_queued()
        self._writer.close()

    def _enqueue(self, item: Append) -> None:
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
        """Completes a commit on the loop's thread."""
        appends = commit.appends
        self._progress_at = self._loop.time()
        self._pending_count -= len(appends)
        self._pending_bytes -= commit.bytes_written
        self._durable_seq = commit.end.seq
        for item in appends:
            try:
                item.done(item)
            except Exception:
                log.exception("a completion failed")
        self._notify_if_low()
        self._on_commit(commit)

    def _notify_if_low(self) -> None:
        if self._low_water and self._pending_bytes <= self._settings.journal_queue_bytes_low:
            callbacks, self._low_water = self._low_water, []
            for callback in callbacks:
                self._loop.call_soon(callback)

    def _failed(self, error: BookieError, appends: list[Append]) -> None:
        self._pending_count -= len(appends)
        if self._failure is None:
            self._failure = error
            self._on_failed(error)
        for item in appends:
            self._pending_bytes -= item.length
            item.error = item.error or error
            try:
                item.done(item)
            except Exception:
                log.exception("a completion failed")
        self._notify_if_low()

    # --- the writer's side -----------------------------------------------------------------

    def _run(self) -> None:
        queue = self._queue
        mark_idle_s = self._settings.journal_mark_idle_s
        more = True
        while more:
            batch: list[Append] = []
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
            except Exception as error:  # noqa: BLE001 - a thread that ends answers nobody
                self._break(error)
                self._tell(self._failed, self._broken, batch)

    def _take(self, item: Append | None, batch: list[Append]) -> bool:
        """Puts `item` and the records behind it into `batch`, up to a commit's bound.

        Returns False at the end of the journal.
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
        """The inline form of `_run`: everything on the loop, for simulations."""
        self._scheduled = False
        while self._may_commit.is_set() and not self._aborted and not self._queue.empty():
            batch: list[Append] = []
            self._take(self._queue.get_nowait(), batch)
            self._commit_or_fail(batch)

    def _commit_or_fail(self, batch: list[Append]) -> None:
        if self._broken is None:
            try:
                commit = self._commit(batch)
            except Exception as error:  # noqa: BLE001 - the reason is logged, the batch fails
                self._break(error)
            else:
                self._tell(self._committed, commit)
                return
        self._tell(self._failed, self._broken, batch)

    def _break(self, error: Exception) -> None:
        """Ends writing for good: nobody knows what of the failed commit is on the disk."""
        if self._broken is not None:
            return
        bug = None if isinstance(error, OSError) else error
        text = str(error) if bug is None else repr(error)
        log.error("the journal failed", path=str(self._writer.path), error=text, exc_info=bug)
        self._broken = BookieReadOnly(
            f"the journal failed, nothing is added until a restart: {text}"
        )

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        """Calls back on the loop's thread."""
        if self._thread is None:
            callback(*args)
            return
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.warning("the event loop closed before the journal")

    def _commit(self, batch: list[Append]) -> Commit:
        """Writes the batch and syncs it; an add that the disk has no room for gets its error."""
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
                # What lies between was refused.
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
        """Notes, without a sync, that all so far is durable: bad bytes before it are damage."""
        self._unmarked = False
        writer = self._writer
        head = codec.encode_head(codec.KIND_MARK, writer.seq, writer.seq, -1, -1)
        try:
            writer.reserve(len(head) + codec.MARK_BYTES)
            writer.write((head, writer.marks.mark), writer.seq, durable=False)
        except OSError as error:
            log.warning("no mark was written", path=str(writer.path), error=str(error))

    def _refuse_beyond_reserve(self, batch: list[Append], error: OSError) -> None:
        """Leaves the preallocated room to fences and deletes, and refuses those that do not fit.

        A write beyond it would fail in the middle, and a failed write is final.
        """
        log.warning("no room to grow the journal", path=str(self._writer.path), error=str(error))
        refusal = BookieReadOnly(f"the disk is full, the journal cannot grow: {error}")
        _refuse(batch, refusal)
        room = self._writer.room
        for item in batch:
            if item.error is None:
                room -= item.length + RECORD_EXTRA_BYTES_MAX
                if room < 0:
                    item.error = refusal
        self._tell(self._on_full, refusal)


def _refuse(batch: list[Append], refusal: BookieError) -> None:
    for item in batch:
        if item.is_add and item.error is None:
            item.error = refusal
