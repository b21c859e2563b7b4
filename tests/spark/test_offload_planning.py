"""The ledgers that are due for offload, and the flags that select them."""

import argparse
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import Position
from magnetar.jobs.offload.plan import due, why_none
from magnetar.jobs.offload.requests import first_unoffloaded
from magnetar.jobs.offload.work import LedgerTask
from magnetar.managed_ledger.record import LedgerItem
from magnetar.offload.policy import NO_DEFAULTS, OffloadPlan, effective
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.offload.flags import override_of, parse_position
from magnetar_spark.jobs.offload.job import TASKS_PER_CORE, slices_of

NOW_MS = 1_000_000
STORE = StoreSpec("filesystem", "/cold")


def plan(threshold_bytes: int = -1, threshold_s: int = -1) -> OffloadPlan:
    return OffloadPlan(STORE, threshold_bytes, threshold_s, -1, "tiered-storage-first")


def item(ledger_id: int, size: int = 100, closed_s_ago: int = 0, entries: int = 5) -> LedgerItem:
    return LedgerItem(ledger_id, 0, NOW_MS - closed_s_ago * 1000, entries, size)


LEDGERS = [item(1), item(2), item(3), LedgerItem(4, 0)]


def ids(found: list[LedgerItem]) -> list[int]:
    return [each.ledger_id for each in found]


@pytest.mark.parametrize(
    ("threshold", "expected"), [(-1, []), (0, [1, 2, 3]), (99, [1, 2, 3]), (100, [1, 2]), (300, [])]
)
def test_the_oldest_beyond_the_threshold_are_due(threshold: int, expected: list[int]) -> None:
    assert ids(due(LEDGERS, (), plan(threshold), NOW_MS)) == expected


def test_what_is_in_files_counts_and_is_not_due_again() -> None:
    assert ids(due(LEDGERS, {1}, plan(150), NOW_MS)) == [2]


@pytest.mark.parametrize(
    ("ledgers", "offloaded", "limits", "why"),
    [
        ([], (), plan(0), "the topic has no message"),
        ([LedgerItem(4, 0)], (), plan(0), "no ledger is closed; --roll closes the open one"),
        (LEDGERS, {1, 2, 3}, plan(0), "3 closed ledgers, all offloaded; --roll closes the open"),
        (LEDGERS[:3], {1, 2, 3}, plan(0), "3 closed ledgers, all offloaded"),
        (LEDGERS, {1}, replace(plan(0), store=None), "2 closed ledgers, and no store: set --store"),
        (LEDGERS, (), plan(), "3 closed ledgers, and no threshold: set one by policy"),
        (LEDGERS, (), plan(300), "300 bytes in closed ledgers, threshold 300"),
        (
            [item(1, closed_s_ago=59), item(2)],
            (),
            plan(threshold_s=60),
            "the oldest was closed 59 s ago, threshold 60",
        ),
    ],
)
def test_why_no_ledger_is_due(
    ledgers: list[LedgerItem], offloaded: set[int], limits: OffloadPlan, why: str
) -> None:
    if limits.store is not None:
        assert due(ledgers, offloaded, limits, NOW_MS) == []
    assert why in why_none(ledgers, offloaded, limits, NOW_MS)


def test_age_counts_from_the_closing() -> None:
    ledgers = [item(1, closed_s_ago=60), item(2, closed_s_ago=59), LedgerItem(3, 0)]
    assert ids(due(ledgers, (), plan(threshold_s=60), NOW_MS)) == [1]


def test_what_is_requested_is_due_whatever_the_thresholds_say() -> None:
    assert ids(due(LEDGERS, (), plan(), NOW_MS, [Position(3, 0), Position(2, 9)])) == [1, 2]


def test_a_ledger_without_entries_becomes_no_file() -> None:
    assert ids(due([item(1, entries=0), item(2)], (), plan(0), NOW_MS)) == [2]


@given(
    sizes=st.lists(st.integers(1, 1000), max_size=20),
    threshold=st.integers(0, 5000),
    offloaded=st.sets(st.integers(0, 20)),
)
def test_at_most_the_threshold_stays_on_bookies(
    sizes: list[int], threshold: int, offloaded: set[int]
) -> None:
    ledgers = [item(number, size) for number, size in enumerate(sizes)]
    found = due(ledgers, offloaded, plan(threshold), NOW_MS)
    gone = {each.ledger_id for each in found} | offloaded
    left = [each for each in ledgers if each.ledger_id not in gone]
    assert sum(each.size_bytes for each in left) <= threshold
    assert found == sorted(found, key=lambda each: each.ledger_id)
    newest = [each for each in ledgers if each.ledger_id > max(ids(found), default=-1)]
    assert all(each.ledger_id not in ids(found) for each in newest)


def test_flags_take_the_place_of_policies() -> None:
    said = effective(
        NO_DEFAULTS,
        {"offload_policies": {"managedLedgerOffloadThresholdInSeconds": 5}},
        {"managedLedgerOffloadDriver": "S3", "managedLedgerOffloadBucket": "b"},
    )
    nothing = override_of(flags())
    assert nothing.over(said) == said
    assert not nothing.selects_ledgers
    found = override_of(flags(threshold=0, store="file:///cold")).over(said)
    assert (found.store, found.threshold_bytes, found.threshold_s) == (STORE, 0, -1)
    lag = override_of(flags(deletion_lag=60)).over(said)
    assert (lag.deletion_lag_ms, lag.threshold_s) == (60_000, 5)
    assert override_of(flags(deletion_lag=-1)).over(said).deletion_lag_ms == -1
    assert override_of(flags(up_to="5:1")).up_to == Position(5, 1)


def flags(**given: object) -> argparse.Namespace:
    names = ("store", "threshold", "threshold_age", "deletion_lag", "up_to")
    return argparse.Namespace(**{**dict.fromkeys(names), **given})


def test_a_position_that_is_none_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match="write LEDGER:ENTRY"):
        parse_position("5")


def test_the_first_position_that_is_in_no_file() -> None:
    ledgers = [item(1), item(2, entries=0), item(3), LedgerItem(4, 0)]
    assert first_unoffloaded(ledgers, {1}, Position(4, 2)) == Position(3, 0)
    assert first_unoffloaded(ledgers, {1, 3}, Position(4, 2)) == Position(4, 0)
    assert first_unoffloaded(ledgers, {}, Position(1, 0)) == Position(1, 0)


@given(sizes=st.lists(st.integers(0, 300 << 20), max_size=60), cores=st.integers(1, 16))
def test_every_ledger_is_in_one_task_and_tasks_are_alike(sizes: list[int], cores: int) -> None:
    ledgers = [
        LedgerTask("l", "t", -1, number, size, 0, 0, StoreSpec(driver="filesystem", bucket="b"))
        for number, size in enumerate(sorted(sizes, reverse=True))
    ]
    slices = slices_of(ledgers, cores)
    assert sorted(each.ledger_id for some in slices for each in some) == list(range(len(sizes)))
    assert all(slices)
    assert len(slices) >= min(len(sizes), TASKS_PER_CORE * cores)
    lengths = [len(some) for some in slices]
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
