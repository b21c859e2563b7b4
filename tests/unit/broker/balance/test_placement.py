"""Placing bundles: evenly, by load, and not all upon the same broker at the same moment."""

import random
from collections import Counter

import pytest

from magnetar.broker.balance.model import LoadReport
from magnetar.broker.balance.placement import Placement
from magnetar.core.clock import SystemClock

BROKERS = [f"b{number}" for number in range(6)]


def report(name: str, *, cpu: float = 0.0, bundles: int = 0, draining: bool = False) -> LoadReport:
    return LoadReport(
        broker_id=name,
        started_ms=0,
        updated_ms=0,
        cpu=cpu,
        bundle_count=bundles,
        draining=draining,
    )


def placement(*reports: LoadReport, seed: int = 3) -> Placement:
    by_name = {each.broker_id: each for each in reports}
    return Placement(by_name.get, SystemClock(), random.Random(seed))


def test_without_reports_bundles_spread_evenly() -> None:
    made = placement()
    chosen = Counter(made.choose(BROKERS) for _ in range(600))
    assert set(chosen) == set(BROKERS)
    assert max(chosen.values()) - min(chosen.values()) <= 6


def test_many_who_place_at_once_do_not_fall_upon_one_broker() -> None:
    """Six brokers place 50 bundles each, none of which knows of the others' choices."""
    reports = [report(name, cpu=0.3 + number / 100) for number, name in enumerate(BROKERS)]
    chosen = Counter(
        made.choose(BROKERS)
        for made in (placement(*reports, seed=seed) for seed in range(6))
        for _ in range(50)
    )
    assert max(chosen.values()) <= 70
    assert min(chosen.values()) >= 30


def test_the_less_busy_of_two_is_taken() -> None:
    made = placement(report("b0", cpu=0.6), report("b1", cpu=0.2, bundles=50))
    assert {made.choose(["b0", "b1"]) for _ in range(5)} == {"b1"}


def test_with_like_loads_the_one_with_fewer_bundles_is_taken() -> None:
    made = placement(report("b0", cpu=0.22, bundles=3), report("b1", cpu=0.2, bundles=50))
    assert made.choose(["b0", "b1"]) == "b0"
    made = placement(report("b0", cpu=0.2, bundles=3), report("b1", cpu=0.2, bundles=50))
    assert made.choose(["b0", "b1"], {"b0": 90, "b1": 4}) == "b1", "what is owned now counts"


def test_overloaded_and_draining_brokers_are_left_out_while_there_are_others() -> None:
    busy, leaving = report("b0", cpu=0.9), report("b1", draining=True)
    made = placement(busy, leaving, report("b2", cpu=0.5, bundles=90))
    assert {made.choose(["b0", "b1", "b2"]) for _ in range(20)} == {"b2"}
    assert placement(busy).choose(["b0"]) == "b0"


def test_nobody_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="no broker"):
        placement().choose([])
