"""Filters that are pushed down, against Spark itself: the same rows as without.

Each `load()` costs three Python processes of Spark's planner, so a query has several filters. Each
of them excludes a row that the others keep, and enough rows pass all of them. So a filter that
excludes too little or too much changes the rows of its query.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

import pytest
from pyspark.sql import SparkSession
from tests.spark.synthetic_source import PUBLISH_MS, TOPICS, SyntheticSource

from magnetar.core.names import parse_topic
from magnetar.offload.file_layout import TIME_MS_MAX
from magnetar_spark import PUSH_DOWN

TIMEOUT_S: Final = 600
"""On a loaded machine, Spark and the planner's processes start slowly."""
FILTERS: Final = 30
"""Number of random filters."""
QUERIES: Final = 3
FILTERS_OF_QUERY_MAX: Final = 8
ROWS_LEAST: Final = 3
"""Minimum number of rows that pass all filters of a query."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS: Final = ("__topic", "__ledgerId", "__entryId")
Row = tuple[str, int, int]
COMPARISONS: Final = ("=", "<=>", ">", ">=", "<", "<=", "<>")
TIMES: Final = (
    "timestamp'1970-01-01 00:00:00 UTC'",
    "timestamp'1970-01-01 00:00:00.001 UTC'",
    "timestamp'1970-01-01 00:00:00.000999 UTC'",
    "timestamp'1970-01-01 00:00:00.001001 UTC'",
    "timestamp'1969-12-31 23:59:59.999999 UTC'",
    "timestamp'2023-11-14 22:13:20 UTC'",
    "timestamp'9999-12-31 23:59:59.999 UTC'",
    "timestamp'9999-12-31 23:59:59.999999 UTC'",
    "timestamp'0001-01-01 00:00:00 UTC'",
    "timestamp'1969-12-31 19:00:00.002'",
    "timestamp_ntz'1969-12-31 19:00:00.001'",
    "date'1970-01-01'",
    "cast(null as timestamp)",
)
NUMBERS: Final = (
    *("-1", "0", "1", "3", "4", "5", "7", "8", "10", "1.5", "4.5D", "5L", "'3'"),
    *("9223372036854775807", "-9223372036854775808", "cast(null as int)"),
)
TEXTS: Final = (*(f"'{topic}'" for topic in TOPICS), "'persistent://a/b/'", "''", "null")
PATTERNS: Final = ("persistent://a/b/t%", "persistent://a/b/c", "%partition-1", "%", "persist_nt%")


def condition(random: Random) -> str:
    """Draws a condition on one column, or two conditions together."""
    if random.random() < 0.35:
        word = random.choice(["and", "and", "or"])
        return f"({condition(random)}) {word} ({condition(random)})"
    if random.random() < 0.1:
        return f"not ({condition(random)})"
    column = random.choice(["__publishTime", "__publishTime", "__ledgerId", "__entryId"])
    column = random.choice([column, column, "__partition", "__topic"])
    literals = {"__publishTime": TIMES, "__topic": TEXTS}.get(column, NUMBERS)
    kind = random.randrange(10)
    if kind == 0:
        return f"{column} is {random.choice(['', 'not '])}null"
    if kind == 1 and column == "__topic":
        return f"__topic like '{random.choice(PATTERNS)}'"
    if kind in (1, 2):
        some = ", ".join(random.sample(literals, 3))
        return f"{column} {random.choice(['', 'not '])}in ({some})"
    return f"{column} {random.choice(COMPARISONS)} {random.choice(literals)}"


FIXED: Final = (
    "__publishTime is not null",
    "__publishTime is null",
    "__publishTime > timestamp'1970-01-01 00:00:00.000999 UTC'",
    "__publishTime < timestamp'2000-01-01 00:00:00 UTC' and __ledgerId = 5",
    "__ledgerId in (3, null)",
)

SCHEMA: Final = (
    "__topic string, __partition int, __ledgerId bigint, __entryId bigint, __publishTime timestamp"
)
ROWS: Final = [
    (
        topic,
        parse_topic(topic).partition_index,
        ledger_id,
        entry_id,
        EPOCH + timedelta(milliseconds=time_ms) if time_ms <= TIME_MS_MAX else None,
    )
    for topic in TOPICS
    for ledger_id, times in PUBLISH_MS.items()
    for entry_id, time_ms in enumerate(times)
]
"""Columns of the source's messages."""


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Has a time zone other than UTC, which applies to literals without a zone."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    session.conf.set(PUSH_DOWN, "true")
    session.dataSource.register(SyntheticSource)
    return session


def together(passing: Sequence[frozenset[Row]], rows: frozenset[Row]) -> list[list[int]]:
    """Groups filters into queries by the rows that pass each of them; the fixed ones are first."""
    weakest = sorted(range(len(FIXED), len(passing)), key=lambda n: -len(passing[n]))
    left = [*range(len(FIXED)), *weakest]
    queries: list[list[int]] = []
    for _ in range(QUERIES):
        chosen: list[int] = []
        for number in left:
            tried = [*chosen, number]
            if len(tried) <= FILTERS_OF_QUERY_MAX and visible([passing[n] for n in tried], rows):
                chosen = tried
        left = [number for number in left if number not in chosen]
        queries.append(chosen)
    return queries


def visible(passing: Sequence[frozenset[Row]], rows: frozenset[Row]) -> bool:
    """Returns whether every filter excludes a row that the others keep, and some rows pass all."""
    alone = [
        rows.intersection(*(each for m, each in enumerate(passing) if m != n)) - own
        for n, own in enumerate(passing)
    ]
    return all(alone) and len(rows.intersection(*passing)) >= ROWS_LEAST


@pytest.mark.timeout(TIMEOUT_S)
def test_pushed_filters_leave_the_rows_that_spark_leaves(session: SparkSession) -> None:
    """Spark evaluates each filter alone over all rows, and several together in a read."""
    random = Random(7)
    filters = [*FIXED, *(condition(random) for _ in range(FILTERS))]
    table = session.createDataFrame(ROWS, SCHEMA)
    judged = table.selectExpr(*COLUMNS, *(f"({each}) as f{n}" for n, each in enumerate(filters)))
    found = judged.collect()
    rows = frozenset(tuple(row[name] for name in COLUMNS) for row in found)
    assert len(found) == len(rows) == len(ROWS)
    passing = [
        frozenset(tuple(row[name] for name in COLUMNS) for row in found if row[f"f{n}"])
        for n in range(len(filters))
    ]
    queries = together(passing, rows)
    tried = {number for numbers in queries for number in numbers}
    assert tried.issuperset(range(len(FIXED)))
    for numbers in queries:
        table = session.read.format("synthetic").option("filterPushdown", "true").load()
        for number in numbers:
            table = table.where(filters[number])
        read = [tuple(row) for row in table.select(*COLUMNS).collect()]
        expected = sorted(rows.intersection(*(passing[number] for number in numbers)))
        assert sorted(read) == expected, [filters[number] for number in numbers]
