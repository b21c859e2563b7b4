"""The record after an attempt: every outcome, at its exact bounds."""

from random import Random

import pytest

from magnetar.autorecovery.records import LostEntries, RecordState, UnderReplicated, is_due
from magnetar.autorecovery.repair.next_step import (
    Outcome,
    OutcomeKind,
    next_record,
    remaining_ms,
    requeued,
)
from magnetar.autorecovery.settings import AutorecoverySettings

SETTINGS = AutorecoverySettings()


@pytest.mark.parametrize(
    ("kind", "attempts", "state"),
    [
        (OutcomeKind.HEALTHY, 0, None),
        (OutcomeKind.REPAIRED, 7, None),
        (OutcomeKind.DELETED, 7, None),
        (OutcomeKind.WAITS, 7, RecordState.WAITING),
        (OutcomeKind.FAILED, 6, RecordState.WAITING),
        (OutcomeKind.FAILED, 7, RecordState.PARKED),
        (OutcomeKind.NO_TARGET, 0, RecordState.PARKED),
        (OutcomeKind.LOST, 0, RecordState.LOST),
        (OutcomeKind.LOST, 7, RecordState.LOST),
    ],
)
def test_every_outcome_has_its_record(
    kind: OutcomeKind, attempts: int, state: RecordState | None
) -> None:
    record = UnderReplicated(1, ("gone",), 5, attempts=attempts, prove=True)
    lost = (LostEntries(1, 2, ()),)
    after = next_record(record, Outcome(kind, "why", lost, wait_ms=70), 1000, SETTINGS, Random(1))
    if state is None:
        assert after is None
        return
    assert after is not None
    waits = kind is OutcomeKind.WAITS
    assert (after.state, after.detail, after.prove) == (state, "why", True)
    assert after.attempts == attempts + (not waits)
    assert after.lost == (lost if kind is OutcomeKind.LOST else ())
    if waits:
        assert after.not_before_ms == 1070
    elif state is RecordState.WAITING:
        bound = min(SETTINGS.backoff_first_s * 2**attempts, SETTINGS.backoff_max_s) * 1000
        assert 1000 + bound / 2 <= after.not_before_ms <= 1000 + bound
    else:
        assert after.not_before_ms == 0


def test_the_bounds_of_waits_are_exact() -> None:
    longest_ms = int(SETTINGS.backoff_max_s * 1000)
    assert [remaining_ms(at, 1000, SETTINGS) for at in (999, 1000, 1001)] == [-1, 0, 1]
    assert remaining_ms(1000 + longest_ms, 1000, SETTINGS) == longest_ms
    assert remaining_ms(1001 + longest_ms, 1000, SETTINGS) == 0
    slow = AutorecoverySettings(open_ledger_grace_s=10_000)
    assert remaining_ms(10_001_000, 1000, slow) == 10_000_000
    assert [is_due(1000, now, 5) for now in (999, 1000, 5999, 6000)] == [True, False, False, True]


def test_a_requeued_record_starts_over() -> None:
    lost = (LostEntries(1, 2, ()),)
    parked = UnderReplicated(
        1,
        ("gone",),
        5,
        RecordState.PARKED,
        attempts=8,
        not_before_ms=77,
        grace_until_ms=6,
        detail="full",
    )
    again = requeued(parked, (), bookies_changed=False)
    assert again == UnderReplicated(1, ("gone",), 5, grace_until_ms=6)
    record = UnderReplicated(1, ("gone",), 5, RecordState.LOST, 3, 77, detail="x", lost=lost)
    again = requeued(record, (), bookies_changed=True)
    assert again == UnderReplicated(1, ("gone",), 5, prove=True)
    waiting = UnderReplicated(1, ("gone",), 5, attempts=3, not_before_ms=77, detail="x")
    assert requeued(waiting, (), bookies_changed=True) is waiting
