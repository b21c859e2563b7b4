"""The record of an under-replicated ledger after an attempt. Pure. No ledger is retried forever.

Every attempt ends in exactly one `Outcome`. Repaired, healthy and deleted ledgers leave the list. A
failed attempt is retried with back-off; after `attempts_max` attempts the ledger is parked. If no
bookie can replace the lost one, the ledger is parked at once. A lost record names the entries.

The auditor requeues parked and lost records when the set of bookies has changed. Each periodic
audit also requeues parked records, and a lost record if a bookie that should have the entries was
not registered at the time and is now.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import msgspec

from magnetar.autorecovery.answers import NOT_REGISTERED
from magnetar.autorecovery.records import LostEntries, RecordState, UnderReplicated
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.bookie.api import BookieIdentity
from magnetar.core.backoff import backoff_s


class OutcomeKind(StrEnum):
    """How an attempt ended; the values are the labels of a metric."""

    HEALTHY = "healthy"
    REPAIRED = "repaired"
    DELETED = "deleted"
    WAITS = "waits"
    NO_TARGET = "no bookie can stand in"
    LOST = "lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt, with the amount that it copied."""

    kind: OutcomeKind
    detail: str = ""
    lost: tuple[LostEntries, ...] = ()
    wait_ms: int = 0
    """The time until the next attempt, if the outcome is WAITS."""
    entries: int = 0
    bytes: int = 0


def remaining_ms(until_ms: int, now_ms: int, settings: AutorecoverySettings) -> int:
    """Returns the time until `until_ms`, a time of a record; 0 or less if it has passed.

    A time further ahead than the longest wait came from a wrong clock and counts as passed.
    """
    longest_s = max(settings.open_ledger_grace_s, settings.backoff_max_s)
    remaining = until_ms - now_ms
    return remaining if remaining <= longest_s * 1000 else 0


FINISHED = frozenset({OutcomeKind.HEALTHY, OutcomeKind.REPAIRED, OutcomeKind.DELETED})


def next_record(
    record: UnderReplicated,
    outcome: Outcome,
    now_ms: int,
    settings: AutorecoverySettings,
    rng: Random,
) -> UnderReplicated | None:
    """Returns the ledger's record after the attempt, or None if it leaves the list."""
    if outcome.kind in FINISHED:
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
    pause_s = backoff_s(attempts, settings.backoff_first_s, settings.backoff_max_s, rng)
    return change(
        record,
        attempts=attempts,
        not_before_ms=now_ms + int(pause_s * 1000),
        detail=outcome.detail,
    )


def requeued(
    record: UnderReplicated, living: Container[BookieIdentity], *, bookies_changed: bool
) -> UnderReplicated:
    """Returns the record in the state WAITING, or the same record if it needs no new attempt.

    `prove` is set for a lost ledger: a bookie that has returned may have the lost entries.
    """
    lost = record.state is RecordState.LOST
    retry = bookies_changed or not lost or _has_returned(record.lost, living)
    if record.state is RecordState.WAITING or not retry:
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


def _has_returned(lost: Iterable[LostEntries], living: Container[BookieIdentity]) -> bool:
    """Whether a bookie that was not registered at the attempt is registered now."""
    return any(
        answer.text == NOT_REGISTERED and answer.bookie in living
        for entries in lost
        for answer in entries.answers
    )
