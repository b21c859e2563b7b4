"""Reads a ledger's entries, bounded by what is known to be confirmed.

A reader never returns an entry above `last_entry`: in a closed ledger that is where it ends, in an
open one the last add known to be confirmed when it was opened. What comes back is contiguous from
the first id asked for; a bookie that skips ids is not believed.
"""

import asyncio
from typing import Final, Protocol

from magnetar.bookie.api import Bookie, NoSuchEntry, StoredEntry
from magnetar.core.errors import PersistenceError
from magnetar.ledger.metadata import LedgerMetadata, LedgerState

READ_TIMEOUT_S: Final = 30.0


class ReadTimeout(PersistenceError):
    """A bookie did not answer a read in time."""


class ReadableLedger(Protocol):
    """What a managed ledger reads from: a reader, or the writer of the newest ledger."""

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[StoredEntry]: ...


async def read_contiguous(
    bookie: Bookie, ledger_id: int, first: int, last: int, *, bytes_max: int
) -> list[StoredEntry]:
    """At least entry `first`, then as many of its successors as fit, without a gap."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            entries = await bookie.read_entries(ledger_id, first, last, bytes_max=bytes_max)
    except TimeoutError:
        raise ReadTimeout(
            f"bookie {bookie.identity.bookie_id} did not return entry {ledger_id}:{first} "
            f"within {READ_TIMEOUT_S:g} s"
        ) from None
    if not entries or entries[0].entry_id != first:
        raise NoSuchEntry(f"no entry {first} in ledger {ledger_id}")
    if entries[-1].entry_id != first + len(entries) - 1:
        for index, entry in enumerate(entries):
            if entry.entry_id != first + index:
                return entries[:index]
    return entries


class LedgerReader:
    """One ledger, from its first entry to `last_entry`."""

    __slots__ = ("_bookie", "closed", "last_entry", "ledger_id", "length_bytes", "metadata")

    def __init__(self, metadata: LedgerMetadata, bookie: Bookie, last_entry: int) -> None:
        self.metadata = metadata
        self.ledger_id = metadata.ledger_id
        self.closed = metadata.state is LedgerState.CLOSED
        self.last_entry = last_entry
        self.length_bytes = metadata.length_bytes
        self._bookie = bookie

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[StoredEntry]:
        """See `read_contiguous`; raises NoSuchEntry outside 0 to `last_entry`."""
        if not 0 <= first <= self.last_entry:
            raise NoSuchEntry(
                f"entry {first} of ledger {self.ledger_id} is outside 0..{self.last_entry}"
            )
        return await read_contiguous(
            self._bookie, self.ledger_id, first, min(last, self.last_entry), bytes_max=bytes_max
        )
