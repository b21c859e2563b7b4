"""Deletes ledgers that this bookie stores and the metadata store no longer has.

A ledger is deleted on its bookies first and from the metadata store then. A bookie that is down
meanwhile still has the ledger when it returns. Each bookie therefore compares its ledgers with the
metadata store periodically (BookKeeper's ScanAndCompareGarbageCollector).

A ledger without a record was deleted; it cannot be new. One transaction writes a ledger's id and
record before its first add. A comparison reads `/ledger-id`, then lists the bookie's ledgers, then
the records. Each of the bookie's ledgers with an id up to that number had its record before the
last step. Deleted records never return, and ids are never reused.

Damaged or partial metadata never deletes a ledger. A comparison deletes nothing if the store cannot
be read, has no record of this bookie, has no ledgers although ids were assigned, or has gone back
(its `/ledger-id` is lower than before). A ledger is deleted only after two consecutive comparisons
did not find its record and a read of its own key confirms that.

The record of a ledger may name other bookies only: autorecovery copied the ledger elsewhere while
this bookie was down. A `FormerCopies` collector of the layers above deletes such former copies,
since it can read the records and prove the other copies.
"""

from collections.abc import Callable, Collection
from typing import Final, Protocol

from magnetar.bookie.api import KeptBookie
from magnetar.bookie.registration import known_key
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.store import MetadataStore

log = get_logger("magnetar.bookie.upkeep.ledger_garbage")

# Keys of the ledger layer above, which a bookie must not import.
LEDGER_ID_KEY: Final = "/ledger-id"
LEDGERS_PREFIX: Final = "/ledgers/"


async def check_ids(bookie: KeptBookie, store: MetadataStore) -> None:
    """Raises MetadataError if this bookie stores ledgers whose ids are not assigned yet.

    The ids would be assigned to other ledgers, and the entries of two ledgers would be mixed. This
    happens if the metadata store was restored from a copy older than these ledgers. The bookie then
    neither deletes ledgers nor takes adds until an operator has decided.
    """
    record = await store.get(LEDGER_ID_KEY)
    if record is None:
        return  # `cluster.identity` detects a store of another cluster
    last_id = _number(LEDGER_ID_KEY, record.value)
    # An emptied ledger keeps its fence, which would refuse the writer of a new ledger.
    held = {*await bookie.list_ledgers(), *await bookie.list_emptied()}
    above = sorted(ledger_id for ledger_id in held if ledger_id > last_id)
    if above:
        raise MetadataError(
            f"the metadata store has given out ledger ids up to {last_id}, and {len(above)} "
            f"ledgers from {above[0]} to {above[-1]} are on this bookie: it was restored from an "
            f"older copy. Set {LEDGER_ID_KEY} to the highest id of all bookies before you start "
            "them; ledgers whose records are lost are not readable any more, and are deleted"
        )


class FormerCopies(Protocol):
    """Deletes copies that no record names any more (`autorecovery.repair.former_copies`)."""

    async def collect(self, ledger_ids: Collection[int]) -> list[int]:
        """Checks ledgers that this bookie stores and that have records; returns the deleted ids."""


class LedgerGarbage:
    """Compares one bookie's ledgers with the metadata store and deletes garbage."""

    def __init__(
        self, bookie: KeptBookie, store: MetadataStore, may_delete: Callable[[], bool]
    ) -> None:
        """`may_delete` is called before each deletion: whether the bookie's session is valid."""
        self.former: FormerCopies | None = None
        self._bookie = bookie
        self._store = store
        self._may_delete = may_delete
        self._suspects: set[int] = set()
        """Ledgers without a record in the last comparison."""
        self._last_id = -1
        self._present: set[int] = set()
        """Ledgers with a record in the last comparison."""
        self.deleted = 0

    async def compare(self) -> list[int]:
        """Compares once; returns the ids of the deleted ledgers. Raises MetadataError."""
        suspects, self._suspects = self._suspects, set()
        self._present = set()
        absent = await self._absent()
        deleted: list[int] = []
        for ledger_id in sorted(absent & suspects):
            if not self._may_delete():
                break
            if await self._store.get(f"{LEDGERS_PREFIX}{ledger_id:020d}") is not None:
                log.error(
                    "ledger has a record that the listing lacks, comparison stopped",
                    ledger_id=ledger_id,
                )
                return deleted
            await self._bookie.delete_ledger(ledger_id)
            deleted.append(ledger_id)
        self._suspects = absent
        self.deleted += len(deleted)
        if deleted:
            log.info("garbage ledgers deleted", count=len(deleted), first=deleted[0])
        return deleted

    async def collect_former(self) -> list[int]:
        """Deletes former copies among the ledgers that had a record in the last comparison."""
        present, self._present = self._present, set()
        if self.former is None or not present or not self._may_delete():
            return []
        deleted = await self.former.collect(present)
        self.deleted += len(deleted)
        return deleted

    async def _absent(self) -> set[int]:
        """Returns the stored ledgers that have no record; none if the store looks damaged."""
        store = self._store
        record = await store.get(LEDGER_ID_KEY)
        last_id = _number(LEDGER_ID_KEY, record.value) if record is not None else -1
        if last_id < self._last_id:
            log.error(
                "the metadata store has gone back: nothing is deleted",
                ledger_id=last_id,
                was=self._last_id,
            )
            return set()
        self._last_id = last_id
        listed = await self._bookie.list_ledgers()
        held = {*listed, *await self._bookie.list_emptied()}
        stored = {ledger_id for ledger_id in held if ledger_id <= last_id}
        if not stored:
            return set()
        if await store.get(known_key(self._bookie.identity)) is None:
            log.error("the metadata store has no record of this bookie: nothing is deleted")
            return set()
        recorded = {_number(LEDGERS_PREFIX, name) for name in await store.children(LEDGERS_PREFIX)}
        if not recorded:
            log.error("the metadata store has no ledgers at all: nothing is deleted")
            return set()
        self._present = recorded.intersection(listed)
        return stored - recorded


def _number(key: str, text: str | bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise MetadataError(f"{key} holds no number: {text[:32]!r}") from None
