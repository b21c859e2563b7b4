"""Reads entries of offloaded ledgers for one task: by row groups, a few of them fetched ahead.

Footers are kept of FILES_OPEN_MAX files, and the entries of the row group that was decoded last:
who reads back, or in small ranges, comes to the same group again. In memory are FETCHES_AHEAD and
one more groups as bytes, and two as entries.
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
"""One client for all tasks of this process, with its connections."""


class FileReader:
    """See the module's text. `loop` runs only while this is asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: OrderedDict[str, EntryFile] = OrderedDict()
        self._decoded: tuple[str, int, list[StoredEntry]] = ("", -1, [])
        self.groups = 0
        """Fetched."""

    def open(self, record: OffloadRecord) -> EntryFile:
        """Raises ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable."""
        known = self._open.get(record.path)
        if known is None:
            files = _store(record.store)
            opening = EntryFile.open(files, record.path, file_bytes=record.file_bytes)
            known = self._open[record.path] = self._loop.run_until_complete(opening)
            if len(self._open) > FILES_OPEN_MAX:
                self._open.popitem(last=False)
        return known

    def read(
        self, record: OffloadRecord, first: int, last: int
    ) -> Generator[list[StoredEntry], None, None]:
        """These entries of the ledger, a group at a time; raises as `open` does."""
        file, files = self.open(record), _store(record.store)
        ledger_id = record.ledger_id
        number = begun = file.group_of(Position(ledger_id, first))
        end = file.group_of(Position(ledger_id, last))
        if end == len(file.groups):
            raise ColdFileCorrupt(f"{record.path} has no entry {ledger_id}:{last}")
        known = self._decoded
        ahead: deque[asyncio.Task[bytes] | None] = deque()
        try:
            while number <= end:
                while begun <= end and len(ahead) <= FETCHES_AHEAD:
                    there = known[:2] == (file.path, begun)
                    ahead.append(None if there else self._fetching(files, file, begun))
                    begun += 1
                task = ahead.popleft()
                if task is None:
                    entries = known[2]
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
        return self._loop.create_task(fetch(files, file.path, group.start, group.end))


def _entries(record: OffloadRecord, file: EntryFile, number: int, data: bytes) -> list[StoredEntry]:
    """All entries of a group, in order and without a gap."""
    found = file.decode_group(number, data)
    first, last = Position(*found[0][:2]), Position(*found[-1][:2])
    group = file.groups[number]
    if (
        (first, last) != (group.first, group.last)
        or first.ledger_id != record.ledger_id
        or len(found) != last.entry_id - first.entry_id + 1
    ):
        raise ColdFileCorrupt(f"{file.path}: row group {number} is not all of one ledger")
    return [StoredEntry(each.entry_id, each.data) for each in found]
