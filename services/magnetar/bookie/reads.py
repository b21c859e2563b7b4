"""Reads: write cache, then read cache, then index and entry log.

What is in memory is answered without leaving the event loop's turn. A miss reads one whole block
on a thread of the small pool "bookie-read"; where a reader goes on in sequence, the blocks behind
it are read ahead while it works. In sequence is who asks for what follows an answer, not who asks
for what follows a block: the reader of a striped ledger has the next stripe from another bookie,
though a copy of it lies here as well. A block that was moved by the collector between index and log
is looked up again. Entries are handed out by reference.

Bounds: the read cache's; ENDS_MAX ends of answers.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from magnetar.bookie.api import (
    BookieError,
    EntryCorrupt,
    EntryUnknown,
    NoSuchEntry,
    NoSuchLedger,
    StoredEntry,
)
from magnetar.bookie.entry_log import EntryLogs, adjacent
from magnetar.bookie.index import Index, View
from magnetar.bookie.ledgers import Ledgers, LedgerState
from magnetar.bookie.read_cache import CachedBlock, ReadCache
from magnetar.bookie.settings import MIB, BookieSettings
from magnetar.bookie.write_cache import WriteCacheHalf

CHUNK_ENTRIES_MAX: Final = 1024
LOAD_BYTES_MAX: Final = 1 * MIB
"""What one turn on a read thread loads at most, but for its first block."""

ENDS_MAX: Final = 1024

LOOKUPS_MAX: Final = 8
"""Times a block is looked up again because the collector moved it meanwhile."""

_stored_entry: Callable[[tuple[int, bytes]], StoredEntry] = partial(tuple.__new__, StoredEntry)
"""A third of what calling the class costs."""

Chunk = tuple[Sequence[int], list[bytes]]


class Halves(msgspec.Struct):
    """The write cache: the half that takes adds, and the one that is being flushed."""

    active: WriteCacheHalf
    flushing: WriteCacheHalf | None = None


class Reader:
    """Answers reads. For the event loop's thread."""

    def __init__(
        self,
        ledgers: Ledgers,
        halves: Halves,
        index: Index,
        logs: EntryLogs,
        settings: BookieSettings,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        self._ledgers = ledgers
        self._halves = halves
        self._index = index
        self._logs = logs
        self._settings = settings
        self._pool = pool
        self.cache = ReadCache(settings.read_cache_bytes)
        self._ahead: dict[int, asyncio.Future[None]] = {}
        self._rewrites = 0
        """How often blocks of a ledger were written over others. A load that began before such a
        flush names the former block for entries that are in another now."""
        self._ends: dict[tuple[int, int], None] = {}
        """Ledgers and entries that answers ended before, the oldest first."""
        self.entries_read = 0
        self.bytes_read = 0

    async def read(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int
    ) -> list[StoredEntry]:
        """See `Bookie.read_entries`."""
        state = self.existing(ledger_id)
        ids: list[int] = []
        entries: list[bytes] = []
        room = bytes_max
        position = first
        goes_on = (ledger_id, first) in self._ends
        while position <= last and (room > 0 or not entries):
            try:
                chunk = await self._next_chunk(state, position, last, room, goes_on=goes_on)
            except BookieError:
                if entries:
                    break
                if state.deleted:
                    raise NoSuchLedger(f"ledger {ledger_id} was deleted") from None
                raise
            if chunk is None or chunk[0][0] != position:
                # A hole: the end, other bookies' entries, or a loss that must not be passed over.
                if not entries:
                    raise self._absent(state, first)
                if chunk is None or self._doubtful(state, position, chunk[0][0] - 1):
                    break
            chunk, lost = self._up_to_a_loss(state, chunk)
            fitting, size = _fitting(chunk[1], room, at_least=0 if entries else 1)
            ids += chunk[0][:fitting]
            entries += chunk[1][:fitting]
            room -= size
            if lost or fitting < len(chunk[1]):
                break
            position = ids[-1] + 1
        self._ended(ledger_id, first, first + len(entries))
        self.entries_read += len(entries)
        self.bytes_read += bytes_max - room
        return list(map(_stored_entry, zip(ids, entries, strict=True)))

    def _ended(self, ledger_id: int, first: int, end: int) -> None:
        """An answer from `first` on ended before `end`."""
        ends = self._ends
        ends.pop((ledger_id, first), None)
        ends[(ledger_id, end)] = None
        if len(ends) > ENDS_MAX:
            del ends[next(iter(ends))]

    def rewritten(self, ledger_id: int) -> None:
        """A flush changed where entries of the ledger are: loads under way are not cached."""
        self._rewrites += 1
        self.cache.drop_ledger(ledger_id)

    def existing(self, ledger_id: int) -> LedgerState:
        """The ledger's state; raises NoSuchLedger or EntryUnknown."""
        state = self._ledgers.get(ledger_id)
        if state.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        if state.emptied or not state.exists:
            if self._ledgers.is_limbo(ledger_id):
                raise EntryUnknown(f"ledger {ledger_id} may have been lost with damaged bytes")
            raise NoSuchLedger(f"no ledger {ledger_id} here")
        return state

    async def _next_chunk(
        self, state: LedgerState, position: int, last: int, wanted: int, *, goes_on: bool
    ) -> Chunk | None:
        """The next entries from `position` on, None if there are none up to `last`.

        `wanted` is how many bytes the caller will take, for a read from disk to go by.
        """
        ledger_id = state.ledger_id
        chunk = self._in_write_cache(ledger_id, position, last)
        if position > state.last_indexed or (chunk is not None and chunk[0][0] == position):
            return chunk
        # Only what comes before the write cache's chunk is wanted from disk.
        disk_last = last if chunk is None else chunk[0][0] - 1
        start = position
        while start <= disk_last:
            block = self.cache.find(ledger_id, start)
            if block is not None:
                self.cache.hits += 1
            else:
                block = await self._block(state, start, disk_last, wanted, goes_on=goes_on)
                if state.deleted:
                    raise NoSuchLedger(f"ledger {ledger_id} was deleted")
                if block is None:
                    break
            ids, entries = block.block.slice(start, min(disk_last, block.last))
            if ids:
                return ids, entries
            start = block.last + 1
        return chunk

    def _in_write_cache(self, ledger_id: int, position: int, last: int) -> Chunk | None:
        halves = self._halves
        chunk = halves.active.slice(ledger_id, position, last, CHUNK_ENTRIES_MAX)
        if halves.flushing is None or (chunk is not None and chunk[0][0] == position):
            return chunk
        # An entry that was written again is in both halves: the active one has its last bytes.
        older_last = last if chunk is None else chunk[0][0] - 1
        older = halves.flushing.slice(ledger_id, position, older_last, CHUNK_ENTRIES_MAX)
        return chunk if older is None else older

    async def _block(
        self, state: LedgerState, position: int, last: int, wanted: int, *, goes_on: bool
    ) -> CachedBlock | None:
        """The first block from `position` on that is on disk, through the read cache."""
        ledger_id = state.ledger_id
        ahead = self._ahead.get(ledger_id)
        if ahead is not None:
            await asyncio.shield(ahead)
            block = self.cache.find(ledger_id, position)
            if block is not None:
                self.cache.hits += 1
                return block
        self.cache.misses += 1
        wanted = min(wanted, LOAD_BYTES_MAX)
        rewrites = self._rewrites
        if self._pool is None:
            blocks = self._load_run(ledger_id, position, last, wanted)
        else:
            blocks = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._load_run, ledger_id, position, last, wanted
            )
        if not blocks or state.deleted:
            return None
        if rewrites == self._rewrites:
            for block in blocks:
                self.cache.add(block)
        if goes_on or blocks[-1].last < last:
            self._read_ahead(state, blocks[-1].last + 1)
        return blocks[0]

    def _load_run(self, ledger_id: int, position: int, last: int, wanted: int) -> list[CachedBlock]:
        """Blocks from `position` on, the first at least, until they have `wanted` bytes.

        An error behind the first block is left to the reader who comes to it.
        """
        views = self._next_views(ledger_id, position, last, wanted)
        blocks: list[CachedBlock] = []
        while len(blocks) < len(views):
            run = adjacent(views[len(blocks) :], LOAD_BYTES_MAX + self._settings.block_bytes_max)
            try:
                if len(run) == 1 and wanted < run[0].length:
                    blocks.append(self._load_view(run[0]))
                    continue
                loaded = self._logs.read_run(run)
            except FileNotFoundError:
                blocks.append(self._load_view(run[0]))
                continue
            except BookieError:
                if blocks:
                    break
                raise
            blocks += [
                CachedBlock(view.ledger_id, view.first, view.last, block)
                for view, block in zip(run, loaded, strict=False)
            ]
            if len(loaded) < len(run):
                break
        return blocks

    def _next_views(self, ledger_id: int, position: int, last: int, wanted: int) -> list[View]:
        """The views that have about `wanted` bytes from `position` on."""
        view = self._index.find_from(ledger_id, position, last)
        if view is None:
            return []
        views = [view]
        wanted -= view.length
        if wanted > 0 and view.last < last:
            for following in self._index.views(ledger_id, view.last + 1, last):
                views.append(following)
                wanted -= following.length
                if wanted <= 0:
                    break
        return views

    def _load_view(self, view: View) -> CachedBlock:
        """The view's block; looked up again if the collector moved it meanwhile."""
        for _ in range(LOOKUPS_MAX):
            try:
                block = self._logs.read(view)
            except FileNotFoundError:
                found = self._index.find(view.ledger_id, view.first)
                if found is None or found == view:
                    break
                view = found
            else:
                return CachedBlock(view.ledger_id, view.first, view.last, block)
        path = str(self._logs.path(view.log_id))
        raise EntryCorrupt(
            f"ledger {view.ledger_id} entries {view.first} to {view.last}: {path} is missing",
            path,
            view.offset,
        )

    def _read_ahead(self, state: LedgerState, position: int) -> None:
        """Loads what a sequential reader will ask for next, while it works on what it has."""
        ledger_id = state.ledger_id
        wanted = self._settings.read_ahead_bytes
        if self._pool is None or not wanted or ledger_id in self._ahead:
            return
        if position > state.last_indexed or self.cache.find(ledger_id, position) is not None:
            return
        loop = asyncio.get_running_loop()
        done = self._ahead[ledger_id] = loop.create_future()
        rewrites = self._rewrites

        def finished(loading: "asyncio.Future[list[CachedBlock]]") -> None:
            del self._ahead[ledger_id]
            # An error is for the reader who comes to it and reads again.
            failed = loading.cancelled() or loading.exception() is not None
            if not failed and not state.deleted and rewrites == self._rewrites:
                for block in loading.result():
                    self.cache.add(block)
            if not done.done():
                done.set_result(None)

        loading = loop.run_in_executor(
            self._pool, self._load_run, ledger_id, position, state.last_indexed, wanted
        )
        loading.add_done_callback(finished)

    def _doubtful(self, state: LedgerState, first: int, last: int) -> bool:
        """Whether a hole from `first` to `last` may be a loss."""
        if state.half_dropped or self._ledgers.is_limbo(state.ledger_id):
            return True
        return self._ledgers.damage(state.ledger_id, first, last) is not None

    def _up_to_a_loss(self, state: LedgerState, chunk: Chunk) -> tuple[Chunk, bool]:
        """The chunk up to its first hole that may be a loss, and whether it has one."""
        ids, entries = chunk
        if ids[-1] - ids[0] == len(ids) - 1:
            return chunk, False
        for count, (before, after) in enumerate(pairwise(ids), 1):
            if after > before + 1 and self._doubtful(state, before + 1, after - 1):
                return (ids[:count], entries[:count]), True
        return chunk, False

    def _absent(self, state: LedgerState, entry_id: int) -> BookieError:
        ledger_id = state.ledger_id
        if state.dropping or state.emptied:
            return NoSuchLedger(f"the copy of ledger {ledger_id} was dropped here")
        damage = self._ledgers.damage(ledger_id, entry_id)
        if damage is not None:
            return EntryCorrupt(
                f"ledger {ledger_id} entry {entry_id}: its journal record in {damage.file} "
                f"at offset {damage.offset} is damaged",
                damage.file,
                damage.offset,
            )
        if state.half_dropped:
            return EntryUnknown(f"the copy of ledger {ledger_id} was perhaps dropped here")
        if self._ledgers.is_limbo(ledger_id):
            return EntryUnknown(
                f"ledger {ledger_id} entry {entry_id} may have been lost with damaged bytes"
            )
        return NoSuchEntry(f"no entry {entry_id} in ledger {ledger_id}")


def _fitting(entries: list[bytes], room: int, *, at_least: int) -> tuple[int, int]:
    """How many of the entries fit into `room` bytes, and their bytes."""
    sums = list(accumulate(map(len, entries)))
    if sums[-1] <= room:
        return len(entries), sums[-1]
    count = max(bisect_right(sums, room), at_least)
    return count, sums[count - 1] if count else 0
