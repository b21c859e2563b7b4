"""Whether every ledger has all its copies: the gate of rollouts and drains.

The answer is `healthy` only if the list of under-replicated ledgers is empty *and* the last audit
saw the current set of bookies. The answer therefore turns unhealthy as soon as a bookie leaves,
before autorecovery lists any ledger. An unreadable record, of a ledger or in the list, also makes
it unhealthy: the copies that its ledger lacks are unknown.
"""

from typing import Final

from magnetar.autorecovery.members import Members
from magnetar.autorecovery.records import (
    AUDIT_STATE_KEY,
    AUDITOR_KEY,
    RECORDS_PREFIX,
    AuditState,
    RecordState,
    decode_audit,
    readable,
)
from magnetar.bookie.registration import BOOKIES_PREFIX, KNOWN_PREFIX
from magnetar.bookie.registration import decode as decode_registration
from magnetar.core.errors import MetadataError
from magnetar.documents.bookies import LedgerHealth as LedgerHealth
from magnetar.documents.bookies import LedgerTrouble, LivingBookie
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.metadata import decode as decode_ledger
from magnetar.metadata.store import MetadataStore

LEDGERS_NAMED_MAX: Final = 100
KEYS_NAMED_MAX: Final = 10


async def ledger_health(store: MetadataStore, bookies: BookieSet) -> LedgerHealth:
    """Returns the health of all ledgers, with at most LEDGERS_NAMED_MAX ledgers named."""
    living = bookies.living()
    members = Members({info.identity: info for info in living})
    state = await store.get(AUDIT_STATE_KEY)
    audit = AuditState() if state is None else decode_audit(state.value)
    is_current = audit.digest == members.digest
    has_auditor = await store.get(AUDITOR_KEY) is not None
    counts = dict.fromkeys(RecordState, 0)
    named: list[LedgerTrouble] = []
    for page in await store.children(RECORDS_PREFIX):
        for stored in await store.list(f"{RECORDS_PREFIX}{page}/"):
            record = readable(stored.key, stored.value)
            if record is None:
                counts[RecordState.WAITING] += 1  # the next audit rewrites the record
                continue
            counts[record.state] += 1
            if len(named) < LEDGERS_NAMED_MAX:
                why = record.detail or "; ".join(record.reasons)
                named.append(LedgerTrouble(record.ledger_id, record.state, why))
    lost = counts[RecordState.LOST]
    lacking = sum(counts.values()) - lost
    incarnations: dict[str, int] = {}
    for disks_record in await store.list(KNOWN_PREFIX):
        name = disks_record.key.removeprefix(KNOWN_PREFIX).rpartition("/")[0]
        incarnations[name] = incarnations.get(name, 0) + 1
    disks = await _disks(store)
    unreadable = await _unreadable(store, audit)
    reason = _reason(lacking, lost, is_current=is_current, has_auditor=has_auditor)
    if unreadable and not reason:
        reason = (
            f"the records of {unreadable} ledgers cannot be read, so it is not known whether these "
            f"ledgers lack copies: {', '.join(audit.unreadable_keys[:KEYS_NAMED_MAX])}"
        )
    return LedgerHealth(
        healthy=not reason,
        reason=reason,
        under_replicated=lacking,
        lost=lost,
        ledgers=tuple(named),
        audited_ms=audit.audited_ms,
        audit_is_current=is_current,
        audited_by_somebody=has_auditor,
        bookies=tuple(
            LivingBookie(
                info.identity.bookie_id,
                info.identity.incarnation,
                info.writable,
                info.draining,
                max(0, incarnations.get(info.identity.bookie_id, 1) - 1),
                *disks.get(info.identity.bookie_id, (0, 0)),
            )
            for info in living
        ),
        unreadable=unreadable,
    )


async def _unreadable(store: MetadataStore, audit: AuditState) -> int:
    """Counts the ledger records that were unreadable in the audit and still are."""
    repaired = 0
    for key in audit.unreadable_keys:
        record = await store.get(key)
        try:
            repaired += record is None or bool(decode_ledger(key, record.value))
        except MetadataError:
            continue
    return audit.unreadable - repaired


async def _disks(store: MetadataStore) -> dict[str, tuple[int, int]]:
    """Returns the disks' total and free bytes by bookie id; omits unreadable registrations."""
    disks = {}
    for record in await store.list(BOOKIES_PREFIX):
        try:
            registration = decode_registration(record.key, record.value)
        except MetadataError:
            continue
        disks[registration.bookie_id] = (
            registration.disk_bytes_total,
            registration.disk_bytes_free,
        )
    return disks


def _reason(lacking: int, lost: int, *, is_current: bool, has_auditor: bool) -> str:
    if lost:
        return f"{lost} ledgers have lost entries"
    if lacking:
        return f"{lacking} ledgers lack copies; autorecovery replicates them"
    if not has_auditor:
        return "no process runs autorecovery, so it is not known whether ledgers lack copies"
    if not is_current:
        return "the set of bookies has changed and has not been audited yet"
    return ""
