"""The report, the metrics and the findings of the job `backlog`, from rows alone."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from magnetar_spark.jobs.backlog.analyse.attention import Severity, expiring, findings
from magnetar_spark.jobs.backlog.analyse.causes import Cause
from magnetar_spark.jobs.backlog.analyse.published import published
from magnetar_spark.jobs.backlog.report import metrics, report
from magnetar_spark.jobs.backlog.report.charts import nice_ceiling, shortened
from magnetar_spark.jobs.backlog.report.numbers import bytes_text, count_text, duration_text
from magnetar_spark.jobs.backlog.report.parts import CAUSES
from magnetar_spark.jobs.backlog.tables.tables import (
    ROW_TYPES,
    SCHEMAS,
    Rows,
    SizeRow,
    arrow_table,
    described,
    rows_from,
)

NOW_MS = 1_795_300_000_000
TOPIC = "persistent://acme/shop/orders"
HOSTILE = '</title><script>alert("1")</script>&\n\\'
DOCS = Path(__file__).parents[2] / "docs" / "run" / "backlog.md"


def blank(name: str, **given: Any) -> Any:
    """Returns a table row with only the given values."""
    columns: dict[str, Any] = dict.fromkeys(SCHEMAS[name].names)
    return ROW_TYPES[name](**{**columns, "topic": TOPIC, **given})


def topic(name: str = TOPIC, **given: Any) -> Any:
    numbers = {"entries": 10, "bytes": 100, "bytes_on_bookies": 200, "bytes_cold": 0}
    scanned = {
        "sampled": False,
        "scanned_entries": 10,
        "scanned_messages": 10,
        "scanned_bytes": 100,
    }
    about = {"topic": name, "parent": name, "partition": -1, "namespace": "acme/shop", "ttl_s": 0}
    return blank("topics", **{**numbers, **scanned, **about, **given})


def subscription(name: str, topic_name: str = TOPIC, **given: Any) -> Any:
    about = {"topic": topic_name, "parent": topic_name, "partition": -1, "namespace": "acme/shop"}
    numbers = {"entries": 0, "messages": 0, "bytes": 0, "holds_bytes": 0, "acked_ranges": 0}
    more = {"messages_exact": True, "bytes_exact": True, "error": "", "trend": "unknown"}
    last = {"asked": False, "type": "", "held_by": "", "subscription": name, "acked_beyond": 0}
    return blank("subscriptions", **{**about, **numbers, **more, **last, **given})


def nothing() -> Rows:
    return Rows()


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
    rows.topics = [topic(HOSTILE)]
    rows.subscriptions = [
        subscription(
            HOSTILE, HOSTILE, entries=3, bytes=30, trend="stalled", since_s=60.0, age_s=9.0
        )
    ]
    rows.keys = [
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
    rows.topics = [topic()]
    rows.subscriptions = [
        subscription(f"s{number}", entries=number, bytes=number * 1024) for number in range(1, 11)
    ]
    text = " ".join("".join(page(rows, top=3).itertext()).split())
    assert "7 others" in text
    assert bytes_text(sum(range(1, 8)) * 1024) in text
    assert "orders · s8" in text
    assert "orders · s7" not in text


def test_findings_are_in_order_of_weight() -> None:
    rows = nothing()
    rows.topics = [topic(ttl_s=100)]
    rows.subscriptions = [
        subscription("slow", entries=5, trend="growing", growth_per_s=1.0, published_per_s=3.0,
                     consumed_per_s=2.0),
        subscription("dead", entries=9, trend="stalled", since_s=60.0, age_s=7200.0, consumers=0,
                     expires_in_s=-7100.0),
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


def test_every_cause_has_its_colour_and_its_number() -> None:
    """Otherwise a bar would be shorter than its sum."""
    on_bookies = set(Cause) - {Cause.COLD, Cause.COMPACTED}
    assert {cause for cause, _, _ in CAUSES} == on_bookies
    assert len({css for _, css, _ in CAUSES}) == len(CAUSES)
    rows = nothing()
    rows.topics = [topic(bytes_cold=5 << 20)]
    rows.storage = [
        blank("storage", cause=cause.value, subscription="", bytes_on_bookies=(n + 1) << 10)
        for n, cause in enumerate(sorted(on_bookies))
    ]
    cells = ["".join(cell.itertext()) for cell in page(rows).iter("td")]
    assert {f"{n + 1}.0 KiB" for n in range(len(on_bookies))} | {"5.0 MiB"} <= set(cells)


def test_rates_are_shared_out_by_minutes() -> None:
    """Minutes without a message between other minutes count, too."""
    rows = nothing()
    minutes = {0: 1, 1: 6, 4: 7, 5: 4}
    rows.rates = [
        blank("rates", minute=NOW_MS // 60_000 * 60_000 + at * 60_000, messages=n, bytes=n)
        for at, n in minutes.items()
    ]
    tips = [each.text or "" for each in page(rows).iter("title")]
    found = [tip for tip in tips if "minutes with" in tip]
    assert found == [
        "2 minutes with 0 messages",
        "1 minutes with 1 messages",
        "3 minutes with 4 to 7 messages",
    ]


def test_what_will_outlive_its_ttl() -> None:
    """The oldest message is about to expire, or new messages wait longer than the TTL."""
    row = subscription("s", entries=900, age_s=10.0, expires_in_s=990.0, consumed_per_s=1.0)
    assert not expiring(row, 0), "there is no TTL"
    assert not expiring(row, 1000)
    assert "is read in 30 min at this rate; the TTL is 16 min" in expiring(
        replace(row, entries=1800), 1000
    )
    assert "15 min old" in expiring(replace(row, age_s=900.0, expires_in_s=100.0), 1000)
    assert not expiring(replace(row, entries=0, expires_in_s=None), 1000)
    rows = nothing()
    rows.topics = [topic(ttl_s=1000)]
    late = replace(row, entries=1800, trend="growing", holds_bytes=7)
    rows.subscriptions = [late, replace(row, trend="stalled", holds_bytes=5)]
    record = published("acme/shop", rows, [], NOW_MS)
    assert (record.expiring, record.held_bytes, record.stalled) == (1, 5, 1)


def test_estimates_say_that_they_are() -> None:
    """The report marks them, metrics have separate series for them, and no sum hides them."""
    rows = nothing()
    rows.topics = [topic(sampled=True)]
    given: dict[str, Any] = {"entries": 1000, "bytes": 10_000}
    rows.subscriptions = [
        subscription("counted", **given, messages=7000),
        subscription("guessed", **given, messages=7123, messages_exact=False),
        subscription("unread", **given, messages=None, messages_exact=False, bytes_exact=False),
    ]
    lines = metrics.text(rows, NOW_MS).splitlines()
    for name, messages, exact in (("counted", 7000, 1), ("guessed", 7123, 0)):
        labels = f'{{namespace="acme/shop",topic="{TOPIC}",subscription="{name}"}}'
        assert f"magnetar_backlog_messages{labels} {messages}" in lines
        assert f"magnetar_backlog_messages_exact{labels} {exact}" in lines
    assert not [line for line in lines if "unread" in line and "_messages" in line]
    assert f'magnetar_backlog_topic_sampled{{namespace="acme/shop",topic="{TOPIC}"}} 1' in lines
    guessed = f'{{namespace="acme/shop",topic="{TOPIC}",subscription="unread"}}'
    assert f"magnetar_backlog_bytes_exact{guessed} 0" in lines
    cells = ["".join(cell.itertext()) for cell in page(rows).iter("td")]
    assert {"7,000", "≈ 7,123", "≈ 9.8 KiB"} <= set(cells)
    assert "7,123" not in cells
    tiles = {
        "".join(each.itertext()) for each in page(rows).iter("div") if each.get("class") == "tile"
    }
    assert any(each.startswith("?") and "messages unread" in each for each in tiles)
    del rows.subscriptions[2]
    tiles = {
        "".join(each.itertext()) for each in page(rows).iter("div") if each.get("class") == "tile"
    }
    assert "≈ 14,123messages unread" in tiles


def test_what_is_not_known_is_no_metric() -> None:
    rows = nothing()
    rows.topics = [topic()]
    rows.subscriptions = [subscription("s", entries=7, bytes=70)]
    lines = metrics.text(rows, NOW_MS).splitlines()
    labels = f'{{namespace="acme/shop",topic="{TOPIC}",subscription="s"}}'
    assert f"magnetar_backlog_entries{labels} 7" in lines
    assert not any(line.startswith("magnetar_backlog_drain_seconds{") for line in lines)
    assert "magnetar_backlog_total_bytes 70" in lines
    names = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    assert names <= set(metrics.names())


def test_rows_become_tables_and_come_back() -> None:
    rows = [blank("sizes", below_bytes=8, messages=1, bytes=5)]
    table = arrow_table("sizes", rows)
    assert table.schema.equals(SCHEMAS["sizes"])
    assert rows_from(SizeRow, table) == rows


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
