"""Deletes a bookie's copies that no ledger record names any more, once all others are proven.

Autorecovery copies a ledger elsewhere while its bookie is away or draining. If the bookie comes
back or its drain is cancelled, nothing needs its old copies, but the ledgers live, so the
comparison with the metadata store alone (`bookie.garbage`) never deletes them. BookKeeper collects
them as over-replicated ledgers.

A copy of a ledger is deleted here only if all of this holds:

- Two collections in a row read the ledger's record at the same revision. The record is CLOSED, so
  no writer, no recovery and no ensemble change can make this bookie a member again; and no ensemble
  names this bookie's id, under any incarnation.
- Every copy that the record requires is read and compared on the other bookies. So a record of an
  older metadata backup, which names bookies that have dropped their copies since, deletes nothing.
- This bookie holds the ledger's lock of autorecovery, and under it the record is still at that
  revision, and the ledger is not on the list of under-replicated ledgers. A worker copies under
  that lock, from before the first entry until the record names the target, so no copy is on its way
  here.
- No add of the ledger is under way, and the bookie accepts none until it has deleted the copy
  (`KeptBookie.drop_copies`), even if the lock is lost meanwhile.

The ledger stays fenced on this bookie, and autorecovery may copy it here again at once. A record
that cannot be read keeps its copy. Bounds: PROVEN_PER_ROUND_MAX ledgers and ROUND_S_MAX seconds for
a round, LOCKED_AT_ONCE_MAX locks.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from magnetar.autorecovery.check.ledger_check import LedgerChecker
from magnetar.autorecovery.check.prover import Verdict
from magnetar.autorecovery.lease_lock import LeaseLock
from magnetar.autorecovery.pages import read_page
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
"""A round starts no further proof after this time."""
PROOF_TIMEOUT_S: Final = 3600.0
"""Deadline of the proof of one ledger; its rate is bounded, so a large ledger takes long."""
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
        """The former copies at the last collection: their records' revisions by ledger id."""
        self._next = 0
        """The first ledger of the next round, so that unproven ledgers below it do not starve
        it."""

    async def collect(self, ledger_ids: Collection[int]) -> list[int]:
        """Runs one round over the bookie's ledgers; returns the ids of the copies it deleted.

        Raises MetadataError, BookieError and OSError.
        """
        seen, self._seen = self._seen, {}
        former = await self._former_copies(ledger_ids)
        deleted: list[int] = []
        unchanged = sorted(
            (id_ for id_, revision in former.items() if seen.get(id_) == revision),
            key=lambda id_: (id_ < self._next, id_),
        )
        until = self._clock.monotonic() + ROUND_S_MAX
        ready: list[int] = []
        for ledger_id in unchanged[:PROVEN_PER_ROUND_MAX]:
            if self._clock.monotonic() >= until or not self._session.valid:
                break
            self._next = ledger_id + 1
            if await self._proven_elsewhere(ledger_id, former[ledger_id]):
                ready.append(ledger_id)
            if len(ready) == LOCKED_AT_ONCE_MAX:
                deleted += await self._delete(ready, former)
                ready = []
        deleted += await self._delete(ready, former)
        for ledger_id in deleted:
            del former[ledger_id]
        self._seen = former
        if deleted:
            log.info("former copies deleted", count=len(deleted), first=deleted[0])
        return deleted

    async def _former_copies(self, ledger_ids: Collection[int]) -> dict[int, int]:
        """Returns the ledgers that name only other bookies, with their records' revisions."""
        former: dict[int, int] = {}
        wanted = set(ledger_ids)
        for number in sorted({ledger_id // PAGE_LEDGERS for ledger_id in wanted}):
            async with asyncio.timeout(STORE_TIMEOUT_S):
                page = await read_page(self._store, number)
            for ledger in page.ledgers:
                ledger_id = ledger.metadata.ledger_id
                if ledger_id in wanted and is_former(ledger.metadata, self._bookie.identity):
                    former[ledger_id] = ledger.revision
        return former

    async def _metadata_at(self, ledger_id: int, revision: int) -> LedgerMetadata | None:
        """Returns the ledger's metadata if it is at that revision and names only other bookies."""
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
        """Whether the bookies that the record names prove all copies that it requires."""
        metadata = await self._metadata_at(ledger_id, revision)
        if metadata is None or await self._is_listed(ledger_id):
            return False
        try:
            async with asyncio.timeout(PROOF_TIMEOUT_S):
                report = await self._checker.check(metadata)
        except TimeoutError:
            log.info("former copy kept: the proof of the others took too long", ledger=ledger_id)
            return False
        complete = report.entries == metadata.last_entry + 1
        return report.verdict == Verdict.HEALTHY and complete

    async def _delete(self, ledger_ids: Iterable[int], former: dict[int, int]) -> list[int]:
        """Deletes copies under their ledgers' locks, if the conditions above still hold."""
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
                if await self._metadata_at(ledger_id, former[ledger_id]) is not None:
                    ready.append((ledger_id, lock))
            if not ready or not await self._is_known():
                return []
            # No await between these two calls, as the contract of `drop_copies` requires.
            held = [ledger_id for ledger_id, lock in ready if lock.held]
            return await self._bookie.drop_copies(held)
        except LeaseLost:
            return []
        finally:
            for lock in locks:
                await lock.give_up()

    async def _is_known(self) -> bool:
        """Whether the store still has the record of this bookie's disks."""
        async with asyncio.timeout(STORE_TIMEOUT_S):
            return await self._store.get(known_key(self._bookie.identity)) is not None


def is_former(metadata: LedgerMetadata, identity: BookieIdentity) -> bool:
    """Whether the ledger is closed and names only other bookies, by their ids."""
    members = {member.bookie_id for ensemble in metadata.ensembles for member in ensemble.bookies}
    closed = metadata.state is LedgerState.CLOSED
    return closed and bool(members) and identity.bookie_id not in members
