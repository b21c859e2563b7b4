"""Findings about backlogs, and the published summaries, at every boundary."""

from typing import Any

import pytest
from tests.spark.test_backlog_report import NOW_MS, blank, nothing, subscription, topic

from magnetar.documents.backlog import WORST
from magnetar_spark.jobs.backlog.analyse import attention
from magnetar_spark.jobs.backlog.analyse.attention import FINDINGS_MAX, Finding, Severity, findings
from magnetar_spark.jobs.backlog.analyse.published import published, total, worst
from magnetar_spark.jobs.backlog.report import metrics
from magnetar_spark.jobs.backlog.tables.tables import Rows

A, B = "persistent://acme/shop/a", "persistent://acme/other/b"
NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL


def of(row: Any, **topic_fields: Any) -> list[Finding]:
    """Returns the findings about one subscription."""
    about = topic(A, **topic_fields)
    return findings(Rows(topics=[about], subscriptions=[row]))


def kinds(row: Any, **topic_fields: Any) -> list[tuple[Severity, str]]:
    return [(each.severity, each.kind) for each in of(row, **topic_fields)]


def test_a_subscription_that_cannot_be_read_is_nothing_but_that() -> None:
    row = subscription("s", A, entries=None, error="lost", trend="unknown", holds_bytes=1 << 40)
    (found,) = of(row)
    assert (found.severity, found.kind, found.topic, found.subscription) == (
        CRITICAL, "unreadable", A, "s"
    )  # fmt: skip
    assert found.text == "its state cannot be read: lost"
    assert "Everything is kept for it." in found.advice
    assert found.weight == 0.0


@pytest.mark.parametrize(
    ("age_s", "consumers", "severity", "said"),
    [
        (3600.0, 0, CRITICAL, " (none is connected)"),
        (3599.0, 2, WARNING, " (no consumer acknowledges)"),
        (None, None, WARNING, ""),
    ],
)
def test_a_stalled_backlog_is_critical_after_an_hour(
    age_s: float | None, consumers: int | None, severity: Severity, said: str
) -> None:
    row = subscription(
        "s", A, entries=1234, trend="stalled", since_s=90.0, age_s=age_s, consumers=consumers
    )
    (found,) = of(row)
    assert (found.severity, found.kind, found.weight) == (severity, "stalled", 1234.0)
    assert found.text == f"1,234 entries, and nothing was consumed for 1 min 30 s{said}"


def test_a_growing_backlog_is_reported_with_its_rates() -> None:
    rates = {"growth_per_s": 1.5, "published_per_s": 4.0, "consumed_per_s": 2.5}
    (found,) = of(subscription("s", A, entries=7, trend="growing", **rates))
    assert (found.severity, found.kind) == (CRITICAL, "growing")
    assert found.text == "7 entries and growing by 1.5/s: 4.0/s come, 2.5/s are consumed"
    for trend in ("draining", "steady", "empty", "reset", "unknown"):
        assert of(subscription("s", A, entries=7, trend=trend, **rates)) == []


def test_a_large_amount_kept_for_one_subscription_is_reported() -> None:
    much = attention.HOLDS_BYTES
    assert of(subscription("s", A, holds_bytes=much - 1)) == []
    (found,) = of(subscription("s", A, holds_bytes=much))
    assert (found.severity, found.kind, found.text) == (
        WARNING, "holds", "keeps 64.0 MiB on bookies"
    )  # fmt: skip


def test_many_acknowledged_runs_are_reported_with_their_holder() -> None:
    runs = attention.RANGES
    assert of(subscription("s", A, acked_ranges=runs - 1)) == []
    assert of(subscription("s", A, acked_ranges=None)) == []
    (found,) = of(subscription("s", A, acked_ranges=runs))
    assert (found.severity, found.kind) == (WARNING, "holes")
    assert found.text == "1,000 acknowledged runs behind its oldest message"
    (found,) = of(subscription("s", A, acked_ranges=runs, held_by="c1, c2"))
    assert found.text.endswith("message, which c1, c2 may have")


@pytest.mark.parametrize(
    ("fields", "expires"),
    [
        ({"expires_in_s": 20.0}, False),
        ({"expires_in_s": 19.9}, True),
        ({"expires_in_s": -5.0}, True),
        ({"expires_in_s": None}, False),
        ({"expires_in_s": 90.0, "consumed_per_s": 1.0, "entries": 100}, False),
        ({"expires_in_s": 90.0, "consumed_per_s": 1.0, "entries": 101}, True),
        ({"expires_in_s": 90.0, "consumed_per_s": 0.0, "entries": 101}, False),
        ({"expires_in_s": -5.0, "entries": 0}, False),
    ],
)
def test_messages_that_will_outlive_the_ttl_are_reported(
    fields: dict[str, Any], expires: bool
) -> None:
    row = subscription("s", A, **{"entries": 5, "age_s": 80.0, "consumed_per_s": None, **fields})
    assert kinds(row, ttl_s=100) == [(CRITICAL, "expiring")] * expires
    assert kinds(row, ttl_s=0) == []


def test_what_nothing_keeps_is_summed_by_topic() -> None:
    def held(name: str, size: int, cause: str = "untrimmed") -> Any:
        return blank("storage", topic=name, cause=cause, bytes_on_bookies=size)

    half = attention.UNTRIMMED_BYTES // 2
    rows = nothing()
    rows.storage = [held(A, half), held(A, half), held(B, half), held(B, half, "retention")]
    (found,) = findings(rows)
    assert (found.severity, found.kind, found.topic) == (WARNING, "untrimmed", A)
    assert (found.subscription, found.weight) == ("", float(2 * half))
    assert found.text == "64.0 MiB on bookies that nothing keeps"
    rows.storage[1] = held(A, half - 1)
    assert findings(rows) == []


def test_dead_letters_are_reported_with_their_origin() -> None:
    def flow(**fields: Any) -> Any:
        more = {"kind": "dead-letter", "origin": B, "subscription": "s", "messages": 3}
        return blank("flows", topic=A, **{**more, "whole": True, **fields})

    rows = nothing()
    rows.flows = [flow(), flow(whole=False), flow(kind="retry"), flow(messages=0)]
    found = findings(rows)
    assert [(each.severity, each.kind, each.topic) for each in found] == [
        (WARNING, "dead-letters", A)
    ] * 2
    assert [each.text for each in found] == [
        f"3 dead letters of {B}",
        f"3 dead letters of {B} in what was read",
    ]
    assert {(each.subscription, each.weight) for each in found} == {("s", 3.0)}


def skew(**fields: Any) -> list[Finding]:
    numbers = {"top1_share": 0.2, "keyed_messages": 1_000, "keys": 11, "partition_ratio": None}
    row = blank("key_skew", topic=A, **{**numbers, **fields})
    entries = 999 if fields.get("partition_ratio") == 2.5 else 1_000
    return findings(Rows(topics=[topic(A, entries=entries)], key_skew=[row]))


def test_a_hot_key_is_one_of_many_with_much_of_many_messages() -> None:
    (found,) = skew()
    assert (found.severity, found.kind, found.weight) == (NOTE, "hot-key", 1_000.0)
    assert found.text == "one of 11 keys has 20% of the messages"
    for fields in (
        {"top1_share": 0.19},
        {"top1_share": None},
        {"keyed_messages": 999},
        {"keys": 10},
    ):
        assert skew(**fields) == []


def test_a_partition_is_skewed_at_twice_the_mean() -> None:
    (found,) = skew(top1_share=None, partition_ratio=2.0)
    assert (found.severity, found.kind, found.weight) == (NOTE, "skewed-partition", 1_000.0)
    assert found.text == "has 2.0 times the entries of a mean partition"
    assert skew(top1_share=None, partition_ratio=1.9) == []
    assert skew(top1_share=None, partition_ratio=2.5) == [], "of few entries"


def test_findings_are_few_and_the_worst_first() -> None:
    rows = nothing()
    rows.topics = [topic(A), topic(B)]
    rows.subscriptions = [
        subscription(f"s{n:03d}", name, entries=5, trend="stalled", since_s=1.0, age_s=0.0)
        for n in range(FINDINGS_MAX)
        for name in (B, A)
    ]
    rows.subscriptions[7].error, rows.subscriptions[7].entries = "lost", None
    found = findings(rows)
    assert len(found) == FINDINGS_MAX
    assert found[0].kind == "unreadable"
    assert [(each.topic, each.subscription) for each in found[1:3]] == [(B, "s000"), (B, "s001")]


def test_the_furthest_behind_are_named_first() -> None:
    rows = nothing()
    rows.subscriptions = [
        subscription("caught-up", A),
        subscription("small", A, entries=9, bytes=5),
        subscription("large", A, entries=2, bytes=50, age_s=7.0, trend="growing",
                     growth_per_s=1.0, drains_in_s=None),
        subscription("broken", A, entries=None, bytes=None, error="lost"),
        subscription("many", A, entries=10, bytes=5),
    ]  # fmt: skip
    names = [each["subscription"] for each in worst(rows, 9)]
    assert names == ["broken", "large", "many", "small"]
    assert worst(rows, 2)[1] == {
        "topic": A,
        "subscription": "large",
        "entries": 2,
        "bytes": 50,
        "delayedMessages": None,
        "nextDeliveryMs": None,
        "ageSeconds": 7.0,
        "trend": "growing",
        "growthPerSecond": 1.0,
        "drainsInSeconds": None,
    }
    assert len(worst(rows, 2)) == 2


def test_a_namespaces_record_is_of_its_own_topics_alone() -> None:
    rows = nothing()
    rows.topics = [topic(A, bytes_on_bookies=7), topic(B, namespace="acme/other")]
    other = {"namespace": "acme/other"}
    rows.subscriptions = [
        subscription("g", A, entries=3, messages=5, bytes=30, trend="growing", age_s=9.0,
                     drains_in_s=4.0, holds_bytes=100),
        subscription("s", A, entries=2, messages=2, bytes=20, trend="stalled", age_s=8.0,
                     drains_in_s=3.0, holds_bytes=11),
        subscription("e", A, entries=0, trend="stalled", holds_bytes=2),
        subscription("u", A, entries=1, messages=1, bytes=10, age_s=1.0, drains_in_s=0.0),
        subscription("x", B, entries=9, messages=9, bytes=9, trend="stalled", **other),
    ]  # fmt: skip
    noticed = [
        Finding(WARNING, "stalled", A, "s", "", "", 1.0),
        Finding(CRITICAL, "growing", B, "x", "", "", 1.0),
        *(Finding(NOTE, "hot-key", A, f"{n}", "", "", 1.0) for n in range(WORST)),
    ]
    record = published("acme/shop", rows, noticed, NOW_MS)
    assert (record.at_ms, record.topics, record.subscriptions) == (NOW_MS, 1, 4)
    assert (record.behind, record.growing, record.stalled, record.unknown) == (3, 1, 2, 1)
    assert (record.unreadable, record.expiring, record.held_bytes) == (0, 0, 13)
    assert (record.backlog_entries, record.backlog_messages, record.backlog_bytes) == (6, 8, 60)
    assert (record.oldest_age_seconds, record.drains_in_seconds) == (9.0, 4.0)
    assert record.bytes_on_bookies == 7
    assert [each.subscription for each in record.worst] == ["g", "s", "u"]
    assert len(record.findings) == WORST
    first = record.findings[0]
    assert (first.severity, first.kind, first.topic, first.subscription) == (
        "warning", "stalled", A, "s"
    )  # fmt: skip
    lost = rows.subscriptions[3]
    lost.error, lost.messages, lost.drains_in_s = "lost", None, None
    record = published("acme/shop", rows, [], NOW_MS)
    assert (record.unreadable, record.unknown, record.backlog_messages) == (1, 0, None)
    assert record.drains_in_seconds is None
    nobody = published("acme/none", rows, noticed, NOW_MS)
    assert (nobody.topics, nobody.behind, nobody.backlog_messages) == (0, 0, 0)
    assert (nobody.oldest_age_seconds, nobody.findings) == (0.0, [])


def test_a_part_of_a_sum_is_no_sum() -> None:
    assert (total([1, 2]), total([1, None]), total([])) == (3, None, 0)


def lines_of(name: str, lines: list[str]) -> list[str]:
    full = f"magnetar_backlog_{name}"
    return [line.removeprefix(full) for line in lines if line.startswith((f"{full}{{", f"{full} "))]


def test_every_figure_is_a_series_of_its_subscription_or_topic() -> None:
    rows = nothing()
    rows.topics = [
        topic(A, bytes_on_bookies=5, bytes_cold=6, sampled=True),
        topic(B, bytes_on_bookies=9, scanned_entries=0, namespace="acme/other"),
    ]
    rows.subscriptions = [
        subscription("s", A, entries=3, messages=4, bytes=30, age_s=1.5, expires_in_s=7.0,
                     growth_per_s=-0.5, consumed_per_s=2.0, drains_in_s=6.0, acked_ranges=2,
                     holds_bytes=11, delayed_messages=2, trend="draining"),
        subscription("lost", A, entries=None, messages=None, bytes=None, error="gone",
                     bytes_exact=None, messages_exact=False),
    ]  # fmt: skip
    rows.storage = [
        blank("storage", topic=A, cause=cause, bytes_on_bookies=size)
        for cause, size in (("open", 2), ("retention", 3), ("open", 4))
    ]
    rows.what_if = [
        blank("what_if", topic=A, scenario=name, bytes_on_bookies=size)
        for name, size in (("now", 8), ("ttl=1h", 9))
    ]
    rows.key_skew = [blank("key_skew", topic=A, top1_share=0.25)]
    rows.flows = [blank("flows", topic=A, kind="retry", origin=B, messages=12)]
    lines = metrics.text(rows, NOW_MS).splitlines()
    of_topic = f'namespace="acme/shop",topic="{A}"'
    s, lost = (f'{{{of_topic},subscription="{name}"}}' for name in ("s", "lost"))
    expected = {
        "entries": [f"{s} 3"],
        "messages": [f"{s} 4"],
        "delayed_messages": [f"{s} 2"],
        "bytes": [f"{s} 30"],
        "oldest_age_seconds": [f"{s} 1.5"],
        "expires_seconds": [f"{s} 7"],
        "growth_entries_per_second": [f"{s} -0.5"],
        "consumed_entries_per_second": [f"{s} 2"],
        "drain_seconds": [f"{s} 6"],
        "acked_ranges": [f"{s} 2", f"{lost} 0"],
        "held_bookie_bytes": [f"{s} 11", f"{lost} 0"],
        "messages_exact": [f"{s} 1"],
        "bytes_exact": [f"{s} 1"],
        "unreadable": [f"{s} 0", f"{lost} 1"],
        "trend": [
            f'{{{of_topic},subscription="s",trend="draining"}} 1',
            f'{{{of_topic},subscription="lost",trend="unknown"}} 1',
        ],
        "topic_bookie_bytes": [
            f'{{{of_topic},cause="open"}} 6',
            f'{{{of_topic},cause="retention"}} 3',
        ],
        "topic_cold_bytes": [f'{{namespace="acme/other",topic="{B}"}} 0', f"{{{of_topic}}} 6"],
        "topic_freeable_bytes": [f"{{{of_topic}}} 8"],
        "topic_hot_key_ratio": [f"{{{of_topic}}} 0.25"],
        "topic_republished_messages": [f'{{{of_topic},kind="retry",origin="{B}"}} 12'],
        "topic_sampled": [f"{{{of_topic}}} 1"],
        "total_entries": [" 3"],
        "total_bytes": [" 30"],
        "run_timestamp_seconds": [f" {NOW_MS / 1000:.17g}"],
    }
    assert {name: lines_of(name, lines) for name in expected} == expected
    assert {f"magnetar_backlog_{name}" for name in expected} == set(metrics.names())
    for name in metrics.names():
        at = lines.index(f"# TYPE {name} gauge")
        assert lines[at - 1].startswith(f"# HELP {name} ")
        assert len(lines[at - 1]) > len(f"# HELP {name} ")


def test_of_many_the_largest_have_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_MAX", 1)
    rows = nothing()
    rows.topics = [topic(A, bytes_on_bookies=5), topic(B, bytes_on_bookies=9)]
    rows.subscriptions = [
        subscription(name, A, entries=entries) for name, entries in (("a", 1), ("b", 3), ("c", 2))
    ]
    for table, fields in (("storage", {"cause": "open"}), ("what_if", {"scenario": "now"})):
        held = [blank(table, topic=name, bytes_on_bookies=1, **fields) for name in (A, B)]
        setattr(rows, table, held)
    rows.flows = [blank("flows", topic=A, kind="retry", origin=B, messages=12)]
    rows.key_skew = [blank("key_skew", topic=A, top1_share=0.25)]
    lines = metrics.text(rows, NOW_MS).splitlines()
    assert ['"b"' in line for line in lines_of("entries", lines)] == [True]
    assert lines_of("total_entries", lines) == [" 6"]
    for name in ("cold_bytes", "bookie_bytes", "freeable_bytes"):
        assert [B in line for line in lines_of(f"topic_{name}", lines)] == [True]
    for name in ("hot_key_ratio", "republished_messages"):
        assert lines_of(f"topic_{name}", lines) == []
