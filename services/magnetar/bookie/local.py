"""The storage node of this machine: journal, write cache, entry logs, index and read cache.

The bookie encodes and queues an add at once (`Journal.append`), puts it into the write cache when
its commit is durable, and only then confirms it, so that readable entries are durable. A full half
of the write cache is swapped and flushed on a thread of its own (`WriteStage`). Only the event
loop's thread changes shared state; the other threads get their input as arguments.

Writes: `journal.journal`, `cache.write_stage`, `entry_log.flush`, `journal.checkpoint`; start:
`parts`, `journal.replay`; reads: `cache.reader`; garbage: `entry_log.collector`, `upkeep`; files:
`docs/formats/storage-format.md`.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from magnetar.bookie.api import (
    ID_END,
    BookieError,
    BookieIdentity,
    BookieReadOnly,
    EntryProofs,
    LedgerEnd,
    OnAdded,
    StoredEntry,
)
from magnetar.bookie.cache.reader import Reader
from magnetar.bookie.cache.write_cache import Halves, WriteCacheHalf
from magnetar.bookie.cache.write_stage import WriteStage
from magnetar.bookie.entry_log.codec_v1 import Segment
from magnetar.bookie.entry_log.collector import Collector
from magnetar.bookie.entry_log.flush import FlushJob
from magnetar.bookie.faults import Faults
from magnetar.bookie.index.ledgers import LedgerState
from magnetar.bookie.index.store import RocksIndexStore
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.files import FULL_ERRNOS, JournalWriter
from magnetar.bookie.journal.journal import Commit, Journal, QueuedRecord
from magnetar.bookie.ledger_changes import LedgerChanges
from magnetar.bookie.packed import PackedEntries, checked_ids
from magnetar.bookie.parts import OpenIndex, Parts, open_parts
from magnetar.bookie.settings import ENTRIES_PER_GROUP_MAX, GROUP_BYTES_MAX, BookieSettings
from magnetar.bookie.stats import BookieStats, Counters
from magnetar.bookie.threads import run_on
from magnetar.bookie.upkeep.disk_guard import DiskGuard
from magnetar.bookie.upkeep.dropped_copies import DroppedCopies
from magnetar.bookie.upkeep.housekeeper import Housekeeper
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.log import get_logger
from magnetar.disk.files import Files
from magnetar.disk.os_files import OsFiles

log = get_logger("magnetar.bookie.local")

DEFAULT_SETTINGS: Final = BookieSettings()
NOTHING: Final = Segment(0, 0, 0, b"")

_Group = tuple[LedgerState, Sequence[int], Sequence[bytes], Segment, int, OnAdded, float]
"""An add under way; last, when it began."""


class LocalBookie:
    """A `KeptBookie` on local disks. `open` creates it."""

    def __init__(
        self, files: Files, parts: Parts, settings: BookieSettings, clock: Clock, *, threads: bool
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._ledgers = parts.ledgers
        # Moved, not shared: `parts` lives as long as the bookie, a half only until its flush.
        self._halves = Halves(parts.half)
        parts.half = WriteCacheHalf()
        self._counters = Counters()
        self._monotonic = clock.monotonic
        self._faults = Faults()
        self._closed = False
        self._guard = DiskGuard(files, parts.journal_dir.parent, settings)
        self._read_pool = (
            ThreadPoolExecutor(settings.read_threads, "bookie-read") if threads else None
        )
        self._reader = Reader(
            ledgers=parts.ledgers,
            halves=self._halves,
            index=parts.index,
            logs=parts.logs,
            settings=settings,
            pool=self._read_pool,
        )
        self._journal = Journal(
            _journal_writer(files, parts, settings),
            settings,
            on_commit=self._committed,
            on_full=lambda error: self._guard.mark_full(str(error)),
            on_failed=self._journal_failed,
            threaded=threads,
        )
        self._stage = WriteStage(
            halves=self._halves,
            ledgers=parts.ledgers,
            journal=self._journal,
            flusher=parts.flusher,
            position=parts.recovered.next_position,
            settings=settings,
            monotonic=clock.monotonic,
            on_flushed=self._flushed,
            on_error=self._flush_failed,
            faults=self._faults,
            threaded=threads,
        )
        self._copies = DroppedCopies(parts.ledgers, self._stage, self._reader, self._read_pool)
        self._changes = LedgerChanges(
            journal=self._journal,
            ledgers=parts.ledgers,
            halves=self._halves,
            cache=self._reader.cache,
            now_ms=clock.now_ms,
            counters=self._counters,
        )
        self._keeper = Housekeeper(
            stage=self._stage,
            guard=self._guard,
            collector=Collector(parts.logs, parts.index, settings),
            trim=parts.trim,
            ledgers=parts.ledgers,
            counters=self._counters,
            faults=self._faults,
            settings=settings,
            clock=clock,
            threaded=threads,
        )

    @classmethod
    async def open(
        cls,
        data_dir: Path,
        bookie_id: str,
        *,
        settings: BookieSettings = DEFAULT_SETTINGS,
        clock: Clock | None = None,
        files: Files | None = None,
        open_index: OpenIndex = RocksIndexStore,
        threads: bool = True,
    ) -> "LocalBookie":
        """Opens the data directory, formatting it if it is empty; raises DataDirError.

        With `threads=False` all work runs on the loop, in a fixed order, for simulations.
        """
        files = files if files is not None else OsFiles()
        clock = clock if clock is not None else SystemClock()
        opening = partial(
            open_parts,
            files,
            data_dir,
            bookie_id,
            settings=settings,
            clock=clock,
            open_index=open_index,
        )
        parts = await asyncio.to_thread(opening) if threads else opening()
        try:
            return cls(files, parts, settings, clock, threads=threads)
        except BaseException:
            # E.g. no room for a journal file. The next attempt needs the lock and the index.
            parts.index.store.close()
            parts.lock.close()
            raise

    @property
    def identity(self) -> BookieIdentity:
        return self._parts.identity.public

    @property
    def writable(self) -> bool:
        return self._refusal() is None

    @property
    def pending_bytes(self) -> int:
        """Bytes of adds that are not durable yet; adds beyond the queue's bound are refused."""
        return self._journal.pending_bytes

    def notify_low(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the loop, when `pending_bytes` is at most the low-water mark."""
        self._journal.notify_low(callback)

    def _refusal(self) -> BookieError | None:
        if self._closed:
            return BookieReadOnly("the bookie is closed")
        return self._journal.failure or self._guard.refusal or self._stage.refusal

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        last_add_confirmed: int,
        on_added: OnAdded,
        recovery: bool = False,
    ) -> None:
        """See `Bookie.add_entries`. The caller must not change the sequences until `on_added`."""
        began = self._monotonic()
        count = len(entries)
        entry_ids = checked_ids(entry_ids, count, last_add_confirmed)
        try:
            state = self._ledgers.get(ledger_id)
        except (OSError, BookieError) as failure:
            damage = failure if isinstance(failure, BookieError) else BookieError(str(failure))
            self._counters.adds_failed += count
            self._journal.refuse(lambda item: on_added(item.error), None, damage)
            return
        error = self._refusal()
        if state.fenced or state.deleted or state.deleting is not None:
            error = state.refusal(recovery=recovery) or error
        lengths = b""
        body: Sequence[bytes] = ()
        size = crc = 0
        if error is None:
            if type(entries) is PackedEntries:
                body, size = entries.body, entries.body_bytes
                crc, lengths = entries.crc, entries.lengths
            else:
                body, size, crc = codec.body_of(entries)
                lengths = codec.pack_lengths(entries)
        if size > GROUP_BYTES_MAX or count > ENTRIES_PER_GROUP_MAX:
            raise ValueError(f"a group of {count} entries and {size} bytes is too large")
        error = error or self._journal.overflow(size)
        state.pending += 1
        if error is not None:
            # Refusals complete in order too, but must not reference the entries until then.
            self._journal.refuse(
                self._added, (state, entry_ids, (), NOTHING, -1, on_added, began), error
            )
            return
        segment = Segment(count, crc, size, lengths)
        self._journal.append(
            codec.KIND_ADD,
            ledger_id,
            self._added,
            (state, entry_ids, entries, segment, last_add_confirmed, on_added, began),
            last_add_confirmed=last_add_confirmed,
            entry_ids=entry_ids,
            lengths=lengths,
            body=body,
            body_bytes=size,
            body_crc=crc,
        )

    def _added(self, item: QueuedRecord) -> None:
        group: _Group = item.context  # type: ignore[assignment]
        state, entry_ids, entries, segment, last_add_confirmed, on_added, began = group
        state.pending -= 1
        counters = self._counters
        if item.error is None:
            self._halves.active.add(state.ledger_id, entry_ids, entries, segment)
            state.added(entry_ids[0], entry_ids[-1], segment.body_bytes, last_add_confirmed)
            counters.entries_added += segment.count
            counters.bytes_added += segment.body_bytes
            counters.adds.add(self._monotonic() - began, segment.count)
        else:
            counters.adds_failed += len(entry_ids)
        on_added(item.error)

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        """See `Bookie.read_entries`."""
        _check_range(first, last)
        if fence:
            await self._changes.fence(self._ledgers.get(ledger_id))
        began = self._monotonic()
        try:
            stored = await self._reader.read(ledger_id, first, last, bytes_max=bytes_max)
        except BookieError:
            self._counters.reads_failed += 1
            raise
        self._counters.reads.add(self._monotonic() - began, len(stored))
        return stored

    async def prove_entries(
        self, ledger_id: int, first: int, last: int, *, count_max: int
    ) -> EntryProofs:
        """See `Bookie.prove_entries`."""
        _check_range(first, last)
        return await self._reader.prove(ledger_id, first, last, count_max=count_max)

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        """See `Bookie.ledger_end`."""
        if not fence:
            state = self._reader.existing(ledger_id)
        else:
            state = self._ledgers.get(ledger_id)
            await self._changes.fence(state)
        return LedgerEnd(
            state.last_add_confirmed, state.last_entry, state.fenced, state.length_bytes
        )

    async def note_confirmed(self, confirmed: Sequence[tuple[int, int]]) -> None:
        """See `Bookie.note_confirmed`. Writes no journal record: the writer's other bookies have
        the value too, and its next add repeats it."""
        if self._closed:
            raise BookieReadOnly("the bookie is closed")
        for ledger_id, entry_id in confirmed:
            if not (0 <= ledger_id < ID_END and -1 <= entry_id < ID_END):
                raise ValueError(f"no last add confirmed: entry {entry_id} of ledger {ledger_id}")
        for ledger_id, entry_id in confirmed:
            state = self._ledgers.get(ledger_id)
            if not state.exists or state.fenced or state.deleted:
                continue
            if entry_id > state.last_add_confirmed:
                state.last_add_confirmed = entry_id
                self._ledgers.dirty[ledger_id] = state

    async def delete_ledger(self, ledger_id: int) -> None:
        """See `Bookie.delete_ledger`."""
        await self._changes.delete(self._ledgers.get(ledger_id))

    async def list_ledgers(self) -> list[int]:
        """See `Bookie.list_ledgers`."""
        indexed = await run_on(self._read_pool, self._ledgers.indexed_ids)
        return self._ledgers.ids(indexed)

    async def drop_copies(self, ledger_ids: Sequence[int]) -> list[int]:
        """See `KeptBookie.drop_copies`."""
        return await self._copies.drop(ledger_ids, self._fence)

    async def _fence(self, ledger_id: int) -> LedgerState:
        state = self._ledgers.get(ledger_id)
        await self._changes.fence(state)
        return state

    async def list_emptied(self) -> list[int]:
        """See `KeptBookie.list_emptied`."""
        return await self._copies.list_emptied()

    async def flush(self) -> None:
        """Flushes all completed adds to entry logs and index, and advances the checkpoint."""
        await self._stage.flush()

    def stats(self) -> BookieStats:
        """Returns the current counts and sizes."""
        halves = [half for half in (self._halves.active, self._halves.flushing) if half]
        refusal = self._refusal()
        cache, counters = self._reader.cache, self._counters
        return BookieStats(
            writable=refusal is None,
            read_only_reason=str(refusal) if refusal is not None else "",
            fault="; ".join(filter(None, (str(self._faults), self._stall()))),
            entries_added=counters.entries_added,
            adds_failed=counters.adds_failed,
            add_latencies=counters.adds.latencies(),
            bytes_added=counters.bytes_added,
            read_latencies=counters.reads.latencies(),
            reads_failed=counters.reads_failed,
            entries_read=self._reader.entries_read,
            bytes_read=self._reader.bytes_read,
            journal_commits=counters.journal_sync.count,
            journal_bytes=counters.journal_bytes,
            journal_pending_bytes=self._journal.pending_bytes,
            journal_pending_records=self._journal.pending_count,
            journal_sync_latencies=counters.journal_sync.latencies(),
            write_cache_bytes=sum(half.charge for half in halves),
            write_cache_entries=sum(half.count for half in halves),
            flushes=counters.flushes,
            flush_bytes=counters.flush_bytes,
            read_cache_bytes=cache.bytes,
            read_cache_hits=cache.hits,
            read_cache_misses=cache.misses,
            index_memory_bytes=self._parts.index.store.memory_bytes,
            entry_logs=len(self._parts.logs.ids()),
            logs_removed=counters.logs_removed,
            logs_compacted=counters.logs_compacted,
            gc_bytes_freed=counters.gc_bytes_freed,
            gc_bytes_compacted=counters.gc_bytes_compacted,
            gc_minor=counters.gc_minor,
            gc_major=counters.gc_major,
            ledgers_deleted=counters.ledgers_deleted,
            disk_bytes_total=self._guard.usage.total,
            disk_bytes_free=self._guard.usage.free,
            ledgers_in_limbo_through=self._ledgers.limbo_through,
            damaged_ranges=self._ledgers.damaged_ranges,
        )

    async def abort(self) -> None:
        """Stops without a flush, as if the process were killed."""
        if self._closed:
            return
        self._closed = self._changes.closed = True
        await self._keeper.stop()
        self._journal.abort()
        self._stage.close()
        self._release()

    async def close(self) -> None:
        """See `Bookie.close`. If the flush fails, the next start replays its entries."""
        if self._closed:
            return
        self._closed = self._changes.closed = True
        await self._keeper.stop()
        await self._journal.close()
        try:
            await self._stage.flush()
        except Exception as error:  # noqa: BLE001 - logged; the disks must be released
            log.error(
                "flush failed on close, the next start replays the journal", error=repr(error)
            )
        self._stage.close()
        self._release()

    def _release(self) -> None:
        if self._read_pool is not None:
            self._read_pool.shutdown(wait=True)
        self._parts.logs.close()
        self._parts.index.store.close()
        self._parts.lock.close()

    def _committed(self, commit: Commit) -> None:
        if commit.seconds:
            self._counters.journal_sync.add(commit.seconds)
            self._counters.journal_bytes += commit.bytes_written
        self._stage.committed(commit.end)

    def _flushed(self, job: FlushJob) -> None:
        self._counters.flushes += 1
        self._counters.flush_bytes += job.bytes_written
        for ledger_id in job.overlapped:
            self._reader.rewritten(ledger_id)

    def _stall(self) -> str:
        """Returns the writes that hang, empty if none: a hanging disk reports no error itself."""
        limit = self._settings.disk_stall_s
        waits = (("journal", self._journal.waited_s), ("flush", self._stage.flushing_s))
        return "; ".join(
            f"{part} stalled: the disk has not answered a write for {limit:g} s"
            for part, seconds in waits
            if seconds >= limit
        )

    def _journal_failed(self, error: BookieError) -> None:
        log.error("bookie is read-only until a restart", error=str(error))
        self._faults.stop("journal", str(error))

    def _flush_failed(self, error: BaseException) -> None:
        if isinstance(error, OSError) and error.errno in FULL_ERRNOS:
            self._guard.mark_full(str(error))


def _journal_writer(files: Files, parts: Parts, settings: BookieSettings) -> JournalWriter:
    return JournalWriter(
        files=files,
        directory=parts.journal_dir,
        incarnation=parts.identity.salt,
        settings=settings,
        start=parts.recovered.next_position,
        spares=parts.trim.spares,
        on_new_file=parts.checkpoint.journal_begun,
    )


def _check_range(first: int, last: int) -> None:
    """Raises ValueError unless the range consists of valid entry ids."""
    if not 0 <= first <= last <= ID_END:
        raise ValueError(f"entries {first} to {last} are not a range of ids from 0 to {ID_END}")
