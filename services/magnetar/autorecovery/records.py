"""The list of under-replicated ledgers in the metadata store.

`/underreplicated/{page}/{ledger}` holds one record for every ledger that lacks copies. A page
covers the ids of PAGE_LEDGERS ledgers, so that a list of a million is read in small pieces. The
auditor adds records; a worker that holds the ledger's lock changes and deletes them.

A record is WAITING for an attempt, PARKED after too many attempts (or if no bookie can replace the
lost one) until the set of bookies changes, or LOST: it names entries of which no bookie has a copy.
No ledger is retried forever, and no lost ledger is deleted.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from magnetar.bookie.api import BookieIdentity
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.records import UNDECODABLE, RecordType

RECORDS_PREFIX: Final = "/underreplicated/"
LOCKS_PREFIX: Final = "/underreplicated-locks/"
AUTORECOVERY_PREFIX: Final = "/autorecovery/"
AUDITOR_KEY: Final = f"{AUTORECOVERY_PREFIX}auditor"
AUDIT_STATE_KEY: Final = f"{AUTORECOVERY_PREFIX}audited"
CHECK_STATE_KEY: Final = f"{AUTORECOVERY_PREFIX}checked"
PAGE_LEDGERS: Final = 1000
LOST_RANGES_MAX: Final = 100
UNREADABLE_KEYS_MAX: Final = 100

log = get_logger("magnetar.autorecovery")


class RecordState(StrEnum):
    """The states of an under-replicated ledger."""

    WAITING = "waiting"
    PARKED = "parked"
    LOST = "lost"


class Answer(msgspec.Struct, frozen=True, rename={"text": "said"}):
    """One bookie's answer about an entry."""

    bookie: BookieIdentity
    text: str
    """A text of `answers`. Records and reports name the field `said`."""


class LostEntries(msgspec.Struct, frozen=True):
    """Entries `first` to `last` that no bookie has, and the answers of their bookies."""

    first: int
    last: int
    answers: tuple[Answer, ...]


class UnderReplicated(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ledger that lacks copies."""

    ledger_id: int
    reasons: tuple[str, ...]
    since_ms: int
    state: RecordState = RecordState.WAITING
    attempts: int = 0
    not_before_ms: int = 0
    grace_until_ms: int = 0
    """Until then the ledger's writer may restore the copies itself."""
    prove: bool = False
    """Whether copies may be wrong although the ledger's record is right: they must be read."""
    detail: str = ""
    """The result of the last attempt."""
    lost: tuple[LostEntries, ...] = ()

    @property
    def needs_reading(self) -> bool:
        """Whether the ledger's own record cannot show that the ledger is healthy."""
        return self.prove or self.state is RecordState.LOST


class AuditState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The set of bookies and the time of the last complete audit."""

    digest: str = ""
    audited_ms: int = 0
    unreadable: int = 0
    """The number of unreadable ledger records."""
    unreadable_keys: tuple[str, ...] = ()
    """The first UNREADABLE_KEYS_MAX of their keys."""


class CheckState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of the check of all copies."""

    begun_ms: int = 0
    next_page: int = -1
    """The next page to check; -1: the check is complete."""


decode = RecordType(UnderReplicated, "under-replicated ledger").decode


def page_prefix(page: int) -> str:
    """Returns the prefix of the records of one page."""
    return f"{RECORDS_PREFIX}{page:017d}/"


def record_key(ledger_id: int) -> str:
    """Returns the key of one ledger's record."""
    return f"{page_prefix(ledger_id // PAGE_LEDGERS)}{ledger_id:020d}"


def lock_key(ledger_id: int) -> str:
    """Returns the key of the lock that a worker holds while it restores the ledger."""
    return f"{LOCKS_PREFIX}{ledger_id:020d}"


def readable(key: str, value: bytes) -> UnderReplicated | None:
    """Returns the record; logs a damaged one and returns None."""
    try:
        return decode(key, value)
    except MetadataError as error:
        log.error("damaged record of an under-replicated ledger", key=key, error=str(error))
        return None


def decode_audit(value: bytes) -> AuditState:
    """Returns the state; a damaged one counts as never audited."""
    try:
        return msgspec.json.decode(value, type=AuditState)
    except UNDECODABLE:
        return AuditState()


def decode_check(value: bytes) -> CheckState:
    """Returns the state; a damaged one counts as never checked."""
    try:
        return msgspec.json.decode(value, type=CheckState)
    except UNDECODABLE:
        return CheckState()


def merge_lost(entries: Sequence[tuple[int, tuple[Answer, ...]]]) -> tuple[LostEntries, ...]:
    """Merges ascending entries with equal answers into ranges, at most LOST_RANGES_MAX."""
    merged: list[LostEntries] = []
    for entry_id, answers in entries:
        if merged and merged[-1].last == entry_id - 1 and merged[-1].answers == answers:
            merged[-1] = LostEntries(merged[-1].first, entry_id, answers)
        elif len(merged) == LOST_RANGES_MAX:
            break
        else:
            merged.append(LostEntries(entry_id, entry_id, answers))
    return tuple(merged)


def is_due(last_ms: int, now_ms: int, interval_s: float) -> bool:
    """Whether periodic work, last done at `last_ms`, is due.

    A time in the future came from a wrong clock, so the work is due.
    """
    return not 0 <= now_ms - last_ms < interval_s * 1000
