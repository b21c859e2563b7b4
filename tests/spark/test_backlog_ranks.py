"""Spark's query over the sums of tasks, and that of small scans, equal plain Python."""

from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.spark.backlog_stage import ranked

from magnetar_spark.jobs.backlog.scan import ranks, sums
from magnetar_spark.jobs.backlog.scan.partials import (
    BY_KEY,
    BY_MINUTE,
    BY_SIZE,
    FAILED,
    FLOW,
    SCANNED,
    SCHEMA,
    SPARK_SCHEMA,
    UNREAD,
    UNREAD_BY_KEY,
)

NEWEST = 3
KINDS = (SCANNED, BY_MINUTE, BY_SIZE, BY_KEY, UNREAD, UNREAD_BY_KEY, FLOW, FAILED)


def row(rng: Random) -> dict[str, Any]:
    kind = rng.choice(KINDS)
    keyed = kind in (BY_KEY, UNREAD_BY_KEY)
    made: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    made |= {
        "kind": kind,
        "topic": rng.choice(("a", "b")),
        "subscription": rng.choice(("s", "r")) if kind in (UNREAD, UNREAD_BY_KEY) else "",
        "messages": rng.randrange(5),
        "bytes": rng.randrange(100),
    }
    if keyed:
        made["key"] = rng.choice((None, *(b"k%d" % n for n in range(9))))
        made["ledger_id"], made["entry_id"] = rng.randrange(3), rng.randrange(4)
    else:
        made["number"] = rng.randrange(6)
    if kind in (FLOW, FAILED):
        made["key"] = rng.choice((b"x", b"y"))
    if kind in (SCANNED, UNREAD):
        made["entries"] = rng.randrange(9)
    if keyed or kind in (FLOW, UNREAD):
        made["oldest_ms"] = rng.randrange(50)
    if keyed or kind == FLOW:
        made["newest_ms"] = rng.randrange(50, 99)
    return made


def order(found: dict[str, Any]) -> str:
    return repr([found[name] for name in ("kind", "topic", "subscription", "key", "group")])


def told(found: dict[str, Any]) -> dict[str, Any]:
    """Returns rows without the ranks of those that are equal in all sort columns."""
    kind = found["kind"]
    ranks = {"rank_messages", "rank_oldest"}
    kept = ranks if kind in (BY_KEY, UNREAD_BY_KEY) else set()
    kept = {"rank_oldest"} if kind == BY_MINUTE else kept
    return {name: value for name, value in found.items() if name not in ranks - kept}


@pytest.mark.parametrize("seed", range(3))
def test_spark_sums_and_ranks_as_plain_python_does(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(sums, "KEYS_MAX", 4)
    monkeypatch.setattr("tests.spark.backlog_stage.KEYS_MAX", 4)
    rng = Random(seed)
    rows = [row(rng) for _ in range(400)]
    whole = pa.Table.from_pylist(rows, schema=SCHEMA)
    frame = spark.createDataFrame(whole, SPARK_SCHEMA)
    by_spark = [each.asDict() for each in sums._ranked(frame, NEWEST).collect()]
    for each in by_spark:
        each["key"] = None if each["key"] is None else bytes(each["key"])
    expected = sorted(ranked(rows, NEWEST), key=order)
    for one, other in zip(sorted(by_spark, key=order), expected, strict=True):
        assert told(one) == told(other)
    assert len(expected) > 30


@given(st.integers(0, 1 << 32), st.integers(1, 400), st.integers(1, 60), st.integers(1, 100))
def test_small_scans_are_summed_and_ranked_as_plain_python_does(
    seed: int, count: int, of_batch: int, pending_max: int
) -> None:
    rng = Random(seed)
    rows = [row(rng) for _ in range(count)]
    batches = [
        pa.RecordBatch.from_pylist(rows[at : at + of_batch], schema=SCHEMA)
        for at in range(0, count, of_batch)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "ROWS_PENDING_MAX", pending_max)
        patch.setattr("tests.spark.backlog_stage.KEYS_MAX", 4)
        found = [msgspec.structs.asdict(each) for each in ranks.ranked(batches, NEWEST, 4)]
        expected = sorted(ranked(rows, NEWEST), key=order)
    for one, other in zip(sorted(found, key=order), expected, strict=True):
        assert told(one) == told(other)


def test_too_many_keys_of_a_small_scan_are_left_to_spark() -> None:
    rows = [dict.fromkeys(SCHEMA.names) | {"kind": BY_KEY, "topic": "a", "subscription": ""}]
    keyed = [rows[0] | {"key": b"%d" % key, "messages": 1} for key in range(5)]
    batch = pa.RecordBatch.from_pylist(keyed, schema=SCHEMA)
    assert len(list(ranks.ranked([batch], NEWEST, 10, rows_max=5))) == 5
    with pytest.raises(ranks.TooManyRows):
        list(ranks.ranked([batch], NEWEST, 10, rows_max=4))
    assert list(ranks.ranked([], NEWEST, 10)) == []
