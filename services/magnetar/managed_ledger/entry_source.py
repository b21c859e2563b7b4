"""Reads a managed ledger's entries: from the cache, the newest ledger, or a closed ledger.

Every confirmed and kept entry is readable. A read covers one ledger; a position between ledgers, or
in a trimmed one, means the next kept entry. Readers of closed ledgers stay open, up to READERS_MAX;
the oldest is dropped first.

A closed ledger may be offloaded, and the bookies may have deleted it. Depending on the topic's read
priority, the offloaded file is tried first, which costs one metadata request per opened reader, or
only if the bookies cannot serve the ledger. Whichever copy fails, the same read tries the other
one. A topic without offload makes no extra request.
"""

from collections.abc import Callable
from typing import Final

from magnetar.bookie.api import BookieError, NoSuchEntry, NoSuchLedger, StoredEntry
from magnetar.core.errors import MagnetarError, MetadataError, NotFound
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.ledger.reader import LedgerReader
from magnetar.managed_ledger.appender import Appender
from magnetar.managed_ledger.cache import CachedRun
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.offload.cold import ColdLedger
from magnetar.offload.errors import COLD_ERRORS, ColdFileMissing

log = get_logger("magnetar.managed_ledger")

READERS_MAX: Final = 16


class EntrySource:
    """Reads the entries of one managed ledger."""

    __slots__ = ("_appender", "_context", "_index", "_name", "_readers", "_runs")

    def __init__(self, name: str, index: LedgerIndex, appender: Appender, context: Context) -> None:
        self._name = name
        self._index = index
        self._appender = appender
        self._context = context
        self._runs: dict[int, CachedRun] = {}
        self._readers: dict[int, LedgerReader | ColdLedger] = {}

    def run_of(self, ledger_id: int, first_entry: int) -> CachedRun:
        """Returns a new cache run from `first_entry` on; drops the ledger's earlier run."""
        old = self._runs.get(ledger_id)
        if old is not None:
            self._context.cache.forget(old)
        run = self._runs[ledger_id] = CachedRun(ledger_id, first_entry)
        return run

    def forget(self, ledger_id: int) -> None:
        """Drops the cached entries and the reader of a deleted ledger."""
        self._readers.pop(ledger_id, None)
        if (run := self._runs.pop(ledger_id, None)) is not None:
            self._context.cache.forget(run)

    def forget_all(self) -> None:
        """Drops all cached entries and readers."""
        for ledger_id in [*self._runs, *self._readers]:
            self.forget(ledger_id)

    def sweep(self) -> None:
        """Drops cache runs whose entries were all evicted."""
        for ledger_id in [i for i, run in self._runs.items() if not len(run)]:
            del self._runs[ledger_id]

    def read_cached(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry] | None:
        """Returns cached entries of one ledger from `start` (inclusive) on.

        None if the first is not cached, so `read` is needed; [] if it does not exist yet.
        """
        ledger_id, entry_id = start
        cache = self._context.cache
        run = self._runs.get(ledger_id)
        if run is not None:
            entries = run.read(entry_id, entries_max, bytes_max)
            if entries is not None:
                cache.hits += 1
                cache.hit_bytes += run.read_bytes
                return entries
        location = self._index.locate(ledger_id, entry_id)
        if location is None:
            return []
        info, entry_id = location
        run = self._runs.get(info.ledger_id)
        entries = None if run is None else run.read(entry_id, entries_max, bytes_max)
        if run is None or entries is None:
            cache.misses += 1
        else:
            cache.hits += 1
            cache.hit_bytes += run.read_bytes
        return entries

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Returns entries of one ledger from `start` (inclusive) on, at least one if any exists.

        Skips ends of ledgers and trimmed entries.
        """
        cached = self.read_cached(start, entries_max, bytes_max)
        while cached is None:
            location = self._index.locate(*start)
            if location is None:
                return []
            info, first = location
            last = min(first + entries_max, info.entries) - 1
            try:
                stored = await self._stored(info.ledger_id, first, last, bytes_max)
            except (NoSuchLedger, NoSuchEntry, ColdFileMissing):
                if self._index.get(info.ledger_id) is info:
                    raise
                continue  # trimmed meanwhile: continue with the next kept entry
            ledger_id = info.ledger_id
            self._context.cache.missed_bytes += sum([len(entry.data) for entry in stored])
            return [Entry(ledger_id, entry.entry_id, entry.data) for entry in stored]
        return cached

    async def read_entry(self, position: Position) -> Entry:
        """Returns one entry; raises NotFound if there is none at this position."""
        if not 0 <= position.entry_id <= self._index.last_entry_of(position.ledger_id):
            raise NotFound(f"no entry {position} in {self._name}")
        entries = await self.read(position, 1, 1)
        if not entries or entries[0].position != position:
            raise NotFound(f"no entry {position} in {self._name}")
        return entries[0]

    async def _stored(
        self, ledger_id: int, first: int, last: int, bytes_max: int
    ) -> list[StoredEntry]:
        writer = self._appender.writer
        if writer is not None and writer.ledger_id == ledger_id:
            return await writer.read(first, last, bytes_max=bytes_max)
        reader = self._readers.get(ledger_id) or await self._open_reader(ledger_id)
        try:
            return await reader.read(first, last, bytes_max=bytes_max)
        except (BookieError, *COLD_ERRORS) as error:
            if not isinstance(reader, LedgerReader):
                self._readers.pop(ledger_id, None)
            other = await self._other(reader, ledger_id, error)
            if other is None:
                raise
        entries = await other.read(first, last, bytes_max=bytes_max)
        self._keep(ledger_id, other)
        return entries

    async def _open_reader(self, ledger_id: int) -> LedgerReader | ColdLedger:
        context = self._context
        reader: LedgerReader | ColdLedger | None = None
        if context.cold_first(self._name):
            reader = await context.cold.open(self._name, ledger_id)
        if reader is None:
            try:
                reader = await context.ledgers.open(ledger_id, recover=False)
            except NoSuchLedger:
                reader = await context.cold.open(self._name, ledger_id)
                if reader is None:
                    raise
        self._keep(ledger_id, reader)
        return reader

    async def _other(
        self, failed: LedgerReader | ColdLedger, ledger_id: int, error: MagnetarError
    ) -> LedgerReader | ColdLedger | None:
        """Returns a reader of the ledger's other copy; None if there is none."""
        context = self._context
        if isinstance(failed, LedgerReader):
            return await context.cold.open(self._name, ledger_id)
        log.warning(
            "offloaded ledger unreadable, trying bookies",
            managed_ledger=self._name,
            ledger=ledger_id,
            file=failed.record.path,
            error=str(error),
        )
        try:
            return await context.ledgers.open(ledger_id, recover=False)
        except (BookieError, MetadataError):
            return None

    def _keep(self, ledger_id: int, reader: LedgerReader | ColdLedger) -> None:
        self._readers.pop(ledger_id, None)
        if len(self._readers) >= READERS_MAX:
            del self._readers[next(iter(self._readers))]
        self._readers[ledger_id] = reader

    async def find_by(
        self,
        predicate: Callable[[bytes], bool],
        after: Position,
        published_before_ms: int | None = None,
    ) -> Position | None:
        """See `ManagedLedger.find_by`."""
        low = max(self._index.rank_end - self._index.entries, self._index.rank(*after))
        high = self._index.rank_end
        last_match: Position | None = None
        while low < high:
            middle = (low + high + 1) // 2
            position = self._index.position_at(middle)
            if await self._holds(predicate, position, published_before_ms):
                low, last_match = middle, position
            else:
                high = middle - 1
            # The head may have been trimmed meanwhile.
            low = max(low, self._index.rank_end - self._index.entries)
        return last_match

    async def _holds(
        self,
        predicate: Callable[[bytes], bool],
        position: Position,
        published_before_ms: int | None,
    ) -> bool:
        if published_before_ms is not None:
            ledger_id, entry_id = position
            try:
                reader = self._readers.get(ledger_id)
                if reader is None and not self._is_written(ledger_id):
                    reader = await self._open_reader(ledger_id)
                if isinstance(reader, ColdLedger):
                    return await reader.published_before(entry_id, published_before_ms)
            except (BookieError, *COLD_ERRORS):
                pass  # reading the entry tries the other copy, or raises the reason
        return predicate((await self.read_entry(position)).data)

    def _is_written(self, ledger_id: int) -> bool:
        writer = self._appender.writer
        return writer is not None and writer.ledger_id == ledger_id
