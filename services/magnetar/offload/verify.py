"""Verifies a file by reading all of it, before a record makes it live.

Every byte is fetched once, in order, and one row group is held at a time. All columns are decoded
with their page checksums, and all entries are checked against their own. The result is compared
with what the caller expects: the ledger, its last entry (which implies that there is no gap from
entry 0), the number and bytes of entries, and the file's checksum.
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
"""Fetched per request outside row groups."""


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """The contents of a file that passed verification."""

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
    """Reads and checks a whole file.

    With `ledger_id`, the file must hold entries of that ledger only, without a gap from entry 0.
    Raises ColdFileCorrupt with the reason, ColdFileMissing, ColdStoreUnavailable.
    """
    file = await EntryFile.open(store, path, executor=executor)
    reading = _Totals(path, ledger_id)
    loop = asyncio.get_running_loop()
    for group in file.groups:
        if group.start < reading.end:
            raise ColdFileCorrupt(f"{path}: row group {group.number} overlaps the one before")
        await _skip_to(store, path, reading, group.start)
        data = await fetch(store, path, group.start, group.end)
        await loop.run_in_executor(executor, reading.add_group, file, group.number, data)
    await _skip_to(store, path, reading, file.file_bytes)
    verified = VerifiedFile(
        file.file_bytes,
        reading.checksum,
        reading.entries,
        reading.length_bytes,
        reading.first,
        reading.last,
    )
    for what, actual, expected in (
        ("entries in its index", file.entries, verified.entries),
        ("bytes of entries in its index", file.length_bytes, verified.length_bytes),
        ("last entry", verified.last.entry_id, last_entry),
        ("bytes of entries", verified.length_bytes, length_bytes),
        ("checksum", verified.checksum, checksum),
    ):
        if expected is not None and actual != expected:
            raise ColdFileCorrupt(f"{path}: {what}: {actual}, not {expected}")
    return verified


async def _skip_to(store: "ObjectStore", path: str, reading: "_Totals", end: int) -> None:
    """Adds the bytes up to `end`, which belong to no row group, to the checksum."""
    while reading.end < end:
        piece = min(end, reading.end + PIECE_BYTES)
        reading.add(await fetch(store, path, reading.end, piece))


class _Totals:
    """The totals of the entries read so far."""

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
        """Checks and counts the entries of a row group. Blocks."""
        self.add(data)
        group = file.groups[number]
        entries = file.decode_group(number, data, verify=True)
        size = 0
        for entry in entries:
            self._next(entry)
            size += len(entry.data)
        ends = Position(*entries[0][:2]), Position(*entries[-1][:2])
        if ends != (group.first, group.last) or size != group.data_bytes:
            raise ColdFileCorrupt(f"{self._path}: row group {number} contradicts its index")
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
