"""Reads a file back, whole, before it is trusted: what is found is what a record may say.

Every byte is fetched once, in order, and one row group is held at a time. All columns are decoded,
with the checksums of their pages; entries are checked against theirs. What is expected is compared
with what is there: the ledger, its last entry (then without a gap from entry 0 on), the number and
bytes of entries, the file's own checksum.
"""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c

from magnetar.core.ids import EARLIEST, Position
from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.file_format import ColdEntry, EntryFile, fetch

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PIECE_BYTES: Final = 4 << 20
"""Of what lies outside row groups, per request."""


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """What is in a file that was read back."""

    file_bytes: int
    checksum: int
    entries: int
    length_bytes: int
    first: Position
    last: Position


async def verify_file(
    store: "ObjectStore",
    path: str,
    *,
    ledger_id: int | None = None,
    last_entry: int | None = None,
    length_bytes: int | None = None,
    checksum: int | None = None,
    executor: Executor | None = None,
) -> VerifiedFile:
    """Raises ColdFileCorrupt saying what is wrong, ColdFileMissing, ColdStoreUnavailable.

    With `ledger_id` there may be no entry of another ledger, and no gap from its entry 0 on.
    """
    file = await EntryFile.open(store, path, executor=executor)
    reading = _Reading(path, ledger_id)
    loop = asyncio.get_running_loop()
    for group in file.groups:
        if group.start < reading.end:
            raise ColdFileCorrupt(f"{path}: row group {group.number} overlaps the one before")
        await _pass(store, path, reading, group.start)
        data = await fetch(store, path, group.start, group.end)
        await loop.run_in_executor(executor, reading.add_group, file, group.number, data)
    await _pass(store, path, reading, file.file_bytes)
    found = VerifiedFile(
        file.file_bytes,
        reading.checksum,
        reading.entries,
        reading.length_bytes,
        reading.first,
        reading.last,
    )
    for what, actual, expected in (
        ("entries in its index", file.entries, found.entries),
        ("bytes of entries in its index", file.length_bytes, found.length_bytes),
        ("last entry", found.last.entry_id, last_entry),
        ("bytes of entries", found.length_bytes, length_bytes),
        ("checksum", found.checksum, checksum),
    ):
        if expected is not None and actual != expected:
            raise ColdFileCorrupt(f"{path}: {what}: {actual}, not {expected}")
    return found


async def _pass(store: "ObjectStore", path: str, reading: "_Reading", end: int) -> None:
    """Adds what lies before `end` to the checksum."""
    while reading.end < end:
        piece = min(end, reading.end + PIECE_BYTES)
        reading.add(await fetch(store, path, reading.end, piece))


class _Reading:
    """What was read so far."""

    def __init__(self, path: str, ledger_id: int | None) -> None:
        self._path = path
        self._ledger_id = ledger_id
        self.end = 0
        self.checksum = 0
        self.entries = 0
        self.length_bytes = 0
        self.first = self.last = EARLIEST

    def add(self, data: bytes) -> None:
        self.checksum = google_crc32c.extend(self.checksum, data)
        self.end += len(data)

    def add_group(self, file: EntryFile, number: int, data: bytes) -> None:
        """Blocks."""
        self.add(data)
        group = file.groups[number]
        entries = file.decode_group(number, data, verify=True)
        size = 0
        for entry in entries:
            self._next(entry)
            size += len(entry.data)
        ends = Position(*entries[0][:2]), Position(*entries[-1][:2])
        if ends != (group.first, group.last) or size != group.data_bytes:
            raise ColdFileCorrupt(f"{self._path}: row group {number} is not what its index says")
        self.length_bytes += size

    def _next(self, entry: ColdEntry) -> None:
        position = Position(entry.ledger_id, entry.entry_id)
        if position <= self.last:
            raise ColdFileCorrupt(f"{self._path}: entry {position} comes after {self.last}")
        if self._ledger_id is not None and position != (self._ledger_id, self.entries):
            raise ColdFileCorrupt(
                f"{self._path}: entry {position} where {self._ledger_id}:{self.entries} should be"
            )
        if not self.entries:
            self.first = position
        self.last = position
        self.entries += 1
