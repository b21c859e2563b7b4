"""Reads: from the write cache, then the read cache, then index and entry log.

Entries in memory are returned without yielding to the event loop. A miss reads whole blocks on a
thread of the small pool "bookie-read"; for a sequential reader, the following blocks are read ahead
meanwhile. A reader counts as sequential when its request starts where an earlier answer ended, not
where a block ended: the reader of a striped ledger gets the next stripe from another bookie, even
if this one stores a copy too. If the collector moves a block between the index lookup and the read,
the index is looked up again. Entries are returned by reference.

Bounds: the read cache's; the ends of the last ENDS_MAX answers.
"""

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

from google_crc32c import value

from magnetar.bookie.api import (
    BookieError,
    EntryCorrupt,
    EntryProof,
    EntryProofs,
    EntryUnknown,
    NoSuchEntry,
    NoSuchLedger,
    ProofKind,
    StoredEntry,
)
from magnetar.bookie.cache.read_cache import CachedBlock, ReadCache
from magnetar.bookie.cache.write_cache import Halves
from magnetar.bookie.entry_log.logs import EntryLogs, adjacent
from magnetar.bookie.index.index import Index, View
from magnetar.bookie.index.ledgers import Ledgers, LedgerState
from magnetar.bookie.settings import BookieSettings
from magnetar.core.units import MIB

CHUNK_ENTRIES_MAX: Final = 1024
LOAD_BYTES_MAX: Final = 1 * MIB
"""Bytes that one call on a read thread loads at most, except for its first block."""

ENDS_MAX: Final = 1024
PROVE_BYTES: Final = 1 * MIB
"""Bytes per read of a proof."""

LOOKUPS_MAX: Final = 8
"""Lookups of a block that the collector keeps moving."""

_stored_entry: Callable[[tuple[int, bytes]], StoredEntry] = partial(tuple.__new__, StoredEntry)
"""Costs a third of calling the class."""

Chunk = tuple[Sequence[int], list[bytes]]


class Reader:
    """Reads and proves entries. For the event loop's thread."""

    def __init__(
        self,
        *,
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
        """Counts calls of `rewritten`. A load that began before the last one may have read blocks
        that were replaced since."""
        self._ends: dict[tuple[int, int], None] = {}
        """(ledger, next entry) after recent answers, oldest first."""
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
        sequential = (ledger_id, first) in self._ends
        while position <= last and (room > 0 or not entries):
            try:
                chunk = await self._next_chunk(state, position, last, room, sequential=sequential)
            except BookieError:
                if entries:
                    break
                if state.deleted:
                    raise NoSuchLedger(f"ledger {ledger_id} was deleted") from None
                raise
            if chunk is None or chunk[0][0] != position:
                # A hole: the end, other bookies' entries, or a loss that must not be skipped.
                if not entries:
                    raise self._absent(state, first)
                if chunk is None or self._may_be_lost(state, position, chunk[0][0] - 1):
                    break
            chunk, lost = self._before_loss(state, chunk)
            fitting, size = _fitting(chunk[1], room, at_least=0 if entries else 1)
            ids += chunk[0][:fitting]
            entries += chunk[1][:fitting]
            room -= size
            if lost or fitting < len(chunk[1]):
                break
            position = ids[-1] + 1
        self._record_end(ledger_id, first, first + len(entries))
        self.entries_read += len(entries)
        self.bytes_read += bytes_max - room
        return list(map(_stored_entry, zip(ids, entries, strict=True)))

    def _record_end(self, ledger_id: int, first: int, end: int) -> None:
        """Records that an answer from `first` on ended before `end`."""
        ends = self._ends
        ends.pop((ledger_id, first), None)
        ends[(ledger_id, end)] = None
        if len(ends) > ENDS_MAX:
            del ends[next(iter(ends))]

    async def prove(self, ledger_id: int, first: int, last: int, *, count_max: int) -> EntryProofs:
        """See `Bookie.prove_entries`. Reads each entry, which checks its CRC.

        The caller compares length and CRC-32C with other bookies'. A corrupt entry is reported,
        and the proof continues after it. If the bookie lost state and cannot know whether it had
        an entry, it reports UNKNOWN, so that absence from the result proves absence.
        """
        last = min(last, first + count_max - 1)
        proofs: list[EntryProof] = []
        position = first
        self.existing(ledger_id)
        while position <= last:
            try:
                entries = await self.read(ledger_id, position, last, bytes_max=PROVE_BYTES)
            except EntryCorrupt:
                proofs.append(EntryProof(position, ProofKind.CORRUPT))
            except EntryUnknown:
                proofs.append(EntryProof(position, ProofKind.UNKNOWN))
            except NoSuchEntry:
                pass
            else:
                for entry_id, data in entries:
                    proofs.append(EntryProof(entry_id, ProofKind.PRESENT, len(data), value(data)))
                position = entries[-1].entry_id
            position += 1
        return EntryProofs(proofs, last + 1)

    def rewritten(self, ledger_id: int) -> None:
        """Drops the ledger from the cache, since its blocks changed; ignores loads under way."""
        self._rewrites += 1
        self.cache.drop_ledger(ledger_id)

    def existing(self, ledger_id: int) -> LedgerState:
        """Returns the state of an existing ledger; raises NoSuchLedger or EntryUnknown."""
        state = self._ledgers.get(ledger_id)
        if state.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        if state.emptied or not state.exists:
            if self._ledgers.is_limbo(ledger_id):
                raise EntryUnknown(f"ledger {ledger_id} may have been lost with damaged bytes")
            raise NoSuchLedger(f"no ledger {ledger_id} here")
        return state

    async def _next_chunk(
        self, state: LedgerState, position: int, last: int, bytes_wanted: int, *, sequential: bool
    ) -> Chunk | None:
        """Returns the next entries from `position` on, None if none exist up to `last`.

        `bytes_wanted` is the number of bytes that a read from disk should load.
        """
        ledger_id = state.ledger_id
        chunk = self._in_write_cache(ledger_id, position, last)
        if position > state.last_indexed or (chunk is not None and chunk[0][0] == position):
            return chunk
        # From disk, only the entries before the write cache's chunk are needed.
        disk_last = last if chunk is None else chunk[0][0] - 1
        start = position
        while start <= disk_last:
            block = self.cache.find(ledger_id, start)
            if block is not None:
                self.cache.hits += 1
            else:
                block = await self._block(
                    state, start, disk_last, bytes_wanted, sequential=sequential
                )
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
        # A rewritten entry is in both halves; the active half has its latest bytes.
        older_last = last if chunk is None else chunk[0][0] - 1
        older = halves.flushing.slice(ledger_id, position, older_last, CHUNK_ENTRIES_MAX)
        return chunk if older is None else older

    async def _block(
        self, state: LedgerState, position: int, last: int, bytes_wanted: int, *, sequential: bool
    ) -> CachedBlock | None:
        """Returns the first block on disk from `position` on, through the read cache."""
        ledger_id = state.ledger_id
        ahead = self._ahead.get(ledger_id)
        if ahead is not None:
            await asyncio.shield(ahead)
            block = self.cache.find(ledger_id, position)
            if block is not None:
                self.cache.hits += 1
                return block
        self.cache.misses += 1
        bytes_wanted = min(bytes_wanted, LOAD_BYTES_MAX)
        rewrites = self._rewrites
        if self._pool is None:
            blocks = self._load_run(ledger_id, position, last, bytes_wanted)
        else:
            blocks = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._load_run, ledger_id, position, last, bytes_wanted
            )
        if not blocks or state.deleted:
            return None
        if rewrites == self._rewrites:
            for block in blocks:
                self.cache.add(block)
        if sequential or blocks[-1].last < last:
            self._read_ahead(state, blocks[-1].last + 1)
        return blocks[0]

    def _load_run(
        self, ledger_id: int, position: int, last: int, bytes_wanted: int
    ) -> list[CachedBlock]:
        """Loads blocks from `position` on, at least one, until they have `bytes_wanted` bytes.

        An error after the first block ends the load; a read that starts there will report it.
        """
        views = self._next_views(ledger_id, position, last, bytes_wanted)
        blocks: list[CachedBlock] = []
        while len(blocks) < len(views):
            run = adjacent(views[len(blocks) :], LOAD_BYTES_MAX + self._settings.block_bytes_max)
            try:
                blocks += self._load_adjacent(run, bytes_wanted)
            except BookieError:
                if blocks:
                    break
                raise
        return blocks

    def _load_adjacent(self, run: Sequence[View], bytes_wanted: int) -> list[CachedBlock]:
        """Loads adjacent blocks up to a bad one, at least the first; raises BookieError."""
        if len(run) > 1 or bytes_wanted >= run[0].length:
            with contextlib.suppress(FileNotFoundError):  # the collector moved them
                return [
                    CachedBlock(view.ledger_id, view.first, view.last, block)
                    for view, block in zip(run, self._logs.read_run(run), strict=False)
                ]
        return [self._load_view(run[0])]

    def _next_views(
        self, ledger_id: int, position: int, last: int, bytes_wanted: int
    ) -> list[View]:
        """Returns the views from `position` on that have about `bytes_wanted` bytes."""
        view = self._index.find_from(ledger_id, position, last)
        if view is None:
            return []
        views = [view]
        bytes_wanted -= view.length
        if bytes_wanted > 0 and view.last < last:
            for following in self._index.views(ledger_id, view.last + 1, last):
                views.append(following)
                bytes_wanted -= following.length
                if bytes_wanted <= 0:
                    break
        return views

    def _load_view(self, view: View) -> CachedBlock:
        """Loads the view's block; looks it up again if the collector moved it meanwhile."""
        for _ in range(LOOKUPS_MAX):
            try:
                block = self._logs.read(view)
            except FileNotFoundError:
                moved = self._index.find(view.ledger_id, view.first)
                if moved is None or moved == view:
                    break
                view = moved
            else:
                return CachedBlock(view.ledger_id, view.first, view.last, block)
        path = str(self._logs.path(view.log_id))
        raise EntryCorrupt(
            f"ledger {view.ledger_id} entries {view.first} to {view.last}: {path} is missing",
            path,
            view.offset,
        )

    def _read_ahead(self, state: LedgerState, position: int) -> None:
        """Starts to load the next blocks into the cache for a sequential reader."""
        ledger_id = state.ledger_id
        bytes_wanted = self._settings.read_ahead_bytes
        if self._pool is None or not bytes_wanted or ledger_id in self._ahead:
            return
        if position > state.last_indexed or self.cache.find(ledger_id, position) is not None:
            return
        loop = asyncio.get_running_loop()
        done = self._ahead[ledger_id] = loop.create_future()
        rewrites = self._rewrites

        def finished(loading: "asyncio.Future[list[CachedBlock]]") -> None:
            del self._ahead[ledger_id]
            # Errors are dropped: a read that needs the block loads it again and reports them.
            failed = loading.cancelled() or loading.exception() is not None
            if not failed and not state.deleted and rewrites == self._rewrites:
                for block in loading.result():
                    self.cache.add(block)
            if not done.done():
                done.set_result(None)

        loading = loop.run_in_executor(
            self._pool, self._load_run, ledger_id, position, state.last_indexed, bytes_wanted
        )
        loading.add_done_callback(finished)

    def _may_be_lost(self, state: LedgerState, first: int, last: int) -> bool:
        """Whether absent entries from `first` to `last` may have been lost."""
        if state.half_dropped or self._ledgers.is_limbo(state.ledger_id):
            return True
        return self._ledgers.damage(state.ledger_id, first, last) is not None

    def _before_loss(self, state: LedgerState, chunk: Chunk) -> tuple[Chunk, bool]:
        """Returns the chunk before its first possible loss, and whether it has one."""
        ids, entries = chunk
        if ids[-1] - ids[0] == len(ids) - 1:
            return chunk, False
        for count, (before, after) in enumerate(pairwise(ids), 1):
            if after > before + 1 and self._may_be_lost(state, before + 1, after - 1):
                return (ids[:count], entries[:count]), True
        return chunk, False

    def _absent(self, state: LedgerState, entry_id: int) -> BookieError:
        """Returns the error for a read that starts at an absent entry."""
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
            return EntryUnknown(f"the copy of ledger {ledger_id} may have been dropped here")
        if self._ledgers.is_limbo(ledger_id):
            return EntryUnknown(
                f"ledger {ledger_id} entry {entry_id} may have been lost with damaged bytes"
            )
        return NoSuchEntry(f"no entry {entry_id} in ledger {ledger_id}")


def _fitting(entries: list[bytes], room: int, *, at_least: int) -> tuple[int, int]:
    """Returns how many of the entries fit into `room` bytes, and their size."""
    sums = list(accumulate(map(len, entries)))
    if sums[-1] <= room:
        return len(entries), sums[-1]
    count = max(bisect_right(sums, room), at_least)
    return count, sums[count - 1] if count else 0
