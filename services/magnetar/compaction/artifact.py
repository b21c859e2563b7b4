"""Reads the artifact of a compacted topic: its entries in order, from any position.

`Artifacts.live` reads from metadata which artifact is live; an `Artifact` never does. Files are
read one row group at a time, through the process's cache of cold data.
"""

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from magnetar.compaction.records import CompactedFile, CompactionRecord, compaction_key
from magnetar.compaction.records import decode_compaction as decode
from magnetar.core.ids import Position
from magnetar.metadata.store import MetadataStore
from magnetar.offload.cold_files import ColdFiles, FileRef

if TYPE_CHECKING:
    from magnetar.offload.file_format import ColdEntry

_last = attrgetter("last")


def _position(entry: "ColdEntry") -> Position:
    return Position(entry.ledger_id, entry.entry_id)


class Artifact:
    """One artifact, which never changes. It holds its record, no data."""

    __slots__ = ("_files", "record")

    def __init__(self, record: CompactionRecord, files: ColdFiles) -> None:
        self.record = record
        self._files = files

    @property
    def horizon(self) -> Position:
        """The last position of the log that was compacted."""
        return self.record.horizon

    def ends_before(self, start: Position) -> bool:
        """Whether it has no entry at or after `start`."""
        last = self.record.last
        return last is None or last < start

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> "list[ColdEntry]":
        """Entries at or after `start`; at least one if there is any.

        Raises ColdStoreUnavailable, ColdFileMissing, ColdFileCorrupt.
        """
        if self.ends_before(start):
            return []
        listed = self.record.files
        ref = self._ref(listed[bisect_left(listed, start, key=_last)])
        file = await self._files.open(ref)
        entries = await self._files.group(ref, file.group_of(start))
        first = bisect_left(entries, start, key=_position)
        selected: list[ColdEntry] = []
        room = bytes_max
        for entry in entries[first : first + entries_max]:
            room -= len(entry.data)
            if room < 0 and selected:
                break
            selected.append(entry)
        return selected

    async def last_entry(self) -> "ColdEntry | None":
        """The last entry; None if the artifact is empty."""
        last = self.record.last
        return None if last is None else (await self.read(last, 1, 1))[0]

    def _ref(self, file: CompactedFile) -> FileRef:
        return FileRef(self.record.store, file.path, file.file_bytes)


class Artifacts:
    """Opens live artifacts. One per process."""

    def __init__(self, store: MetadataStore, files: ColdFiles) -> None:
        self._store = store
        self._files = files

    async def live(self, name: str, log_created_ms: int) -> Artifact | None:
        """The artifact of this log. That of an older log of the same name does not count."""
        key = compaction_key(name)
        stored = await self._store.get(key)
        if stored is None:
            return None
        record = decode(key, stored.value)
        return Artifact(record, self._files) if record.log_created_ms == log_created_ms else None
