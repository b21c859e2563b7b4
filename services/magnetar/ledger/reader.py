"""Reads a ledger's entries, up to the last one known to be confirmed.

A reader never returns an entry above `last_entry`: the end of a closed ledger, or the last add
known to be confirmed when an open ledger was opened. The record is read once. If no copy can be
read, the record is read again, because autorecovery may have moved the copies.
"""

import contextlib

from magnetar.bookie.api import BookieError, NoSuchEntry, StoredEntry
from magnetar.core.errors import MetadataError
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.copies_reader import CopiesReader
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.records import read_record


class LedgerReader:
    """One ledger, from its first entry to `last_entry`."""

    __slots__ = (
        "_context",
        "_copies",
        "closed",
        "last_entry",
        "ledger_id",
        "length_bytes",
        "metadata",
    )

    def __init__(self, metadata: LedgerMetadata, last_entry: int, context: LedgerContext) -> None:
        self.metadata = metadata
        self.ledger_id = metadata.ledger_id
        self.closed = metadata.state is LedgerState.CLOSED
        self.last_entry = last_entry
        self.length_bytes = metadata.length_bytes
        self._context = context
        self._copies = CopiesReader(context)

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[StoredEntry]:
        """See `CopiesReader.read`; raises NoSuchEntry outside 0 to `last_entry`."""
        if not 0 <= first <= self.last_entry:
            raise NoSuchEntry(
                f"entry {first} of ledger {self.ledger_id} is outside 0..{self.last_entry}"
            )
        last = min(last, self.last_entry)
        asked = self.metadata
        try:
            return await self._copies.read(asked, first, last, bytes_max=bytes_max)
        except BookieError:
            await self._refresh()
            # Another read may have refreshed the record while this one failed.
            if self.metadata.ensembles == asked.ensembles:
                raise
        return await self._copies.read(self.metadata, first, last, bytes_max=bytes_max)

    async def _refresh(self) -> None:
        """Reads the current ensembles; keeps the known ones if the store does not answer."""
        with contextlib.suppress(MetadataError):
            current, _ = await read_record(self._context, self.ledger_id)
            self.metadata = self.metadata.with_ensembles(current.ensembles)
