"""The driver's part of the scan: tasks of bounded size, and rows by kind."""

from typing import Any

import pytest

from magnetar.jobs.log.ranges import Range
from magnetar.ledger.metadata import LedgerMetadata
from magnetar_spark.jobs.backlog.scan.partials import (
    BY_KEY,
    BY_MINUTE,
    BY_SIZE,
    FAILED,
    FLOW,
    SCANNED,
    UNREAD,
    UNREAD_BY_KEY,
    SumRow,
)
from magnetar_spark.jobs.backlog.scan.plan import ScanRange
from magnetar_spark.jobs.backlog.scan.sums import TASK_BYTES, KeySkew, grouped_by_kind, tasks_of

METADATA = LedgerMetadata(7, (), 1)


def ranged(size_bytes: int) -> ScanRange:
    return ScanRange(Range("t", -1, METADATA, 0, 1, size_bytes), ())


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([], []),
        ([0], [1]),
        ([TASK_BYTES, 0, 1], [2, 1]),
        ([TASK_BYTES - 1, 1, 1], [2, 1]),
        ([TASK_BYTES - 1, 2], [1, 1]),
        ([TASK_BYTES + 1, TASK_BYTES + 1], [1, 1]),
        ([1, TASK_BYTES, TASK_BYTES], [1, 1, 1]),
        ([TASK_BYTES // 2] * 5, [2, 2, 1]),
    ],
)
def test_ranges_are_gathered_up_to_a_tasks_size(sizes: list[int], counts: list[int]) -> None:
    ranges = [ranged(size) for size in sizes]
    tasks = tasks_of(ranges)
    assert [len(task) for task in tasks] == counts
    assert [each for task in tasks for each in task] == ranges


def row(kind: int, topic: str = "t", **fields: Any) -> SumRow:
    every: dict[str, Any] = {
        "kind": kind,
        "topic": topic,
        "number": 7,
        "group": 70,
        "messages": 1,
        "oldest_ms": 1,
        "first_ms": 2,
        "rank_messages": 1,
        "rank_oldest": 1,
        "keys": 3,
        "keyed_messages": 9,
    }
    return SumRow(**every | fields)


def test_each_row_is_found_by_its_kind() -> None:
    found = grouped_by_kind(
        [
            row(SCANNED, "a"),
            row(SCANNED, "b"),
            row(UNREAD, "a", subscription="s"),
            row(UNREAD, "a", subscription="r"),
            row(BY_SIZE, "a"),
            row(FLOW, "a"),
            row(BY_MINUTE, "a"),
            row(BY_MINUTE, "a", group=71),
            row(BY_MINUTE, "b"),
        ]
    )
    assert list(found.topics) == ["a", "b"]
    assert list(found.unread) == [("a", "s"), ("a", "r")]
    assert [(each.kind, each.number) for each in found.sizes] == [(BY_SIZE, 70)]
    assert [(each.kind, each.number) for each in found.flows] == [(FLOW, 70)]
    assert {topic: [each.number for each in rows] for topic, rows in found.minutes.items()} == {
        "a": [70, 71],
        "b": [70],
    }
    assert found.topics["a"].number == 7
    assert [found.keys, found.unread_keys, found.failures, found.skew] == [[], [], [], {}]


def test_one_failure_of_a_topic_is_reported() -> None:
    found = grouped_by_kind(
        [
            row(FAILED, "a", key=b"first"),
            row(FAILED, "a", key=b"second"),
            row(FAILED, "b", key=b"\xff"),
        ]
    )
    assert found.failures == [("a", "first"), ("b", "\ufffd")]


def test_keys_come_by_rank_and_unread_ones_by_age() -> None:
    found = grouped_by_kind(
        [
            row(BY_KEY, "b", key=b"1"),
            row(BY_KEY, "a", key=b"2", rank_messages=2),
            row(BY_KEY, "a", key=b"1", rank_messages=1),
            row(UNREAD_BY_KEY, "a", subscription="s", key=b"new", rank_oldest=2),
            row(UNREAD_BY_KEY, "a", subscription="s", key=b"old", rank_oldest=1),
            row(UNREAD_BY_KEY, "a", subscription="r", key=b"x", rank_oldest=9),
        ]
    )
    assert [(each.topic, each.key) for each in found.keys] == [
        ("a", b"1"),
        ("a", b"2"),
        ("b", b"1"),
    ]
    assert [each.key for each in found.unread_keys] == [b"x", b"old", b"new"]
    assert [each.oldest_ms for each in found.unread_keys] == [2, 2, 2], "the key's own oldest"


def test_the_share_of_the_hottest_keys() -> None:
    found = grouped_by_kind(
        [row(BY_KEY, "a", rank_messages=rank, messages=10 ** (rank > 1)) for rank in (1, 2, 10, 11)]
        + [row(BY_KEY, "a", rank_messages=rank, messages=1000) for rank in (100, 101)]
        + [row(BY_KEY, "b", rank_messages=2, messages=5, keys=1, keyed_messages=5)]
    )
    assert found.skew == {
        "a": KeySkew(3, 9, {1: 1, 10: 21, 100: 1031}),
        "b": KeySkew(1, 5, {1: 0, 10: 5, 100: 5}),
    }
