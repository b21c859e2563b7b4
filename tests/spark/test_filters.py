"""Filters against rows: supported filters are applied exactly, others are left to Spark."""

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

from magnetar.core.ids import EARLIEST
from magnetar.core.names import parse_topic
from magnetar.jobs.log.ranges import CLOCKS_APART_MS, Interval, Window, ranges_of
from magnetar.jobs.log.topic_log import LedgerSpan, TopicLog
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.offload.file_layout import TIME_MS_MAX, time_or_none
from magnetar_spark.filters import Bounds

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
        return In((column,), tuple(draw(st.lists(st.none() | values, max_size=3))))
    if kind is IsNotNull:
        return IsNotNull((column,))
    if kind is StringStartsWith:
        return StringStartsWith(("__topic",), draw(st.sampled_from(TOPICS))[:-1])
    made: Filter = kind((column,), draw(values))
    return made


def passes(each: Filter, row: dict[str, Any]) -> bool:
    value = row[each.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(each, IsNotNull) or value is None:
        return value is not None  # no comparison with null is true
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
    st.integers(0, 5) | st.sampled_from([TIME_MS_MAX, TIME_MS_MAX + 1, 2**64 - 1]),
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
        and published(window.publish_ms, publish_ms)
    )
    time_ms = time_or_none(publish_ms)
    row = {
        "__topic": topic,
        "__partition": name.partition_index,
        "__ledgerId": ledger,
        "__entryId": entry,
        "__publishTime": None if time_ms is None else EPOCH + timedelta(milliseconds=time_ms),
    }
    taken = [each for each in given_filters if not any(each is left for left in bounds.left)]
    assert kept == all(passes(each, row) for each in taken)


def published(times: Interval, publish_ms: int) -> bool:
    """Returns whether the entry is decoded (`EntryDecoder`)."""
    time_ms = time_or_none(publish_ms)
    return times == Interval() or (time_ms is not None and times.has(time_ms))


def test_a_publish_time_beyond_the_year_9999_is_null() -> None:
    bounds = Bounds([IsNotNull(("__publishTime",))])
    assert not bounds.left
    times = bounds.narrowed(Window()).publish_ms
    assert published(times, TIME_MS_MAX)
    assert not published(times, TIME_MS_MAX + 1)


def test_a_young_ledger_may_hold_old_messages() -> None:
    """They were sent again after an outage, or replicated. A filter keeps them, as Spark does."""
    hour_ms, now_ms = 3_600_000, 1_700_000_000_000
    young = LedgerSpan(LedgerMetadata(5, (), now_ms), 9, 1000, now_ms, 0)
    log = TopicLog(parse_topic(TOPICS[2]), (young,), EARLIEST)
    old = EPOCH + timedelta(milliseconds=now_ms - hour_ms)
    filtered = Bounds([LessThan(("__publishTime",), old)]).narrowed(Window())
    assert [each.last for each in ranges_of(log, filtered, 1 << 20)] == [9]
    ending = Interval().cut(0, now_ms - CLOCKS_APART_MS - 1)
    assert not list(ranges_of(log, Window(publish_ms=ending, ledgers_ms=ending), 1 << 20))


def test_other_filters_are_left_to_spark() -> None:
    others: list[Filter] = [
        EqualTo(("value",), b"x"),
        IsNull(("__ledgerId",)),
        Not(EqualTo(("__ledgerId",), 1)),
        EqualTo(("__messageProperties", "__ledgerId"), 1),
        GreaterThan(("__topic",), "a"),
        EqualTo(("__ledgerId",), None),
        LessThan(("__ledgerId",), 5.5),
        In(("__entryId",), (1, 1.5)),
        EqualTo(("__entryId",), True),
        GreaterThan(("__publishTime",), 5),
        EqualTo(("__topic",), 5),
        StringStartsWith(("__topic",), None),  # type: ignore[arg-type]
    ]
    assert Bounds(others).left == others
