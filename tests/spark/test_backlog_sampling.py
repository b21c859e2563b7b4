"""Samples of a large log: evenly spaced, from end to end."""

from dataclasses import replace

import pytest

from magnetar.jobs.log.ranges import Range
from magnetar.ledger.metadata import LedgerMetadata
from magnetar_spark.jobs.backlog.scan import plan as scan_plan
from magnetar_spark.jobs.backlog.scan.plan import sampled


def ranged(ledger_id: int, entries: int, entry_bytes: int = 10, first: int = 0) -> Range:
    last = first + entries - 1
    metadata = LedgerMetadata(ledger_id, (), 1)
    return Range("t", -1, metadata, first, last, entries * entry_bytes)


@pytest.mark.parametrize("bytes_max", [100, 250, 1_000, 3_000, 9_990])
@pytest.mark.parametrize("wanted", [1, 4, 10])
def test_a_sample_is_of_the_log_in_its_order_and_has_both_its_ends(
    monkeypatch: pytest.MonkeyPatch, bytes_max: int, wanted: int
) -> None:
    monkeypatch.setattr(scan_plan, "RUNS_WANTED", wanted)
    whole = [ranged(1, 500), ranged(2, 1), ranged(3, 499, first=7)]
    runs = sampled(whole, bytes_max)
    places = {each.ledger_id: each for each in whole}
    seen: list[tuple[int, int]] = []
    for run in runs:
        of = places[run.ledger_id]
        assert of.first <= run.first <= run.last <= of.last
        assert run == replace(of, first=run.first, last=run.last, size_bytes=run.size_bytes)
        seen += [(run.ledger_id, entry_id) for entry_id in range(run.first, run.last + 1)]
    assert seen == sorted(set(seen)), "no entry twice"
    assert len(seen) * 10 <= bytes_max
    if len(runs) > 1:
        assert seen[0] == (1, 0)
        assert seen[-1] == (3, 505)


def test_one_run_is_of_the_newest() -> None:
    (run,) = sampled([ranged(1, 10), ranged(2, 10)], 15)
    assert (run.ledger_id, run.last) == (2, 9)


def test_runs_are_at_even_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_plan, "RUNS_WANTED", 5)
    runs = sampled([ranged(1, 1001)], 500)
    assert [(run.first, run.last) for run in runs] == [
        (0, 9),
        (250, 259),
        (500, 509),
        (751, 760),
        (991, 1000),
    ]
    assert {run.size_bytes for run in runs} == {100}


def test_a_run_has_one_entry_at_least() -> None:
    runs = sampled([ranged(1, 3, entry_bytes=1000)], 2_500)
    assert [(run.first, run.last) for run in runs] == [(0, 0), (2, 2)]
