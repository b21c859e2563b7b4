"""Filters against the rows they are about: what is taken is kept exactly, the rest is Spark's."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from magnetar.core.names import parse_topic
from magnetar_spark.filters import Bounds
from magnetar_spark.log.planning import Window

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ["persistent://a/b/t-partition-0", "persistent://a/b/t-partition-1", "persistent://a/b/c"]
SMALL = st.integers(-1, 4)
TIMES = st.integers(-1_500, 5_500).map(lambda us: EPOCH + timedelta(microseconds=us))
COMPARED: dict[Any, Any] = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(["__ledgerId", "__entryId", "__partition", "__publishTime"]))
    kind = draw(st.sampled_from([*COMPARED, In, IsNotNull, StringStartsWith]))
    values = TIMES if column == "__publishTime" else SMALL
    if kind is In:
        return In((column,), tuple(draw(st.lists(values, max_size=3))))
    if kind is IsNotNull:
        return IsNotNull((column,))
    if kind is StringStartsWith:
        return StringStartsWith(("__topic",), draw(st.sampled_from(TOPICS))[:-1])
    made: Filter = kind((column,), draw(values))
    return made


def passes(each: Filter, row: dict[str, Any]) -> bool:
    value = row[each.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(each, IsNotNull):
        return True
    if isinstance(each, In):
        return value in each.value
    if isinstance(each, StringStartsWith):
        return str(value).startswith(each.value)
    return bool(COMPARED[type(each)](value, each.value))  # type: ignore[attr-defined]


@given(
    st.lists(filters(), max_size=4),
    st.sampled_from(TOPICS),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 5),
)
def test_what_is_taken_is_kept_exactly(
    given_filters: list[Filter], topic: str, ledger: int, entry: int, publish_ms: int
) -> None:
    bounds = Bounds(given_filters)
    name = parse_topic(topic)
    window = bounds.narrowed(Window())
    kept = (
        not bounds.excludes(name)
        and window.has_ledger(ledger)
        and window.entries.has(entry)
        and (window.entries_among is None or entry in window.entries_among)
        and window.publish_ms.has(publish_ms)
    )
    row = {
        "__topic": topic,
        "__partition": name.partition_index,
        "__ledgerId": ledger,
        "__entryId": entry,
        "__publishTime": EPOCH + timedelta(milliseconds=publish_ms),
    }
    taken = [each for each in given_filters if not any(each is left for left in bounds.left)]
    assert kept == all(passes(each, row) for each in taken)


def test_other_filters_are_left_to_spark() -> None:
    others: list[Filter] = [
        EqualTo(("value",), b"x"),
        IsNull(("__ledgerId",)),
        Not(EqualTo(("__ledgerId",), 1)),
        EqualTo(("__messageProperties", "__ledgerId"), 1),
        GreaterThan(("__topic",), "a"),
        EqualTo(("__ledgerId",), None),
    ]
    assert Bounds(others).left == others
