"""Reads and deletes offloaded ledgers by what metadata says of them.

Nothing is asked of metadata but where it may matter: one key where a closed ledger is to be read
that may be cold, one list for a batch of ledgers that were deleted. Files and row groups are
`ColdFiles`'s. pyarrow and obstore are imported with the first file.

Deleting: the ledger's own record has gone before, by which a job that is about to commit a file of
it fails. So the list that is made here shows every file that can be live; each file goes first,
then its record, so that what is cut short is found again.
"""

from collections.abc import Collection

from magnetar.bookie.api import NoSuchEntry, StoredEntry
from magnetar.core.ids import Position
from magnetar.metadata.store import BadRevision, MetadataStore
from magnetar.offload.cold_files import CACHE_BYTES_DEFAULT, ColdFiles, FileRef
from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.file_format import ColdEntry
from magnetar.offload.records import (
    OffloadRecord,
    decode_offload,
    offload_key,
    offloads_prefix,
    request_key,
)


class ColdLedger:
    """One offloaded ledger: a `ReadableLedger`. It holds its record, no bytes."""

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
        """At least entry `first`, then those after it that fit and are in the same row group.

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
        return self._some(entries, first, last, bytes_max)

    def _some(
        self, entries: list[ColdEntry], first: int, last: int, bytes_max: int
    ) -> list[StoredEntry]:
        start = first - entries[0].entry_id
        if not 0 <= start < len(entries) or entries[start][:2] != (self.ledger_id, first):
            raise ColdFileCorrupt(f"{self.record.path} has a gap at {self.ledger_id}:{first}")
        found: list[StoredEntry] = []
        room = bytes_max
        for _, entry_id, data in entries[start : start + last - first + 1]:
            room -= len(data)
            if room < 0 and found:
                break
            found.append(StoredEntry(entry_id, data))
        return found


class ColdLedgers:
    """See the module's text. One per process; `close` at its end."""

    def __init__(self, store: MetadataStore, cache_bytes_max: int = CACHE_BYTES_DEFAULT) -> None:
        self.files = ColdFiles(cache_bytes_max)
        self._store = store

    async def record(self, name: str, ledger_id: int) -> OffloadRecord | None:
        """What is live of this ledger."""
        key = offload_key(name, ledger_id)
        stored = await self._store.get(key)
        return None if stored is None else decode_offload(key, stored.value)

    async def records(self, name: str) -> dict[int, OffloadRecord]:
        """What is live of a managed ledger, by ledger, in order."""
        found = (
            decode_offload(stored.key, stored.value)
            for stored in await self._store.list(offloads_prefix(name))
        )
        return {record.ledger_id: record for record in found}

    async def open(self, name: str, ledger_id: int) -> ColdLedger | None:
        """A reader of the ledger's file; None where there is none. Nothing is fetched yet."""
        record = await self.record(name, ledger_id)
        return None if record is None else ColdLedger(self.files, record)

    async def delete(self, name: str, ledger_ids: Collection[int]) -> None:
        """Deletes the files of these ledgers, whose own records have gone, and their records."""
        wanted = frozenset(ledger_ids)
        for stored in await self._store.list(offloads_prefix(name)):
            record = decode_offload(stored.key, stored.value)
            if record.ledger_id not in wanted:
                continue
            await self.files.delete(file_ref(record))
            try:
                await self._store.delete(stored.key, expected=stored.revision)
            except BadRevision:
                # A job noted meanwhile that the bookies have let go: the file is the same.
                await self._store.delete(stored.key)

    async def forget_request(self, name: str) -> None:
        """The managed ledger goes: what was asked for it is of no interest any more."""
        await self._store.delete(request_key(name))

    async def close(self) -> None:
        await self.files.close()


def file_ref(record: OffloadRecord) -> FileRef:
    """Which file a record names."""
    return FileRef(record.store, record.path, record.file_bytes)
