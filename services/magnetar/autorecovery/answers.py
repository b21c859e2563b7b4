"""The texts of a bookie's answer about an entry, for records and reports of lost entries."""

from typing import Final

from magnetar.autorecovery.records import Answer
from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    EntryCorrupt,
    EntryUnknown,
    NoSuchEntry,
    NoSuchLedger,
)

UNAVAILABLE: Final = "unavailable"
NOT_REGISTERED: Final = "not registered"
NO_ENTRY: Final = "no such entry"
UNKNOWN: Final = "unknown"
CORRUPT: Final = "corrupt"

PASSING: Final = frozenset({UNAVAILABLE, NOT_REGISTERED})
"""Answers that may soon change: the bookie is not registered, cannot be reached, or is late."""


def answer_of(identity: BookieIdentity, error: BookieError) -> Answer:
    """Returns the answer that a failed request gives about the entry."""
    match error:
        case NoSuchEntry() | NoSuchLedger():
            return Answer(identity, NO_ENTRY)
        case EntryUnknown():
            return Answer(identity, UNKNOWN)
        case EntryCorrupt():
            return Answer(identity, CORRUPT)
        case _:
            return Answer(identity, UNAVAILABLE)


def bookie_text(identity: BookieIdentity) -> str:
    """Formats a bookie for people."""
    return f"bookie {identity.bookie_id} ({identity.incarnation})"
