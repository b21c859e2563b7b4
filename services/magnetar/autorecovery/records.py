"""What is under-replicated, as it stands in the metadata store for everyone to see.

`/underreplicated/{page}/{ledger}` holds one record for every ledger that lacks copies; a page is
the ids of PAGE_LEDGERS ledgers, so that a list of a million can be read in small pieces. The
auditor puts records there; a worker that holds the ledger's lock changes and removes them.

A record WAITS for an attempt, is PARKED after too many (or where no bookie can stand in) until the
set of bookies changes, or names what is LOST: entries of which no bookie that was asked has a copy.
Nothing is ever tried for ever, and nothing that is lost is deleted.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from magnetar.bookie.api import BookieIdentity
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger

RECORDS_PREFIX: Final = "/underreplicated/"
LOCKS_PREFIX: Final = "/underreplicated-locks/"
AUDITOR_KEY: Final = "/autorecovery/auditor"
AUDIT_STATE_KEY: Final = "/autorecovery/audited"
CHECK_STATE_KEY: Final = "/autorecovery/checked"
PAGE_LEDGERS: Final = 1000
LOST_RANGES_MAX: Final = 100
UNREADABLE_KEYS_MAX: Final = 100

log = get_logger("magnetar.autorecovery")


class RecordState(StrEnum):
    """See the module's text."""

    WAITING = "waiting"
    PARKED = "parked"
    LOST = "lost"


class Answer(msgspec.Struct, frozen=True):
    """What one bookie said of an entry."""

    bookie: BookieIdentity
    said: str


class LostEntries(msgspec.Struct, frozen=True):
    """Entries `first` to `last` that no bookie has, and what each that should have them said."""

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
    """Until then the ledger's writer may put it right itself."""
    prove: bool = False
    """Copies are wrong that the ledger's record takes for good: they must be read to be found."""
    detail: str = ""
    """What came of the last attempt."""
    lost: tuple[LostEntries, ...] = ()

    @property
    def needs_reading(self) -> bool:
        """Whether a look at the ledger's own record can't tell that nothing is wrong."""
        return self.prove or self.state is RecordState.LOST


class AuditState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the last finished audit saw: the bookies, and when."""

    digest: str = ""
    audited_ms: int = 0
    unreadable: int = 0
    """Ledger records that could not be read."""
    unreadable_keys: tuple[str, ...] = ()
    """UNREADABLE_KEYS_MAX of them at most."""


class CheckState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the check of all copies is."""

    begun_ms: int = 0
    next_page: int = -1
    """Where it goes on; -1: it is finished."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(UnderReplicated)


def page_prefix(page: int) -> str:
    """Of the records of one page."""
    return f"{RECORDS_PREFIX}{page:017d}/"


def record_key(ledger_id: int) -> str:
    """Of one ledger's record."""
    return f"{page_prefix(ledger_id // PAGE_LEDGERS)}{ledger_id:020d}"


def lock_key(ledger_id: int) -> str:
    """Of the lock that a worker holds while it restores the ledger."""
    return f"{LOCKS_PREFIX}{ledger_id:020d}"


def encode(record: UnderReplicated) -> bytes:
    """The record's value."""
    return _encoder.encode(record)


def decode(key: str, value: bytes) -> UnderReplicated:
    """Raises MetadataError naming the key where the value is no such record."""
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no under-replicated ledger: {error}") from error


def readable(key: str, value: bytes) -> UnderReplicated | None:
    """The record; None, and a line in the log, where it is none."""
    try:
        return decode(key, value)
    except MetadataError as error:
        log.error("record unreadable", key=key, error=str(error))
        return None


def decode_audit(value: bytes) -> AuditState:
    """As if nothing had ever been audited where the value is no such state."""
    try:
        return msgspec.json.decode(value, type=AuditState)
    except msgspec.MsgspecError:
        return AuditState()


def decode_check(value: bytes) -> CheckState:
    """As if nothing had ever been checked where the value is no such state."""
    try:
        return msgspec.json.decode(value, type=CheckState)
    except msgspec.MsgspecError:
        return CheckState()


def merge_lost(entries: Sequence[tuple[int, tuple[Answer, ...]]]) -> tuple[LostEntries, ...]:
    """Ranges of ascending entries with equal answers, LOST_RANGES_MAX at most."""
    merged: list[LostEntries] = []
    for entry_id, answers in entries:
        if merged and merged[-1].last == entry_id - 1 and merged[-1].answers == answers:
            merged[-1] = LostEntries(merged[-1].first, entry_id, answers)
        elif len(merged) == LOST_RANGES_MAX:
            break
        else:
            merged.append(LostEntries(entry_id, entry_id, answers))
    return tuple(merged)
