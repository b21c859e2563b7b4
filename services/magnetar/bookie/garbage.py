"""Ledgers that are on this bookie's disk and no longer in the metadata store: finds and deletes.

A ledger is deleted on its bookies first and then forgotten; a bookie that was away meanwhile still
has it when it comes back. So a bookie compares, from time to time, what it has with what the
metadata store knows (BookKeeper's ScanAndCompareGarbageCollector).

Why what is absent there was deleted, and is not new: a ledger's id and record are written by one
transaction before its first add. `/ledger-id` is read first, then the bookie's ledgers are listed,
then the records: whatever of the bookie's has an id at or below that number had its record before
the last step. Records go for good, and ids are never given out again.

Nothing is ever deleted because something is missing by accident. A comparison stops without a word
of deletion where the store cannot be read, has no record of this very bookie, has no ledgers at all
although ids were given out, or has gone back (its `/ledger-id` is lower than before). A ledger goes
when two comparisons in a row found it absent and a look at its own key says the same.

A ledger that is in the metadata store may name other bookies only: autorecovery copied it elsewhere
while this bookie was away. Such former copies are left to a `FormerCopies` collector of the layers
above, which can read the records and prove the other copies.
"""

from collections.abc import Callable, Collection
from typing import Final, Protocol

from magnetar.bookie.api import KeptBookie
from magnetar.bookie.registration import known_key
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.store import MetadataStore

log = get_logger("magnetar.bookie.garbage")

# As the ledger layer above writes them.
LEDGER_ID_KEY: Final = "/ledger-id"
LEDGERS_PREFIX: Final = "/ledgers/"


async def check_ids(bookie: KeptBookie, store: MetadataStore) -> None:
    """Raises MetadataError where ledgers are here whose ids have not been given out yet.

    They will be, to others: the entries of two ledgers would be taken for those of one. It takes a
    metadata store that was restored from a copy older than these ledgers, so nothing is deleted
    and no entry is taken before somebody has decided.
    """
    record = await store.get(LEDGER_ID_KEY)
    if record is None:
        return  # a store without any ledger is not this cluster's: `cluster.identity`
    last_id = _number(LEDGER_ID_KEY, record.value)
    # A ledger whose copy was dropped keeps its fence, which would refuse another ledger's writer.
    held = {*await bookie.list_ledgers(), *await bookie.list_emptied()}
    above = sorted(ledger_id for ledger_id in held if ledger_id > last_id)
    if above:
        raise MetadataError(
            f"the metadata store has given out ledger ids up to {last_id}, and {len(above)} "
            f"ledgers from {above[0]} to {above[-1]} are on this bookie: it was restored from an "
            f"older copy. Set {LEDGER_ID_KEY} to the highest id of all bookies before they are "
            "started; what only the lost records named is not readable any more, and is deleted"
        )


class FormerCopies(Protocol):
    """Collects copies that no record names any more (`autorecovery.former_copies`)."""

    async def collect(self, ledger_ids: Collection[int]) -> list[int]:
        """Looks at ledgers that are here and have records; the ids of the copies deleted."""


class LedgerGarbage:
    """The comparison of one bookie with the metadata store."""

    def __init__(
        self, bookie: KeptBookie, store: MetadataStore, may_delete: Callable[[], bool]
    ) -> None:
        """`may_delete` is asked before each deletion: whether the bookie is in good standing."""
        self.former: FormerCopies | None = None
        self._bookie = bookie
        self._store = store
        self._may_delete = may_delete
        self._suspects: set[int] = set()
        """What the last comparison found to be absent."""
        self._last_id = -1
        self._present: set[int] = set()
        """What the last comparison found here and in the store."""
        self.deleted = 0

    async def compare(self) -> list[int]:
        """Compares once; the ids of the ledgers that were deleted. Raises MetadataError."""
        suspects, self._suspects = self._suspects, set()
        self._present = set()
        absent = await self._absent()
        gone: list[int] = []
        for ledger_id in sorted(absent & suspects):
            if not self._may_delete():
                break
            if await self._store.get(f"{LEDGERS_PREFIX}{ledger_id:020d}") is not None:
                log.error("a ledger is listed as absent and is there", ledger_id=ledger_id)
                return gone
            await self._bookie.delete_ledger(ledger_id)
            gone.append(ledger_id)
        self._suspects = absent - set(gone)
        self.deleted += len(gone)
        if gone:
            log.info("deleted ledgers that are no more", count=len(gone), first=gone[0])
        return gone

    async def collect_former(self) -> list[int]:
        """Deletes former copies among what the last comparison found in the store."""
        present, self._present = self._present, set()
        if self.former is None or not present or not self._may_delete():
            return []
        gone = await self.former.collect(present)
        self.deleted += len(gone)
        return gone

    async def _absent(self) -> set[int]:
        """The ledgers here that the store, which must look sane, has no record of."""
        store = self._store
        record = await store.get(LEDGER_ID_KEY)
        last_id = _number(LEDGER_ID_KEY, record.value) if record is not None else -1
        if last_id < self._last_id:
            log.error("the metadata store has gone back", ledger_id=last_id, was=self._last_id)
            return set()
        self._last_id = last_id
        listed = await self._bookie.list_ledgers()
        held = {*listed, *await self._bookie.list_emptied()}
        here = {ledger_id for ledger_id in held if ledger_id <= last_id}
        if not here:
            return set()
        if await store.get(known_key(self._bookie.identity)) is None:
            log.error("the metadata store does not know this bookie: nothing is deleted")
            return set()
        there = {_number(LEDGERS_PREFIX, name) for name in await store.children(LEDGERS_PREFIX)}
        if not there:
            log.error("the metadata store has no ledgers at all: nothing is deleted")
            return set()
        self._present = there.intersection(listed)
        return here - there


def _number(key: str, text: str | bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise MetadataError(f"{key} holds no number: {text[:32]!r}") from None
