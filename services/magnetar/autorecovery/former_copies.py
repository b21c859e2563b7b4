"""Deletes copies on a bookie that no record names any more, once the others are proven.

Autorecovery copies a ledger elsewhere while its bookie is away or draining. If the bookie comes
back or its drain is cancelled, nothing needs its old copies, but the ledgers live, so the
comparison with the metadata store alone (`bookie.garbage`) never deletes them. BookKeeper collects
them as over-replicated ledgers.

A copy of a ledger is deleted here only if all of this holds:

- Two collections in a row read the ledger's record at the same revision. The record is CLOSED, so
  no writer, no recovery and no ensemble change can make this bookie a member again; and no ensemble
  names this bookie's id, whatever the incarnation.
- Every copy that the record asks for is read and compared on the other bookies. So a record of an
  older metadata backup, which names bookies that have dropped their copies since, deletes nothing.
- This bookie holds the ledger's lock of autorecovery, and under it the record is still at that
  revision, and the ledger is not on the list of under-replicated ledgers. A worker copies under
  that lock, from before the first entry until the record names the target, so no copy is on its way
  here.
- No add of the ledger is under way, and none is taken until the copy is gone
  (`KeptBookie.drop_copies`), however long that takes, also if the lock is lost meanwhile.

The ledger stays fenced on this bookie, and autorecovery may copy it here again at once. A record
that cannot be read keeps its copy. Bounds: PROVEN_PER_ROUND_MAX ledgers and ROUND_S_MAX seconds for
a round, LOCKED_AT_ONCE_MAX locks.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from magnetar.autorecovery.lease_lock import LeaseLock
from magnetar.autorecovery.ledger_check import LedgerChecker
from magnetar.autorecovery.pages import read_page
from magnetar.autorecovery.proving import Verdict
from magnetar.autorecovery.records import PAGE_LEDGERS, lock_key, record_key
from magnetar.bookie.api import BookieIdentity, KeptBookie
from magnetar.bookie.registration import known_key
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.ledger.metadata import LedgerMetadata, LedgerState, decode, ledger_key
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import LeaseLost, MetadataStore

PROVEN_PER_ROUND_MAX: Final = 4096
LOCKED_AT_ONCE_MAX: Final = 64
ROUND_S_MAX: Final = 600.0
"""A round begins no further proof after so many seconds."""
PROOF_TIMEOUT_S: Final = 3600.0
"""For one ledger; the rate of proofs is bounded."""
STORE_TIMEOUT_S: Final = 30.0

log = get_logger("magnetar.autorecovery")


class FormerCopies:
    """The former copies on one bookie, for that bookie's own process."""

    def __init__(
        self,
        bookie: KeptBookie,
        store: MetadataStore,
        session: MetadataSession,
        checker: LedgerChecker,
        clock: Clock,
        token: str,
    ) -> None:
        """`token` names this process in its locks, and no other process."""
        self._bookie = bookie
        self._store = store
        self._session = session
        self._checker = checker
        self._clock = clock
        self._token = token
        self._seen: dict[int, int] = {}
        """Ledgers that the last collection found to be former copies: their records' revisions."""
        self._next = 0
        """Where the next round begins: those before it that are not proven must not starve it."""

    async def collect(self, ledger_ids: Collection[int]) -> list[int]:
        """Looks at ledgers that are here once; the ids of the copies that were deleted.

        Raises MetadataError, BookieError and OSError.
        """
        seen, self._seen = self._seen, {}
        found = await self._found(ledger_ids)
        gone: list[int] = []
        again = sorted(
            (id_ for id_, revision in found.items() if seen.get(id_) == revision),
            key=lambda id_: (id_ < self._next, id_),
        )
        until = self._clock.monotonic() + ROUND_S_MAX
        ready: list[int] = []
        for ledger_id in again[:PROVEN_PER_ROUND_MAX]:
            if self._clock.monotonic() >= until or not self._session.valid:
                break
            self._next = ledger_id + 1
            if await self._proven_elsewhere(ledger_id, found[ledger_id]):
                ready.append(ledger_id)
            if len(ready) == LOCKED_AT_ONCE_MAX:
                gone += await self._delete(ready, found)
                ready = []
        gone += await self._delete(ready, found)
        for ledger_id in gone:
            del found[ledger_id]
        self._seen = found
        if gone:
            log.info("former copies deleted", count=len(gone), first=gone[0])
        return gone

    async def _found(self, ledger_ids: Collection[int]) -> dict[int, int]:
        """Those that name others only, with their records' revisions."""
        found: dict[int, int] = {}
        wanted = set(ledger_ids)
        for number in sorted({ledger_id // PAGE_LEDGERS for ledger_id in wanted}):
            async with asyncio.timeout(STORE_TIMEOUT_S):
                page = await read_page(self._store, number)
            for one in page.ledgers:
                ledger_id = one.metadata.ledger_id
                if ledger_id in wanted and is_former(one.metadata, self._bookie.identity):
                    found[ledger_id] = one.revision
        return found

    async def _former(self, ledger_id: int, revision: int) -> LedgerMetadata | None:
        """The ledger's own record, where it is at that revision and names others only."""
        key = ledger_key(ledger_id)
        async with asyncio.timeout(STORE_TIMEOUT_S):
            record = await self._store.get(key)
        if record is None or record.revision != revision:
            return None
        try:
            metadata = decode(key, record.value)
        except MetadataError:
            return None
        return metadata if is_former(metadata, self._bookie.identity) else None

    async def _is_listed(self, ledger_id: int) -> bool:
        """Whether the ledger is on the list of under-replicated ledgers, readable or not."""
        async with asyncio.timeout(STORE_TIMEOUT_S):
            return await self._store.get(record_key(ledger_id)) is not None

    async def _proven_elsewhere(self, ledger_id: int, revision: int) -> bool:
        """Whether every copy that the record asks for is on the bookies that it names."""
        metadata = await self._former(ledger_id, revision)
        if metadata is None or await self._is_listed(ledger_id):
            return False
        try:
            async with asyncio.timeout(PROOF_TIMEOUT_S):
                report = await self._checker.check(
                    metadata, not_counting={self._bookie.identity.bookie_id}
                )
        except TimeoutError:
            log.info("former copy not proven elsewhere in time", ledger=ledger_id)
            return False
        whole = report.entries == metadata.last_entry + 1
        return report.verdict == Verdict.HEALTHY and whole

    async def _delete(self, ledger_ids: Iterable[int], found: dict[int, int]) -> list[int]:
        """Deletes copies under their ledgers' locks; see the conditions above."""
        locks: list[LeaseLock] = []
        ready: list[tuple[int, LeaseLock]] = []
        try:
            for ledger_id in ledger_ids:
                lock = LeaseLock(self._store, self._session, lock_key(ledger_id), self._token)
                locks.append(lock)
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    taken = await lock.take()
                if not taken or await self._is_listed(ledger_id):
                    continue
                if await self._former(ledger_id, found[ledger_id]) is not None:
                    ready.append((ledger_id, lock))
            if not ready or not await self._is_known():
                return []
            # No await between this and the drop: see its contract.
            held = [ledger_id for ledger_id, lock in ready if lock.held]
            return await self._bookie.drop_copies(held)
        except LeaseLost:
            return []
        finally:
            for lock in locks:
                await lock.give_up()

    async def _is_known(self) -> bool:
        """Whether the store still knows this bookie's disks."""
        async with asyncio.timeout(STORE_TIMEOUT_S):
            return await self._store.get(known_key(self._bookie.identity)) is not None


def is_former(metadata: LedgerMetadata, identity: BookieIdentity) -> bool:
    """Whether a closed ledger names other bookies only, by their ids."""
    members = {one.bookie_id for ensemble in metadata.ensembles for one in ensemble.bookies}
    closed = metadata.state is LedgerState.CLOSED
    return closed and bool(members) and identity.bookie_id not in members
