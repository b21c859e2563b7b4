"""Where a managed ledger's entries are read from: the cache, the newest ledger, or a closed one.

Everything that is confirmed and kept can be read. A read is of one ledger at a time; places between
ledgers, and in ledgers that are gone, mean the next entry that is kept. Readers of closed ledgers
are kept open up to READERS_MAX, the ones opened first go first.
"""

from collections.abc import Callable
from typing import Final

from magnetar.bookie.api import NoSuchEntry, NoSuchLedger
from magnetar.core.errors import NotFound
from magnetar.core.ids import Position
from magnetar.ledger.reader import LedgerReader, ReadableLedger
from magnetar.managed_ledger.appender import Appender
from magnetar.managed_ledger.cache import CachedRun
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.index import LedgerIndex

READERS_MAX: Final = 16


class EntrySource:
    """See the module's text."""

    __slots__ = ("_appender", "_context", "_index", "_name", "_readers", "_runs")

    def __init__(self, name: str, index: LedgerIndex, appender: Appender, context: Context) -> None:
        self._name = name
        self._index = index
        self._appender = appender
        self._context = context
        self._runs: dict[int, CachedRun] = {}
        self._readers: dict[int, LedgerReader] = {}

    # -- what is in memory

    def run_of(self, ledger_id: int, first_entry: int) -> CachedRun:
        """A new run for entries of this ledger from here on; what was cached of it is dropped."""
        old = self._runs.get(ledger_id)
        if old is not None:
            self._context.cache.forget(old)
        run = self._runs[ledger_id] = CachedRun(ledger_id, first_entry)
        return run

    def forget(self, ledger_id: int) -> None:
        """Lets go of what is in memory of a ledger that is gone."""
        self._readers.pop(ledger_id, None)
        if (run := self._runs.pop(ledger_id, None)) is not None:
            self._context.cache.forget(run)

    def forget_all(self) -> None:
        for ledger_id in [*self._runs, *self._readers]:
            self.forget(ledger_id)

    def sweep(self) -> None:
        """Lets go of runs of which everything was evicted."""
        for ledger_id in [i for i, run in self._runs.items() if not len(run)]:
            del self._runs[ledger_id]

    # -- reading

    def read_cached(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry] | None:
        """Entries from `start` (inclusive) on that are in memory, of one ledger.

        None where the first is not, so that `read` is needed; [] where there is none yet.
        """
        ledger_id, entry_id = start
        run = self._runs.get(ledger_id)
        if run is not None:
            found = run.read(entry_id, entries_max, bytes_max)
            if found is not None:
                self._context.cache.hits += 1
                return found
        place = self._index.locate(ledger_id, entry_id)
        if place is None:
            return []
        info, entry_id = place
        run = self._runs.get(info.ledger_id)
        found = None if run is None else run.read(entry_id, entries_max, bytes_max)
        if found is None:
            self._context.cache.misses += 1
        else:
            self._context.cache.hits += 1
        return found

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Entries from `start` (inclusive) on, at least one where there is one, of one ledger.

        Ends of ledgers and what was trimmed are skipped.
        """
        cached = self.read_cached(start, entries_max, bytes_max)
        while cached is None:
            place = self._index.locate(*start)
            if place is None:
                return []
            info, first = place
            last = min(first + entries_max, info.entries) - 1
            try:
                reader = await self._reader(info.ledger_id)
                stored = await reader.read(first, last, bytes_max=bytes_max)
            except (NoSuchLedger, NoSuchEntry):
                if self._index.get(info.ledger_id) is info:
                    raise
                continue  # trimmed meanwhile: what is kept comes after it
            ledger_id = info.ledger_id
            return [Entry(ledger_id, entry.entry_id, entry.data) for entry in stored]
        return cached

    async def read_entry(self, position: Position) -> Entry:
        """One entry; raises NotFound where there is none at this position."""
        if not 0 <= position.entry_id <= self._index.last_entry_of(position.ledger_id):
            raise NotFound(f"no entry {position} in {self._name}")
        entries = await self.read(position, 1, 1)
        if not entries or entries[0].position != position:
            raise NotFound(f"no entry {position} in {self._name}")
        return entries[0]

    async def _reader(self, ledger_id: int) -> ReadableLedger:
        writer = self._appender.writer
        if writer is not None and writer.ledger_id == ledger_id:
            return writer
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = await self._context.ledgers.open(ledger_id, recover=False)
            if len(self._readers) >= READERS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[ledger_id] = reader
        return reader

    async def find_by(self, predicate: Callable[[bytes], bool], after: Position) -> Position | None:
        """The last entry behind `after` for which `predicate` holds, where it holds for a head.

        A binary search that reads about log2(entries) of them.
        """
        low = max(self._index.rank_end - self._index.entries, self._index.rank(*after))
        high = self._index.rank_end
        found: Position | None = None
        while low < high:
            middle = (low + high + 1) // 2
            position = self._index.position_at(middle)
            if predicate((await self.read_entry(position)).data):
                low, found = middle, position
            else:
                high = middle - 1
            # A head may have been trimmed meanwhile.
            low = max(low, self._index.rank_end - self._index.entries)
        return found
