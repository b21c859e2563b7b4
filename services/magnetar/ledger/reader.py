"""Reads a ledger's entries, bounded by what is known to be confirmed.

A reader never returns an entry above `last_entry`: in a closed ledger that is where it ends, in an
open one the last add known to be confirmed when it was opened. Its record is read once; where no
copy can be had the record is read again, for autorecovery may have put the copies elsewhere.
"""

import contextlib
from typing import Protocol

from magnetar.bookie.api import BookieError, NoSuchEntry, StoredEntry
from magnetar.core.errors import MetadataError
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.reading import CopiesReader
from magnetar.ledger.records import read_record


class ReadableLedger(Protocol):
    """What a managed ledger reads from: a reader, or the writer of the newest ledger."""

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[StoredEntry]: ...


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
        """Reads where the copies are now; keeps what is known if the store does not answer."""
        with contextlib.suppress(MetadataError):
            current, _ = await read_record(self._context, self.ledger_id)
            self.metadata = self.metadata.with_ensembles(current.ensembles)
