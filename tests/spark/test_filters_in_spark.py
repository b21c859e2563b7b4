"""Filters that are pushed down, against Spark itself: the same rows as without."""

from functools import reduce
from random import Random
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.synthetic_source import PUBLISH_MS, TOPICS, SyntheticSource

from magnetar_spark import PUSH_DOWN

TIMEOUT_S: Final = 600
"""Planning takes some forty short processes of Python, which a loaded machine starts slowly."""

FILTERS: Final = 9
"""Made at random. Each costs three short Python processes of Spark's planner."""
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
    *("-1", "0", "1", "3", "4", "5", "10", "1.5", "4.5D", "5L", "'3'"),
    *("9223372036854775807", "-9223372036854775808", "cast(null as int)"),
)
TEXTS: Final = (*(f"'{topic}'" for topic in TOPICS), "'persistent://a/b/'", "''", "null")
PATTERNS: Final = ("persistent://a/b/t%", "persistent://a/b/c", "%partition-1", "%", "persist_nt%")


def condition(random: Random) -> str:
    """About one column, or two conditions together."""
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


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Of another time zone than UTC, in which literals without a zone are."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    session.conf.set(PUSH_DOWN, "true")
    session.dataSource.register(SyntheticSource)
    return session


@pytest.mark.timeout(TIMEOUT_S)
def test_pushed_filters_leave_the_rows_that_spark_leaves(session: SparkSession) -> None:
    """Spark evaluates all filters in one query, and reads by all of them in another."""
    random = Random(7)
    filters = [*FIXED, *(condition(random) for _ in range(FILTERS))]
    plain = session.read.format("synthetic").load()
    judged = plain.selectExpr(*COLUMNS, *(f"({each}) as f{n}" for n, each in enumerate(filters)))
    expected: dict[int, list[Row]] = {number: [] for number in range(len(filters))}
    rows = judged.collect()
    assert len(rows) == len(TOPICS) * sum(map(len, PUBLISH_MS.values()))
    for row in rows:
        for number in range(len(filters)):
            if row[f"f{number}"]:
                expected[number].append(tuple(row[name] for name in COLUMNS))
    tables = [
        session.read.format("synthetic").option("filterPushdown", "true").load().where(each)
        for each in filters
    ]
    numbered = [table.selectExpr(*COLUMNS, f"{n} as number") for n, table in enumerate(tables)]
    found: dict[int, list[Row]] = {number: [] for number in range(len(filters))}
    for row in reduce(DataFrame.unionAll, numbered).collect():
        found[row["number"]].append(tuple(row[name] for name in COLUMNS))
    for number, each in enumerate(filters):
        assert sorted(found[number]) == sorted(expected[number]), each
    assert 0 < len(expected[0]) < len(rows)
