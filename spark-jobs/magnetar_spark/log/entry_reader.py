"""Reads a range's entries from the bookies or from a file: a plain generator with reads ahead.

Spark's Python workers are synchronous, so the event loop runs only while the generator is called,
and rests while entries are decoded; meanwhile bookies' answers wait in the sockets. READS_AT_ONCE
reads of READ_BYTES are in flight. The reads of one ledger are divided into runs by the average
entry size so far. Each run is read to its end in order, and runs are yielded in order, so entries
arrive without a gap and never twice.

A failed read is retried from the next missing entry. After ATTEMPTS_PLANNED failures the metadata
store is asked for the current bookies and copies. After ATTEMPTS_MAX failures the task fails, and
Spark may retry it elsewhere.

An offloaded ledger is read from its file (`files`). If that fails and the bookies still have the
ledger, they are read instead. If the bookies do not have a ledger, its file is looked up. In both
cases reading continues after the last yielded entry.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator, Iterable, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pyroaring import BitMap

from magnetar.bookie.api import BookieError, NoSuchLedger, StoredEntry
from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import SystemClock
from magnetar.core.names import parse_topic
from magnetar.jobs.event_loop import event_loop
from magnetar.jobs.log.files import FileReader
from magnetar.jobs.log.ranges import Elder, Interval, Range
from magnetar.jobs.log.topics import log_name
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.copies_reader import CopiesReader
from magnetar.ledger.metadata import LedgerMetadata, decode, ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.offload.errors import ColdFileCorrupt, ColdFileMissing, ColdStoreUnavailable
from magnetar.offload.records import OffloadRecord
from magnetar.offload.repository import OffloadRepository
from magnetar_spark.log.access import PlannedBookies, opened_log
from magnetar_spark.log.settings import (
    LEDGER_SETTINGS,
    READ_BYTES,
    READS_AT_ONCE,
    LogSettings,
)

ATTEMPTS_PLANNED: Final = 2
ATTEMPTS_MAX: Final = 5
RUN_ENTRIES_FIRST: Final = 64
"""Entries of the first run of a range, when their size is unknown."""

COLD_ERRORS: Final = (ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable)

T = TypeVar("T")


class EntryReader:
    """Reads the ranges of one task. A context manager; use it from one thread."""

    def __init__(self, settings: LogSettings, bookies: Iterable[BookieRegistration]) -> None:
        self._settings = settings
        self._loop = event_loop()
        self._planned = PlannedBookies(bookies, settings.bookie_tls())
        clock = SystemClock()
        self._context = LedgerContext(
            MemoryStore(clock), self._planned, clock, LEDGER_SETTINGS, Random()
        )
        self._copies = CopiesReader(self._context)
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._refreshed: dict[int, LedgerMetadata] = {}
        self.files = FileReader(self._loop)
        self.reads = 0
        """Reads sent to bookies, including failed ones."""
        self.entries = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._close())

    async def _close(self) -> None:
        await self._open.aclose()
        await self._planned.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    def read(self, ranged: Range) -> Iterator[list[StoredEntry]]:
        """The range's entries in order, a group at a time, without those of aborted transactions.

        Raises BookieError, MetadataError, and the errors of `magnetar.offload.errors`.
        """
        held = Elder(ranged.metadata, ranged.last, ranged.file, ranged.aborted)
        return self._entries(ranged.topic, held, ranged.first, ranged.last)

    def narrowed(self, ranged: Range) -> Range | None:
        """The range without the outer row groups of its file that were published at other times.

        Groups in between stay, since the chunks of one message may lie around them. None if
        nothing is left. Reads the footer only; if that fails, the range stays as it is.
        """
        if ranged.file is None or ranged.publish_ms == Interval():
            return ranged
        try:
            groups = self.files.open(ranged.file).groups
        except COLD_ERRORS:
            return ranged
        times = ranged.publish_ms
        wanted = [
            group
            for group in groups
            if group.publish_ms_min <= times.high and group.publish_ms_max >= times.low
        ]
        if not wanted:
            return None
        first = max(ranged.first, wanted[0].first.entry_id)
        last = min(ranged.last, wanted[-1].last.entry_id)
        return replace(ranged, first=first, last=last) if first <= last else None

    def read_back(
        self, ranged: Range, span_entries: int
    ) -> Iterator[tuple[int, list[StoredEntry]]]:
        """The entries before the range, up to `span_entries` at a time, the newest first."""
        own = Elder(ranged.metadata, ranged.first - 1, ranged.file, ranged.aborted)
        places = [own, *ranged.before]
        for held in places:
            last = held.last_entry
            while last >= 0:
                first = max(0, last - span_entries + 1)
                group: list[StoredEntry] = []
                for entries in self._entries(ranged.topic, held, first, last):
                    group += entries
                yield held.metadata.ledger_id, group
                last = first - 1

    def _entries(
        self, topic: str, held: Elder, first: int, last: int
    ) -> Generator[list[StoredEntry], None, None]:
        """Reads the file if there is one, else the bookies; switches to the other at most once."""
        file, ledger_id, taken_over = held.file, held.metadata.ledger_id, False
        aborted = BitMap.deserialize(held.aborted) if held.aborted else None
        while first <= last:
            source = (
                self._ahead(held.metadata, first, last)
                if file is None
                else self._counted(self.files.read(file, first, last))
            )
            try:
                with closing(source):
                    for entries in source:
                        kept = entries if aborted is None else _without(entries, aborted)
                        if kept:
                            yield kept
                        first = entries[-1].entry_id + 1
                return
            except NoSuchLedger:
                offloaded = None if taken_over else self._run(self._file_of(topic, ledger_id))
                if offloaded is None:
                    raise
                file = offloaded
            except COLD_ERRORS:
                if taken_over or (file is not None and file.released_ms):
                    raise
                self._run(self._refresh(ledger_id))
                file = None
            taken_over = True

    def _counted(
        self, groups: Generator[list[StoredEntry], None, None]
    ) -> Generator[list[StoredEntry], None, None]:
        with closing(groups):
            for entries in groups:
                self.entries += len(entries)
                self.bytes += sum([len(data) for _, data in entries])
                yield entries

    def _ahead(
        self, metadata: LedgerMetadata, first: int, last: int
    ) -> Generator[list[StoredEntry], None, None]:
        ahead: deque[asyncio.Task[list[StoredEntry]]] = deque()
        entry_bytes = 0.0
        try:
            while first <= last or ahead:
                while first <= last and len(ahead) < READS_AT_ONCE:
                    count = int(READ_BYTES / entry_bytes) if entry_bytes else RUN_ENTRIES_FIRST
                    end = min(last, first + max(1, count) - 1)
                    reading = self._run_of(metadata, first, end)
                    name = f"ledger {metadata.ledger_id} from {first}"
                    ahead.append(self._loop.create_task(reading, name=name))
                    first = end + 1
                    if not entry_bytes:
                        break
                entries = self._run(_result(ahead.popleft()))
                size = sum([len(data) for _, data in entries])
                entry_bytes = max(1.0, size / len(entries))
                self.entries += len(entries)
                self.bytes += size
                yield entries
        finally:
            for task in ahead:
                task.cancel()
            if ahead:
                self._run(_settled(ahead))

    async def _run_of(self, metadata: LedgerMetadata, first: int, last: int) -> list[StoredEntry]:
        """Reads all entries from `first` to `last`."""
        entries: list[StoredEntry] = []
        attempt = 0
        while first <= last:
            self.reads += 1
            try:
                current = self._refreshed.get(metadata.ledger_id, metadata)
                read = await self._copies.read(current, first, last, bytes_max=READ_BYTES)
            except (BookieError, TimeoutError) as error:
                attempt += 1
                if attempt >= ATTEMPTS_MAX or isinstance(error, NoSuchLedger):
                    raise
                await self._context.back_off(attempt)
                if attempt >= ATTEMPTS_PLANNED:
                    await self._refresh(metadata.ledger_id)
                continue
            attempt = 0
            entries += read
            first = read[-1].entry_id + 1
        return entries

    async def _refresh(self, ledger_id: int) -> None:
        """Updates bookies and copies of a ledger from the metadata store."""
        await self._open_log()
        key = ledger_key(ledger_id)
        record = await self._context.store.get(key)
        if record is None:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted while it was read")
        self._refreshed[ledger_id] = decode(key, record.value)

    async def _file_of(self, topic: str, ledger_id: int) -> OffloadRecord | None:
        """The file of a ledger that was offloaded since the range was planned."""
        await self._open_log()
        return await OffloadRepository(self._context.store).file(
            log_name(parse_topic(topic)), ledger_id
        )

    async def _open_log(self) -> None:
        """Replaces the planned bookies by an open log, for the rest of the task."""
        async with self._opening:
            if self._context.bookies is self._planned:
                log = await self._open.enter_async_context(opened_log(self._settings))
                self._context = log.context
                self._copies = CopiesReader(self._context)


def _without(entries: list[StoredEntry], aborted: BitMap) -> list[StoredEntry]:
    return [entry for entry in entries if entry.entry_id not in aborted]


async def _result(task: asyncio.Task[T]) -> T:
    return await task


async def _settled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
