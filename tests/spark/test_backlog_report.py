"""The report, the metrics and the findings of job `backlog`, made of rows alone."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_spark.jobs.backlog import metrics, report
from magnetar_spark.jobs.backlog.attention import Severity, findings
from magnetar_spark.jobs.backlog.charts import nice_ceiling, shortened
from magnetar_spark.jobs.backlog.shown import bytes_text, count_text, duration_text
from magnetar_spark.jobs.backlog.tables import SCHEMAS, TABLES, Rows, described, table

NOW_MS = 1_795_300_000_000
TOPIC = "persistent://acme/shop/orders"
HOSTILE = '</title><script>alert("1")</script>&\n\\'
DOCS = Path(__file__).parents[2] / "docs" / "backlog.md"


def blank(name: str, **given: Any) -> dict[str, Any]:
    """A row with nothing in it but what is given."""
    row: dict[str, Any] = dict.fromkeys(SCHEMAS[name].names)
    return {**row, "topic": TOPIC, **given}


def topic(name: str = TOPIC, **given: Any) -> dict[str, Any]:
    numbers = {"entries": 10, "bytes": 100, "bytes_on_bookies": 200, "bytes_cold": 0}
    scanned = {"scanned_entries": 10, "scanned_messages": 10, "scanned_bytes": 100}
    about = {"topic": name, "parent": name, "partition": -1, "namespace": "acme/shop", "ttl_s": 0}
    return blank("topics", **{**numbers, **scanned, **about, **given})


def subscription(name: str, topic_name: str = TOPIC, **given: Any) -> dict[str, Any]:
    about = {"topic": topic_name, "parent": topic_name, "partition": -1, "namespace": "acme/shop"}
    numbers = {"entries": 0, "messages": 0, "bytes": 0, "holds_bytes": 0, "acked_ranges": 0}
    more = {"messages_exact": True, "bytes_exact": True, "error": "", "trend": "unknown"}
    last = {"asked": False, "type": "", "held_by": "", "subscription": name, "acked_beyond": 0}
    return blank("subscriptions", **{**about, **numbers, **more, **last, **given})


def nothing() -> Rows:
    return {name: [] for name in TABLES}


def page(rows: Rows, top: int = 20) -> ET.Element:
    text = report.html(rows, findings(rows), ["A note."], NOW_MS, None, top)
    return ET.fromstring(text.partition("\n")[2])  # noqa: S314 - our own


def test_a_cluster_without_topics_has_a_report() -> None:
    whole = page(nothing())
    assert next(whole.iter("h1")).text == "Backlog report"
    assert "Nothing." in "".join(whole.itertext())
    assert metrics.text(nothing(), NOW_MS).count("# TYPE") == len(metrics.names())


def test_names_cannot_break_out() -> None:
    rows = nothing()
    rows["topics"] = [topic(HOSTILE)]
    rows["subscriptions"] = [
        subscription(
            HOSTILE, HOSTILE, entries=3, bytes=30, trend="stalled", since_s=60.0, age_s=9.0
        )
    ]
    rows["keys"] = [
        blank("keys", topic=HOSTILE, key_text=HOSTILE, messages=3, bytes=3, share=1.0, rank=1)
    ]
    whole = page(rows)
    assert not list(whole.iter("script"))
    assert HOSTILE.partition("\n")[0] in "".join(whole.itertext())
    line = next(
        line
        for line in metrics.text(rows, NOW_MS).split("\n")
        if line.startswith("magnetar_backlog_entries{")
    )
    assert '\\"1\\"' in line
    assert line.endswith('&\\n\\\\"} 3')


def test_the_first_are_shown_and_the_rest_summed() -> None:
    rows = nothing()
    rows["topics"] = [topic()]
    rows["subscriptions"] = [
        subscription(f"s{number}", entries=number, bytes=number * 1024) for number in range(1, 11)
    ]
    text = " ".join("".join(page(rows, top=3).itertext()).split())
    assert "7 others" in text
    assert bytes_text(sum(range(1, 8)) * 1024) in text
    assert "orders · s8" in text
    assert "orders · s7" not in text


def test_findings_are_in_order_of_weight() -> None:
    rows = nothing()
    rows["topics"] = [topic(ttl_s=100)]
    rows["subscriptions"] = [
        subscription("slow", entries=5, trend="growing", growth_per_s=1.0, published_per_s=3.0,
                     consumed_per_s=2.0),
        subscription("dead", entries=9, trend="stalled", since_s=60.0, age_s=7200.0, consumers=0),
        subscription("new", entries=99, trend="stalled", since_s=60.0, age_s=10.0),
        subscription("lost", entries=None, messages=None, bytes=None, error="its ledger is gone"),
        subscription("fine", entries=0, trend="empty"),
    ]  # fmt: skip
    found = findings(rows)
    assert [(each.subscription, each.kind) for each in found] == [
        ("dead", "stalled"),
        ("dead", "expiring"),
        ("slow", "growing"),
        ("lost", "unreadable"),
        ("new", "stalled"),
    ]
    assert [each.severity for each in found[-2:]] == [Severity.CRITICAL, Severity.WARNING]


def test_what_is_not_known_is_no_metric() -> None:
    rows = nothing()
    rows["topics"] = [topic()]
    rows["subscriptions"] = [subscription("s", entries=7, bytes=70)]
    lines = metrics.text(rows, NOW_MS).splitlines()
    labels = f'{{namespace="acme/shop",topic="{TOPIC}",subscription="s"}}'
    assert f"magnetar_backlog_entries{labels} 7" in lines
    assert not any(line.startswith("magnetar_backlog_drain_seconds{") for line in lines)
    assert "magnetar_backlog_total_bytes 70" in lines
    names = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    assert names <= set(metrics.names())


def test_rows_have_exactly_the_columns() -> None:
    whole = table("sizes", [blank("sizes", below_bytes=8, messages=1, bytes=5)])
    assert whole.schema.equals(SCHEMAS["sizes"])
    with pytest.raises(ValueError, match="other columns: extra"):
        table("sizes", [blank("sizes", extra=1)])


def test_docs_have_every_table_column_and_metric() -> None:
    text = DOCS.read_text()
    for name, (meaning, columns) in described().items():
        assert f"### `{name}`" in text
        assert meaning in text
        for column, _, what in columns:
            assert f"| `{column}` |" in text, (name, column)
            assert what in text, (name, column)
    for name in metrics.names():
        assert f"`{name}`" in text


@settings(deadline=None)
@given(st.floats(1e-6, 1e15))
def test_axes_hold_what_is_on_them(value: float) -> None:
    assert value <= nice_ceiling(value) * (1 + 1e-6)
    assert nice_ceiling(value) <= value * 2.5 * (1 + 1e-6)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_long_names_are_shortened(text: str) -> None:
    assert len(shortened(text)) <= max(len(text), 50)
    assert len(shortened(text)) <= 50


def test_numbers_for_people() -> None:
    assert [bytes_text(each) for each in (None, 0, 1023, 1536, 5 << 30)] == [
        "?", "0 B", "1,023 B", "1.5 KiB", "5.0 GiB"
    ]  # fmt: skip
    assert [count_text(each) for each in (None, 99_999, 1_234_567)] == ["?", "99,999", "1.2 M"]
    assert [duration_text(each) for each in (None, 1.5, 65, 7200, 90_061)] == [
        "?", "1.5 s", "1 min 5 s", "2 h", "1 d 1 h"
    ]  # fmt: skip
