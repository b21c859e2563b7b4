"""A broker's access to offloaded ledgers: reads them from their files, and deletes them.

Metadata is read only if it may matter: one key to read a closed ledger that may be cold, one list
for a batch of deleted ledgers. Files and row groups come from `ColdFiles`. pyarrow and obstore are
imported with the first file.

When a ledger is deleted, its own record is deleted first, so that a job that is about to commit a
file of it fails. The list made after that contains every file that can be live. One transaction
deletes their records and puts the files into the `trash`: metadata alone decides whether a ledger
is deleted, and an unavailable store delays nothing. The trash is emptied in the background,
EMPTY_PASSES_MAX times with back-off and jitter and again after each deletion; jobs empty it too.
"""

import asyncio
import random
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Final

from magnetar.bookie.api import NoSuchEntry, StoredEntry
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import BadRevision, Check, Delete, MetadataStore, Record
from magnetar.offload.cold_files import CACHE_BYTES_DEFAULT, ColdFiles, FileRef
from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.records import (
    OffloadRecord,
    decode_offload,
    offloads_prefix,
    parse_offload_key,
)

if TYPE_CHECKING:
    from magnetar.offload.file_format import ColdEntry
    from magnetar.offload.repository import OffloadRepository

TRASHED_AT_ONCE_MAX: Final = 50
"""Files per transaction."""
TRASH_ATTEMPTS_MAX: Final = 8
"""Retries if jobs change the records concurrently."""
EMPTY_PASSES_MAX: Final = 8
EMPTY_RETRY_S: Final = 30.0
EMPTY_RETRY_S_MAX: Final = 1800.0

log = get_logger("magnetar.offload")


class ColdLedger:
    """Reads an offloaded ledger. It holds the file's record, no data."""

    __slots__ = ("_files", "_ref", "ledger_id", "record")

    def __init__(self, files: ColdFiles, record: OffloadRecord) -> None:
        self._files = files
        self._ref = file_ref(record)
        self.ledger_id = record.ledger_id
        self.record = record

    @property
    def last_entry(self) -> int:
        return self.record.entries - 1

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[StoredEntry]:
        """Entry `first`, and entries after it that fit into `bytes_max`, from one row group.

        Raises NoSuchEntry outside the ledger, ColdStoreUnavailable, ColdFileMissing,
        ColdFileCorrupt.
        """
        if not 0 <= first <= self.last_entry:
            raise NoSuchEntry(
                f"entry {first} of ledger {self.ledger_id} is outside 0..{self.last_entry}"
            )
        file = await self._files.open(self._ref)
        number = file.group_of(Position(self.ledger_id, first))
        if number == len(file.groups):
            raise ColdFileCorrupt(f"{self.record.path} has no entry {self.ledger_id}:{first}")
        entries = await self._files.group(self._ref, number)
        return self._cut(entries, first, last, bytes_max)

    async def published_before(self, entry_id: int, time_ms: int) -> bool:
        """Whether the entry was published before this time, by its producer's clock.

        Fetches no entry: the footer decides for the whole row group, or else one column does. An
        entry without a publish time counts as old, or like its row group. Raises as `read`.
        """
        if not 0 <= entry_id <= self.last_entry:
            raise NoSuchEntry(
                f"entry {entry_id} of ledger {self.ledger_id} is outside 0..{self.last_entry}"
            )
        file = await self._files.open(self._ref)
        position = Position(self.ledger_id, entry_id)
        number = file.group_of(position)
        if number == len(file.groups) or file.groups[number].first > position:
            raise ColdFileCorrupt(f"{self.record.path} has no entry {position}")
        group = file.groups[number]
        if 0 < group.publish_ms_max < time_ms:
            return True
        if group.publish_ms_min >= time_ms:
            return False
        times = await self._files.publish_times(self._ref, number)
        return times[entry_id - group.first.entry_id] < time_ms

    def _cut(
        self, entries: "list[ColdEntry]", first: int, last: int, bytes_max: int
    ) -> list[StoredEntry]:
        start = first - entries[0].entry_id
        if not 0 <= start < len(entries) or entries[start][:2] != (self.ledger_id, first):
            raise ColdFileCorrupt(f"{self.record.path} has a gap at {self.ledger_id}:{first}")
        selected: list[StoredEntry] = []
        room = bytes_max
        for _, entry_id, data in entries[start : start + last - first + 1]:
            room -= len(data)
            if room < 0 and selected:
                break
            selected.append(StoredEntry(entry_id, data))
        return selected


class ColdLedgers:
    """The offloaded ledgers of a process. Call `close` at its end."""

    def __init__(
        self,
        store: MetadataStore,
        cache_bytes_max: int = CACHE_BYTES_DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        self.files = ColdFiles(cache_bytes_max)
        self._store = store
        self._clock = clock or SystemClock()
        self._tasks = TaskSet("trash")
        self._emptying: asyncio.Task[None] | None = None
        self._more: asyncio.Event | None = None

    @cached_property
    def _repository(self) -> "OffloadRepository":
        # Imported here: an idle process reads no records.
        from magnetar.offload.repository import OffloadRepository

        return OffloadRepository(self._store)

    async def record(self, name: str, ledger_id: int) -> OffloadRecord | None:
        """The live file of a ledger."""
        return await self._repository.file(name, ledger_id)

    async def records(self, name: str) -> dict[int, OffloadRecord]:
        """The live files of a managed ledger by ledger, in the order of ledger ids."""
        files = await self._repository.files(name)
        return {ledger_id: file.record for ledger_id, file in files.items()}

    async def open(self, name: str, ledger_id: int) -> ColdLedger | None:
        """A reader of the ledger's file; None if it has none. Fetches nothing yet."""
        record = await self.record(name, ledger_id)
        return None if record is None else ColdLedger(self.files, record)

    async def delete(self, name: str, ledger_ids: Collection[int]) -> None:
        """Trashes the files of ledgers whose own records are deleted already. Idempotent.

        Sends no request to a store. Raises MetadataError for unreadable records, after the others
        were handled.
        """
        wanted = frozenset(ledger_ids)
        for _ in range(TRASH_ATTEMPTS_MAX):
            records = [
                stored
                for stored in await self._store.list(offloads_prefix(name))
                if parse_offload_key(stored.key)[1] in wanted
            ]
            if await self._trash(name, records):
                return
        raise MetadataError(
            f"{offloads_prefix(name)} changed {TRASH_ATTEMPTS_MAX} times while ledgers were deleted"
        )

    async def _trash(self, name: str, records: list[Record]) -> bool:
        """Trashes the files of these records; False if a job has changed one of them meanwhile."""
        from magnetar.offload.trash import TrashedFile, put_in_trash

        unreadable: MetadataError | None = None
        readable: list[tuple[Record, FileRef]] = []
        for stored in records:
            try:
                readable.append((stored, file_ref(decode_offload(stored.key, stored.value))))
            except MetadataError as error:
                unreadable = error
        for start in range(0, len(readable), TRASHED_AT_ONCE_MAX):
            batch = readable[start : start + TRASHED_AT_ONCE_MAX]
            files = [TrashedFile(ref.store, ref.path) for _, ref in batch]
            trash = put_in_trash(name, files, self._clock.now_ms())
            deletes = [Delete(stored.key, stored.revision) for stored, _ in batch]
            try:
                await self._store.transact([trash, *deletes])
            except BadRevision:
                return False
            self.empty_trash_soon()
            for _, ref in batch:
                self.files.forget(ref)
        if unreadable is not None:
            raise unreadable
        return True

    def empty_trash_soon(self) -> None:
        """Starts a task that empties the trash, or makes the running one do so again."""
        if self._emptying is None or self._emptying.done():
            self._more = asyncio.Event()
            self._emptying = self._tasks.start(self._empty_trash(self._more), "empty")
        elif self._more is not None:
            self._more.set()

    async def _empty_trash(self, more: asyncio.Event) -> None:
        from magnetar.offload.trash import empty_trash

        passes, pause_s = 0, EMPTY_RETRY_S
        while passes < EMPTY_PASSES_MAX:
            more.clear()
            try:
                left = (await empty_trash(self._store)).left
            except MagnetarError as error:
                left = [("metadata", str(error))]
            passes += 1
            for what, why in left:
                log.info("files are not deleted yet", what=what, error=why)
            if not left and not more.is_set():
                return
            try:
                async with asyncio.timeout(pause_s * random.uniform(0.5, 1.0)):
                    await more.wait()
                passes, pause_s = 0, EMPTY_RETRY_S
            except TimeoutError:
                pause_s = min(EMPTY_RETRY_S_MAX, 2 * pause_s)

    async def forget_request(self, name: str, marked: Check) -> None:
        """Deletes the offload request of a managed ledger that is being deleted.

        Raises BadRevision if `marked`, which shows that, is not valid.
        """
        await self._repository.delete_request(name, marked)

    async def close(self) -> None:
        """Stops emptying the trash, and closes all files. Idempotent."""
        await self._tasks.stop()
        await self.files.close()


def file_ref(record: OffloadRecord) -> FileRef:
    """The reference to a record's file."""
    return FileRef(record.store, record.path, record.file_bytes)
