"""Reads entries of offloaded ledgers for one task, by row groups, with a few groups prefetched.

The footers of FILES_OPEN_MAX files are cached, and the entries of the last decoded row group, since
reading back, or in small ranges, returns to the same group. Memory: FETCHES_AHEAD + 1 groups as
bytes, and two as entries.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Generator
from functools import cache
from typing import TYPE_CHECKING, Final

from magnetar.bookie.api import StoredEntry
from magnetar.core.ids import Position
from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.file_format import EntryFile, fetch
from magnetar.offload.records import OffloadRecord
from magnetar.offload.stores import open_object_store

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FILES_OPEN_MAX: Final = 16
FETCHES_AHEAD: Final = 2

_store = cache(open_object_store)
"""One client with its connections for all tasks of this process."""


class FileReader:
    """Reads files for one task. Its event loop runs only during calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: OrderedDict[str, EntryFile] = OrderedDict()
        self._decoded: tuple[str, int, list[StoredEntry]] = ("", -1, [])
        self.groups = 0
        """Fetched row groups."""

    def open(self, record: OffloadRecord) -> EntryFile:
        """Opens a file. Raises ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable."""
        file = self._open.get(record.path)
        if file is None:
            files = _store(record.store)
            opening = EntryFile.open(files, record.path, file_bytes=record.file_bytes)
            file = self._open[record.path] = self._loop.run_until_complete(opening)
            if len(self._open) > FILES_OPEN_MAX:
                self._open.popitem(last=False)
        return file

    def read(
        self, record: OffloadRecord, first: int, last: int
    ) -> Generator[list[StoredEntry], None, None]:
        """Entries `first` to `last` of the ledger, a row group at a time. Raises as `open`."""
        file, files = self.open(record), _store(record.store)
        ledger_id = record.ledger_id
        number = begun = file.group_of(Position(ledger_id, first))
        end = file.group_of(Position(ledger_id, last))
        if end == len(file.groups):
            raise ColdFileCorrupt(f"{record.path} has no entry {ledger_id}:{last}")
        cached = self._decoded
        ahead: deque[asyncio.Task[bytes] | None] = deque()
        try:
            while number <= end:
                while begun <= end and len(ahead) <= FETCHES_AHEAD:
                    is_cached = cached[:2] == (file.path, begun)
                    ahead.append(None if is_cached else self._fetching(files, file, begun))
                    begun += 1
                task = ahead.popleft()
                if task is None:
                    entries = cached[2]
                else:
                    data = self._loop.run_until_complete(task)
                    entries = _entries(record, file, number, data)
                    self._decoded = (file.path, number, entries)
                start = entries[0].entry_id
                if start < first or entries[-1].entry_id > last:
                    entries = entries[max(0, first - start) : last - start + 1]
                yield entries
                number += 1
        finally:
            tasks = [task for task in ahead if task is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def _fetching(self, files: "ObjectStore", file: EntryFile, number: int) -> asyncio.Task[bytes]:
        self.groups += 1
        group = file.groups[number]
        fetching = fetch(files, file.path, group.start, group.end)
        return self._loop.create_task(fetching, name=f"row group {number} of {file.path}")


def _entries(record: OffloadRecord, file: EntryFile, number: int, data: bytes) -> list[StoredEntry]:
    """The entries of a row group; raises ColdFileCorrupt unless they are one ledger's, gapless."""
    entries = file.decode_group(number, data)
    first, last = Position(*entries[0][:2]), Position(*entries[-1][:2])
    group = file.groups[number]
    if (
        (first, last) != (group.first, group.last)
        or first.ledger_id != record.ledger_id
        or len(entries) != last.entry_id - first.entry_id + 1
    ):
        raise ColdFileCorrupt(f"{file.path}: row group {number} is not all of one ledger")
    return [StoredEntry(entry.entry_id, entry.data) for entry in entries]
