"""Looks at every ledger's record and lists those that lack copies. One at a time in the cluster.

The auditor is whoever holds a key under its lease; every write carries the check of that key, so
one that was paused and does not know it is refused. It looks when the set of bookies changed (one
is gone for longer than the delay, one came, one is to be emptied, one takes adds again), and in any
case once in `audit_interval_s`. What it last saw stands in the store, so that the next auditor
neither repeats nor forgets. It reads records only; `full_check` reads copies, at a bounded rate.
"""

import asyncio
from random import Random
from typing import Final

import msgspec

from magnetar.autorecovery.assess import Assessment, assess
from magnetar.autorecovery.full_check import FullCheck
from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.members import Members, MemberWatch
from magnetar.autorecovery.next_step import is_due, reconsidered
from magnetar.autorecovery.pages import LedgerPages, Page, read_page
from magnetar.autorecovery.records import (
    AUDIT_STATE_KEY,
    AUDITOR_KEY,
    RECORDS_PREFIX,
    UNREADABLE_KEYS_MAX,
    AuditState,
    UnderReplicated,
    decode_audit,
    encode,
    page_prefix,
    readable,
    record_key,
)
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Delete,
    LeaseLost,
    MetadataStore,
    Operation,
    Put,
    StoreClosed,
)

LEAD_RETRY_S: Final = 2.0
WRITES_AT_ONCE_MAX: Final = 64

log = get_logger("magnetar.autorecovery")


class Auditor:
    """See the module's text. `start`, then `stop`."""

    def __init__(
        self,
        store: MetadataStore,
        session: MetadataSession,
        members: MemberWatch,
        full_check: FullCheck,
        clock: Clock,
        settings: AutorecoverySettings,
        stats: AutorecoveryStats,
        token: str,
        rng: Random,
    ) -> None:
        self._store = store
        self._members = members
        self._full_check = full_check
        self._clock = clock
        self._settings = settings
        self._stats = stats
        self._rng = rng
        self._lock = LeaseLock(store, session, AUDITOR_KEY, token)
        self._session = session
        self._pages = LedgerPages(store)
        self._state = AuditState()
        self._tasks = TaskSet("autorecovery-auditor")

    def start(self) -> None:
        self._tasks.start(self._run(), "run")

    async def stop(self) -> None:
        """Gives the office up where it can; else it goes with the lease."""
        await self._tasks.stop()
        await self._full_check.stop()
        self._stats.auditor = False
        if self._lock.held:
            try:
                async with asyncio.timeout(LEAD_RETRY_S):
                    await self._lock.release()
            except (MetadataError, TimeoutError):
                log.info("the auditor's key is left to expire")

    async def _run(self) -> None:
        while True:
            try:
                if self._session.valid and await self._lock.take():
                    log.info("auditor of the cluster")
                    self._stats.auditor = True
                    await self._lead()
            except StoreClosed:
                return
            except (LockLost, LeaseLost):
                log.info("no longer the auditor")
            except (MetadataError, TimeoutError) as error:
                self._stats.failed(error)
                log.info("audit interrupted", error=str(error))
            self._stats.auditor = False
            self._members.look()
            await asyncio.sleep(LEAD_RETRY_S * (1 + self._rng.random()))

    async def _lead(self) -> None:
        """Acts as the auditor until that is lost."""
        record = await self._store.get(AUDIT_STATE_KEY)
        self._state = AuditState() if record is None else decode_audit(record.value)
        try:
            while True:
                self._lock.check()
                members = self._members.look()
                if not members.strangers_are_away and members.living:
                    await self._look(members)
                await asyncio.sleep(self._settings.look_interval_s)
        finally:
            self._full_check.interrupt()

    async def _look(self, members: Members) -> None:
        now_ms = self._clock.now_ms()
        state = self._state
        digest = members.digest
        changed = digest != state.digest
        if changed or is_due(state.audited_ms, now_ms, self._settings.audit_interval_s):
            unreadable = await self.audit(members, bookies_changed=changed)
            keys = tuple(unreadable[:UNREADABLE_KEYS_MAX])
            await self._save(AuditState(digest, now_ms, len(unreadable), keys))
        self._full_check.look(self._lock)

    async def _save(self, state: AuditState) -> None:
        self._state = state
        await self._write([Put(AUDIT_STATE_KEY, msgspec.json.encode(state))])

    async def audit(self, members: Members, *, bookies_changed: bool) -> list[str]:
        """Goes through all ledgers once and brings the list in line with what it finds.

        Returns the keys of the ledger records that cannot be read.
        """
        seen: set[int] = set()
        unreadable: list[str] = []
        async for page in self._pages.walk():
            seen.add(page.number)
            unreadable += page.unreadable
            await self._audit_page(page, members, bookies_changed=bookies_changed)
        for name in await self._store.children(RECORDS_PREFIX):
            number = int(name) if name.isdecimal() else -1
            if number >= 0 and number not in seen:
                page = await read_page(self._store, number)
                await self._audit_page(page, members, bookies_changed=bookies_changed)
        self._stats.audits += 1
        return unreadable

    async def _audit_page(self, page: Page, members: Members, *, bookies_changed: bool) -> None:
        listed = {one.key: one for one in await self._store.list(page_prefix(page.number))}
        writes: list[Operation] = []
        for ledger in page.ledgers:
            key = record_key(ledger.metadata.ledger_id)
            stored = listed.pop(key, None)
            found = assess(ledger.metadata, members)
            record = None if stored is None else readable(key, stored.value)
            if stored is None or record is None:
                if stored is not None or found.closed_parts or found.needs_end:
                    new = self._new_record(ledger.metadata.ledger_id, found)
                    if stored is not None:
                        # What it said is not known: perhaps that copies are to be read.
                        reasons = new.reasons or ("its entry in this list could not be read",)
                        new = msgspec.structs.replace(new, reasons=reasons, prove=True)
                    writes.append(Put(key, encode(new), stored.revision if stored else ABSENT))
            elif found.healthy and not record.needs_reading:
                writes.append(Delete(key, stored.revision))
            else:
                again = self._again(record, found, members, bookies_changed=bookies_changed)
                if again != record:
                    writes.append(Put(key, encode(again), stored.revision))
        self._stats.ledgers_audited += len(page.ledgers)
        known = {record_key_of(key) for key in page.unreadable}
        # Of these the ledger is deleted.
        writes += [Delete(key, one.revision) for key, one in listed.items() if key not in known]
        for at in range(0, len(writes), WRITES_AT_ONCE_MAX):
            await self._write(writes[at : at + WRITES_AT_ONCE_MAX])

    def _new_record(self, ledger_id: int, found: Assessment) -> UnderReplicated:
        now_ms = self._clock.now_ms()
        grace_ms = int(self._settings.open_ledger_grace_s * 1000) if found.needs_end else 0
        return UnderReplicated(
            ledger_id,
            found.reasons,
            now_ms,
            not_before_ms=0 if found.closed_parts else now_ms + grace_ms,
            grace_until_ms=now_ms + grace_ms,
        )

    def _again(
        self,
        record: UnderReplicated,
        found: Assessment,
        members: Members,
        *,
        bookies_changed: bool,
    ) -> UnderReplicated:
        """A record that is there already, as it should stand now."""
        again = reconsidered(record, members.living, bookies_changed=bookies_changed)
        if found.reasons and found.reasons != again.reasons:
            # Its writer has its time for what it has just lost, however old the record is.
            grace_ms = int(self._settings.open_ledger_grace_s * 1000) if found.needs_end else 0
            until = self._clock.now_ms() + grace_ms
            again = msgspec.structs.replace(again, reasons=found.reasons, grace_until_ms=until)
        return again

    async def _write(self, writes: list[Operation]) -> None:
        """All of them; one by one where one of them was overtaken by a worker."""
        try:
            await self._store.transact([self._lock.check(), *writes])
        except BadRevision as error:
            if error.key == self._lock.key:
                raise LockLost("another is the auditor") from error
            if len(writes) > 1:
                for write in writes:
                    await self._write([write])


def record_key_of(ledger_record_key: str) -> str:
    """Of the ledger whose own record stands under that key."""
    return record_key(int(ledger_record_key.rpartition("/")[2]))
