"""Reads a compacted topic's artefact: its entries in order, from any position on.

Which artefact is live is asked of metadata by whoever needs it (`Artefacts.live`), never here. The
files are read a row group at a time through the process's cache of cold data.
"""

from bisect import bisect_left
from operator import attrgetter

from magnetar.compaction.records import CompactedFile, CompactionRecord, compaction_key
from magnetar.compaction.records import decode_compaction as decode
from magnetar.core.ids import Position
from magnetar.metadata.store import MetadataStore
from magnetar.offload.cold_files import ColdFiles, FileRef
from magnetar.offload.file_format import ColdEntry

_last = attrgetter("last")


def _position(entry: ColdEntry) -> Position:
    return Position(entry.ledger_id, entry.entry_id)


class Artefact:
    """One artefact. It holds its record, no bytes; what it says never changes."""

    __slots__ = ("_files", "record")

    def __init__(self, record: CompactionRecord, files: ColdFiles) -> None:
        self.record = record
        self._files = files

    @property
    def horizon(self) -> Position:
        """The log was read up to and with this position."""
        return self.record.horizon

    def ends_before(self, start: Position) -> bool:
        """Whether it has no entry at or behind `start`."""
        last = self.record.last
        return last is None or last < start

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[ColdEntry]:
        """Entries from the first at or behind `start` on, at least one where there is one.

        Raises ColdStoreUnavailable, ColdFileMissing, ColdFileCorrupt.
        """
        if self.ends_before(start):
            return []
        listed = self.record.files
        ref = self._ref(listed[bisect_left(listed, start, key=_last)])
        file = await self._files.open(ref)
        entries = await self._files.group(ref, file.group_of(start))
        first = bisect_left(entries, start, key=_position)
        found: list[ColdEntry] = []
        room = bytes_max
        for entry in entries[first : first + entries_max]:
            room -= len(entry.data)
            if room < 0 and found:
                break
            found.append(entry)
        return found

    async def last_entry(self) -> ColdEntry | None:
        """The last one that is left."""
        last = self.record.last
        return None if last is None else (await self.read(last, 1, 1))[0]

    def _ref(self, file: CompactedFile) -> FileRef:
        return FileRef(self.record.store, file.path, file.file_bytes)


class Artefacts:
    """Finds artefacts. One per process."""

    def __init__(self, store: MetadataStore, files: ColdFiles) -> None:
        self._store = store
        self._files = files

    async def live(self, name: str, log_created_ms: int) -> Artefact | None:
        """The artefact of this log; what an older log of the name has left is not its."""
        key = compaction_key(name)
        stored = await self._store.get(key)
        if stored is None:
            return None
        record = decode(key, stored.value)
        return Artefact(record, self._files) if record.log_created_ms == log_created_ms else None
