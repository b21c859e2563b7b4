"""Whether every ledger has its copies, in one answer: what a rollout or a drain is gated by.

It is only `healthy` where the list of under-replicated ledgers is empty *and* the list is about the
bookies as they are now: an audit has seen this very set of them. A bookie that left a moment ago
makes the answer no at once, before autorecovery has listed anything. A record that cannot be read,
of a ledger or in the list, makes the answer no: nobody knows which copies its ledger lacks.
"""

from typing import Final

import msgspec

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
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.metadata import decode as decode_ledger
from magnetar.metadata.store import MetadataStore

LEDGERS_NAMED_MAX: Final = 100
KEYS_NAMED_MAX: Final = 10


class LedgerTrouble(msgspec.Struct, frozen=True, rename="camel"):
    """One ledger that lacks copies."""

    ledger_id: int
    state: str
    why: str


class LivingBookie(msgspec.Struct, frozen=True, rename="camel"):
    """A registered bookie."""

    bookie_id: str
    incarnation: str
    writable: bool
    draining: bool
    incarnations_before: int = 0
    """Of other disks that were once in use under this name."""
    disk_bytes_total: int = 0
    disk_bytes_free: int = 0


class LedgerHealth(msgspec.Struct, frozen=True, rename="camel"):
    """See the module's text."""

    healthy: bool
    reason: str
    """Why not; for people."""
    under_replicated: int
    """Listed and waiting or parked."""
    lost: int
    """With entries of which no copy is left."""
    ledgers: tuple[LedgerTrouble, ...]
    """The first hundred."""
    audited_ms: int
    audit_is_current: bool
    audited_by_somebody: bool
    bookies: tuple[LivingBookie, ...]
    unreadable: int = 0
    """Ledger records that cannot be read, as of the last audit, but for those mended since."""


async def ledger_health(store: MetadataStore, bookies: BookieSet) -> LedgerHealth:
    """As of now."""
    living = bookies.living()
    members = Members({one.identity: one for one in living})
    stored = await store.get(AUDIT_STATE_KEY)
    audit = AuditState() if stored is None else decode_audit(stored.value)
    is_current = audit.digest == members.digest
    somebody = await store.get(AUDITOR_KEY) is not None
    counts = dict.fromkeys(RecordState, 0)
    named: list[LedgerTrouble] = []
    for page in await store.children(RECORDS_PREFIX):
        for one in await store.list(f"{RECORDS_PREFIX}{page}/"):
            record = readable(one.key, one.value)
            if record is None:
                counts[RecordState.WAITING] += 1  # the next audit lists the ledger anew
                continue
            counts[record.state] += 1
            if len(named) < LEDGERS_NAMED_MAX:
                why = record.detail or "; ".join(record.reasons)
                named.append(LedgerTrouble(record.ledger_id, record.state, why))
    lost = counts[RecordState.LOST]
    lacking = sum(counts.values()) - lost
    known: dict[str, int] = {}
    for one in await store.list(KNOWN_PREFIX):
        name = one.key.removeprefix(KNOWN_PREFIX).rpartition("/")[0]
        known[name] = known.get(name, 0) + 1
    disks = await _disks(store)
    unreadable = await _unreadable(store, audit)
    reason = _reason(lacking, lost, is_current=is_current, somebody=somebody)
    if unreadable and not reason:
        reason = (
            f"the records of {unreadable} ledgers cannot be read: whether they lack copies is not "
            f"known; {', '.join(audit.unreadable_keys[:KEYS_NAMED_MAX])}"
        )
    return LedgerHealth(
        healthy=not reason,
        reason=reason,
        under_replicated=lacking,
        lost=lost,
        ledgers=tuple(named),
        audited_ms=audit.audited_ms,
        audit_is_current=is_current,
        audited_by_somebody=somebody,
        bookies=tuple(
            LivingBookie(
                one.identity.bookie_id,
                one.identity.incarnation,
                one.writable,
                one.draining,
                max(0, known.get(one.identity.bookie_id, 1) - 1),
                *disks.get(one.identity.bookie_id, (0, 0)),
            )
            for one in living
        ),
        unreadable=unreadable,
    )


async def _unreadable(store: MetadataStore, audit: AuditState) -> int:
    """How many ledger records cannot be read: those of the audit that were not mended since."""
    mended = 0
    for key in audit.unreadable_keys:
        record = await store.get(key)
        try:
            mended += record is None or bool(decode_ledger(key, record.value))
        except MetadataError:
            continue
    return audit.unreadable - mended


async def _disks(store: MetadataStore) -> dict[str, tuple[int, int]]:
    """Size and free bytes, by bookie, as their registrations say; unreadable ones are left out."""
    found = {}
    for record in await store.list(BOOKIES_PREFIX):
        try:
            one = decode_registration(record.key, record.value)
        except MetadataError:
            continue
        found[one.bookie_id] = (one.disk_bytes_total, one.disk_bytes_free)
    return found


def _reason(lacking: int, lost: int, *, is_current: bool, somebody: bool) -> str:
    if lost:
        return f"{lost} ledgers have lost entries"
    if lacking:
        return f"{lacking} ledgers lack copies; autorecovery makes them anew"
    if not somebody:
        return "nobody runs autorecovery: nobody knows whether ledgers lack copies"
    if not is_current:
        return "the set of bookies has changed; which ledgers lack copies is being found out"
    return ""
