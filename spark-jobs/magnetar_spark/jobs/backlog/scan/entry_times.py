"""Reads publish times of a topic's entries, from bookies or from the files of cold ledgers.

From a file, the column of publish times of one row group is fetched, some kilobytes, and cached for
TIMES_KEPT_MAX groups, since a bisection returns to the same group. If the object store fails, the
time is unknown, and the error is added to `troubles`.
"""

from collections import OrderedDict
from typing import Final

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.ids import Position
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.copies_reader import CopiesReader
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.offload.cold import file_ref
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.errors import ColdFileCorrupt, ColdFileMissing, ColdStoreUnavailable
from magnetar.offload.file_layout import time_or_none
from magnetar.offload.records import OffloadRecord
from magnetar.offload.repository import OffloadRepository
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

TIMES_KEPT_MAX: Final = 8
"""Row groups of one topic; each has at most 16,384 rows."""


class EntryTimes:
    """The publish times of one topic's entries. `name` is that of its managed ledger."""

    def __init__(
        self,
        context: LedgerContext,
        cold: ColdFiles,
        name: str,
        ledgers: dict[int, LedgerMetadata],
        files: dict[int, OffloadRecord],
    ) -> None:
        self._context = context
        self._cold = cold
        self._name = name
        self._ledgers = ledgers
        self._files = files
        self._kept: OrderedDict[tuple[str, int], list[int | None]] = OrderedDict()
        self.troubles: list[str] = []

    async def publish_ms(self, position: Position) -> int | None:
        """The time of an entry; None if it has none, is unreadable or gone. Raises BookieError."""
        ledger_id, entry_id = position
        metadata, file = self._ledgers.get(ledger_id), self._files.get(ledger_id)
        if metadata is not None:
            try:
                return await self._of_bookies(metadata, entry_id)
            except NoSuchLedger:
                # Trimmed meanwhile, or offloaded and deleted on its bookies.
                file = await OffloadRepository(self._context.store).file(self._name, ledger_id)
        return None if file is None else await self._of_file(file, position)

    async def _of_bookies(self, metadata: LedgerMetadata, entry_id: int) -> int | None:
        (entry, *_) = await CopiesReader(self._context).read(
            metadata, entry_id, entry_id, bytes_max=1
        )
        try:
            return time_or_none(parse_metadata(entry.data).publish_time)
        except MalformedEntry:
            return None

    async def _of_file(self, record: OffloadRecord, position: Position) -> int | None:
        try:
            file = await self._cold.open(file_ref(record))
            number = file.group_of(position)
            if number == len(file.groups) or position < file.groups[number].first:
                raise ColdFileCorrupt(f"{record.path} has no entry {position}")
            key = (record.path, number)
            times = self._kept.get(key)
            if times is None:
                times = self._kept[key] = await file.publish_times(number)
                if len(self._kept) > TIMES_KEPT_MAX:
                    self._kept.popitem(last=False)
        except (ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable) as error:
            self.troubles.append(str(error))
            return None
        return times[position.entry_id - file.groups[number].first.entry_id]
