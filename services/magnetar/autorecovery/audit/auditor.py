"""Audits every ledger's record and lists the ledgers that lack copies. One auditor per cluster.

The auditor holds a key under its lease; every write checks that key, so the store refuses the
writes of a former auditor. It audits when the set of bookies changed (a bookie is gone for longer
than the delay, was added, is to be drained, or is writable again), and at least every
`audit_interval_s`. The store has the result of the last audit, so the next auditor neither repeats
nor omits one. An audit reads records only; `full_check` reads copies, at a bounded rate.
"""

import asyncio
from random import Random
from typing import Final

import msgspec

from magnetar.autorecovery.audit.full_check import FullCheck
from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.members import Members, MemberWatch
from magnetar.autorecovery.pages import LedgerPages, Page, read_page
from magnetar.autorecovery.records import (
    AUDIT_STATE_KEY,
    AUDITOR_KEY,
    RECORDS_PREFIX,
    UNREADABLE_KEYS_MAX,
    AuditState,
    UnderReplicated,
    decode_audit,
    is_due,
    page_prefix,
    readable,
    record_key,
)
from magnetar.autorecovery.repair.assessment import Assessment, assess
from magnetar.autorecovery.repair.next_step import requeued
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.records import encode
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
    """A candidate for the auditor of the cluster. `start`, then `stop`."""

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
        """Starts to compete for the auditor's key, and to audit while holding it."""
        self._tasks.start(self._run(), "run")

    async def stop(self) -> None:
        """Releases the auditor's key if possible; otherwise it expires with the lease."""
        await self._tasks.stop()
        await self._full_check.stop()
        self._stats.auditor = False
        if self._lock.held:
            try:
                async with asyncio.timeout(LEAD_RETRY_S):
                    await self._lock.release()
            except (MetadataError, TimeoutError):
                log.info("auditor key not released, it expires with the lease")

    async def _run(self) -> None:
        while True:
            try:
                if self._session.valid and await self._lock.take():
                    log.info("this node is the auditor")
                    self._stats.auditor = True
                    await self._lead()
            except StoreClosed:
                return
            except (LockLost, LeaseLost):
                log.info("this node is no longer the auditor")
            except (MetadataError, TimeoutError) as error:
                self._stats.failed(error)
                log.info("audit interrupted, will retry", error=str(error))
            self._stats.auditor = False
            self._members.observe()
            await asyncio.sleep(LEAD_RETRY_S * (1 + self._rng.random()))

    async def _lead(self) -> None:
        """Acts as the auditor until the lock is lost."""
        record = await self._store.get(AUDIT_STATE_KEY)
        self._state = AuditState() if record is None else decode_audit(record.value)
        try:
            while True:
                self._lock.check()
                members = self._members.observe()
                if not members.unseen_are_away and members.living:
                    await self._audit_if_due(members)
                await asyncio.sleep(self._settings.observe_interval_s)
        finally:
            self._full_check.cancel()

    async def _audit_if_due(self, members: Members) -> None:
        now_ms = self._clock.now_ms()
        state = self._state
        digest = members.digest
        changed = digest != state.digest
        if changed or is_due(state.audited_ms, now_ms, self._settings.audit_interval_s):
            unreadable = await self.audit(members, bookies_changed=changed)
            keys = tuple(unreadable[:UNREADABLE_KEYS_MAX])
            await self._save(AuditState(digest, now_ms, len(unreadable), keys))
        self._full_check.start_if_due(self._lock)

    async def _save(self, state: AuditState) -> None:
        self._state = state
        await self._write([Put(AUDIT_STATE_KEY, msgspec.json.encode(state))])

    async def audit(self, members: Members, *, bookies_changed: bool) -> list[str]:
        """Audits all ledgers once and updates the list.

        Returns the keys of the unreadable ledger records.
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
        listed = {record.key: record for record in await self._store.list(page_prefix(page.number))}
        writes: list[Operation] = []
        for ledger in page.ledgers:
            key = record_key(ledger.metadata.ledger_id)
            stored = listed.pop(key, None)
            assessment = assess(ledger.metadata, members)
            record = None if stored is None else readable(key, stored.value)
            if stored is None or record is None:
                if stored is not None or assessment.closed_parts or assessment.needs_end:
                    new = self._new_record(ledger.metadata.ledger_id, assessment)
                    if stored is not None:
                        # The damaged record may have had `prove` set, so the copies must be read.
                        reasons = new.reasons or ("its entry in this list could not be read",)
                        new = msgspec.structs.replace(new, reasons=reasons, prove=True)
                    writes.append(Put(key, encode(new), stored.revision if stored else ABSENT))
            elif assessment.healthy and not record.needs_reading:
                writes.append(Delete(key, stored.revision))
            else:
                updated = self._updated(
                    record, assessment, members, bookies_changed=bookies_changed
                )
                if updated != record:
                    writes.append(Put(key, encode(updated), stored.revision))
        self._stats.ledgers_audited += len(page.ledgers)
        unreadable = {record_key_of(key) for key in page.unreadable}
        # The ledgers of the remaining records are deleted.
        writes += [
            Delete(key, stored.revision) for key, stored in listed.items() if key not in unreadable
        ]
        for at in range(0, len(writes), WRITES_AT_ONCE_MAX):
            await self._write(writes[at : at + WRITES_AT_ONCE_MAX])

    def _new_record(self, ledger_id: int, assessment: Assessment) -> UnderReplicated:
        now_ms = self._clock.now_ms()
        grace_ms = int(self._settings.open_ledger_grace_s * 1000) if assessment.needs_end else 0
        return UnderReplicated(
            ledger_id,
            assessment.reasons,
            now_ms,
            not_before_ms=0 if assessment.closed_parts else now_ms + grace_ms,
            grace_until_ms=now_ms + grace_ms,
        )

    def _updated(
        self,
        record: UnderReplicated,
        assessment: Assessment,
        members: Members,
        *,
        bookies_changed: bool,
    ) -> UnderReplicated:
        """Returns the updated form of a listed record."""
        updated = requeued(record, members.living, bookies_changed=bookies_changed)
        if assessment.reasons and assessment.reasons != updated.reasons:
            # The writer gets the grace time for a new loss, however old the record is.
            grace_ms = int(self._settings.open_ledger_grace_s * 1000) if assessment.needs_end else 0
            until = self._clock.now_ms() + grace_ms
            updated = msgspec.structs.replace(
                updated, reasons=assessment.reasons, grace_until_ms=until
            )
        return updated

    async def _write(self, writes: list[Operation]) -> None:
        """Writes in one transaction, or separately if a worker changed one of the records."""
        try:
            await self._store.transact([self._lock.check(), *writes])
        except BadRevision as error:
            if error.key == self._lock.key:
                raise LockLost("another node is the auditor") from error
            if len(writes) > 1:
                for write in writes:
                    await self._write([write])


def record_key_of(ledger_record_key: str) -> str:
    """Returns the list's key for a ledger, given the key of the ledger's own record."""
    return record_key(int(ledger_record_key.rpartition("/")[2]))
