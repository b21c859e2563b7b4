"""What becomes of a ledger's record after an attempt. Pure; nothing here can go on for ever.

Every attempt ends in exactly one `Outcome`. Done, healthy and deleted ledgers leave the list. A
failure that may pass is tried again after a growing pause, `attempts_max` times in all, then the
ledger is parked. Where nobody can stand in it is parked at once; what is lost is named. Parked and
lost records are taken up again only where `reconsidered`: by the auditor, when the set of bookies
has changed (and, with each periodic audit, parked ones, and lost ones of which a bookie that should
have them was not there and is now).
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import msgspec

from magnetar.autorecovery.asking import NOT_REGISTERED
from magnetar.autorecovery.records import LostEntries, RecordState, UnderReplicated
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.bookie.api import BookieIdentity

JITTER: float = 0.25


class OutcomeKind(StrEnum):
    """How an attempt ended."""

    HEALTHY = "healthy"
    REPAIRED = "repaired"
    DELETED = "deleted"
    WAITS = "waits"
    NO_TARGET = "no bookie can stand in"
    LOST = "lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, and what was done in it."""

    kind: OutcomeKind
    detail: str = ""
    lost: tuple[LostEntries, ...] = ()
    wait_ms: int = 0
    """For WAITS: until when, from now on."""
    entries: int = 0
    bytes: int = 0


def left_ms(until_ms: int, now_ms: int, settings: AutorecoverySettings) -> int:
    """How long to wait for a time of a record's; 0 or less: no longer.

    What is further ahead than any wait that is given was written by a clock that was wrong.
    """
    longest_s = max(settings.open_ledger_grace_s, settings.backoff_max_s * (1 + JITTER))
    left = until_ms - now_ms
    return left if left <= longest_s * 1000 else 0


def is_due(last_ms: int, now_ms: int, interval_s: float) -> bool:
    """Whether what was done last at that time is to be done again; a time that is yet to come was
    written by a clock that was wrong."""
    return not 0 <= now_ms - last_ms < interval_s * 1000


GONE_FROM_LIST = frozenset({OutcomeKind.HEALTHY, OutcomeKind.REPAIRED, OutcomeKind.DELETED})


def next_record(
    record: UnderReplicated,
    outcome: Outcome,
    now_ms: int,
    settings: AutorecoverySettings,
    rng: Random,
) -> UnderReplicated | None:
    """The record as it is to stand from now on; None: it is done with."""
    if outcome.kind in GONE_FROM_LIST:
        return None
    change = msgspec.structs.replace
    if outcome.kind is OutcomeKind.WAITS:
        return change(record, not_before_ms=now_ms + outcome.wait_ms, detail=outcome.detail)
    attempts = record.attempts + 1
    if outcome.kind is OutcomeKind.LOST:
        return change(
            record,
            state=RecordState.LOST,
            attempts=attempts,
            detail=outcome.detail,
            lost=outcome.lost,
        )
    if outcome.kind is OutcomeKind.NO_TARGET or attempts >= settings.attempts_max:
        return change(record, state=RecordState.PARKED, attempts=attempts, detail=outcome.detail)
    pause_s = settings.backoff_s(attempts) * (1 + JITTER * rng.random())
    return change(
        record,
        attempts=attempts,
        not_before_ms=now_ms + int(pause_s * 1000),
        detail=outcome.detail,
    )


def reconsidered(
    record: UnderReplicated, living: Container[BookieIdentity], *, bookies_changed: bool
) -> UnderReplicated:
    """A record that is looked at anew; the same where there is no reason to.

    What was lost is read anew on every bookie that should have it: one that has come back may.
    """
    lost = record.state is RecordState.LOST
    again = bookies_changed or not lost or _has_come_back(record.lost, living)
    if record.state is RecordState.WAITING or not again:
        return record
    return msgspec.structs.replace(
        record,
        state=RecordState.WAITING,
        attempts=0,
        not_before_ms=0,
        prove=record.needs_reading,
        lost=(),
        detail="",
    )


def _has_come_back(lost: Iterable[LostEntries], living: Container[BookieIdentity]) -> bool:
    """Whether one that was not there when it was asked is there now."""
    return any(
        one.said == NOT_REGISTERED and one.bookie in living
        for entries in lost
        for one in entries.answers
    )
