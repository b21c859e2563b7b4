"""Writes `metrics.prom`: the run's results in Prometheus's text format. Pure.

The file is for node_exporter's textfile collector, or any scraper of files. Labels are those of the
brokers' metrics. Unknown values are left out, rather than written as 0. SERIES_MAX subscriptions
and topics have series of their own, the largest backlogs first; totals cover all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final, TypeVar

from magnetar_spark.jobs.backlog.tables.tables import (
    Rows,
    StorageRow,
    SubscriptionRow,
    TopicRow,
)

R = TypeVar("R")

SERIES_MAX: Final = 10_000
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}

_BY_SUBSCRIPTION: Final = (
    ("entries", "entries", "Unacknowledged entries (brokers' msgBacklog)."),
    ("messages", "messages", "Unacknowledged messages: see messages_exact."),
    (
        "delayed_messages",
        "delayed_messages",
        "Unacknowledged messages whose delivery time has not come: see messages_exact.",
    ),
    ("bytes", "bytes", "Bytes of the unacknowledged entries: see bytes_exact."),
    ("oldest_age_seconds", "age_s", "Age of the oldest unacknowledged message."),
    ("expires_seconds", "expires_in_s", "Time until the oldest message expires by TTL."),
    ("growth_entries_per_second", "growth_per_s", "Growth since the last run."),
    ("consumed_entries_per_second", "consumed_per_s", "Consumption since the last run."),
    (
        "drain_seconds",
        "drains_in_s",
        "Time until the backlog is empty, at the rate since the last run.",
    ),
    ("acked_ranges", "acked_ranges", "Acknowledged runs after the oldest message."),
    (
        "held_bookie_bytes",
        "holds_bytes",
        "Bytes on bookies that are kept because it is furthest behind.",
    ),
)
_EXACT: Final = (
    ("messages", "1: counted; 0: estimated from a sample."),
    ("bytes", "1: as the broker's; 0: estimated for the newest ledger."),
)
_BY_TOPIC: Final = (
    "bookie_bytes", "cold_bytes", "freeable_bytes", "hot_key_ratio", "republished_messages",
    "sampled",
)  # fmt: skip


def names() -> list[str]:
    """The names of all metrics."""
    fixed = ("messages_exact", "bytes_exact", "trend", "unreadable")
    more = (f"topic_{name}" for name in _BY_TOPIC)
    last = ("total_entries", "total_bytes", "run_timestamp_seconds")
    by_subscription = (name for name, _, _ in _BY_SUBSCRIPTION)
    return [f"magnetar_backlog_{name}" for name in (*by_subscription, *fixed, *more, *last)]


def text(rows: Rows, now_ms: int) -> str:
    """The contents of the file."""
    return "".join(f"{line}\n" for line in _lines(rows, now_ms))


def _lines(rows: Rows, now_ms: int) -> Iterator[str]:
    yield from _of_subscriptions(rows)
    yield from _of_topics(rows)
    totals = {
        "total_entries": sum(row.entries or 0 for row in rows.subscriptions),
        "total_bytes": sum(row.bytes or 0 for row in rows.subscriptions),
    }
    for name, total in totals.items():
        yield from _family(name, "Sum over all subscriptions.", [total], _no_labels, float)
    yield from _family(
        "run_timestamp_seconds", "Time of the run.", [now_ms / 1000], _no_labels, float
    )


def _of_subscriptions(rows: Rows) -> Iterator[str]:
    behind = sorted(rows.subscriptions, key=lambda row: -(row.entries or 0))[:SERIES_MAX]
    for name, column, help_text in _BY_SUBSCRIPTION:
        yield from _family(name, help_text, behind, _labels, attrgetter(column))
    for name, help_text in _EXACT:
        with_value = [row for row in behind if getattr(row, name) is not None]
        exact = f"{name}_exact"
        yield from _family(exact, help_text, with_value, _labels, attrgetter(exact))
    yield from _family(
        "trend",
        "1 for the trend of each backlog.",
        behind,
        lambda row: {**_labels(row), "trend": row.trend},
        lambda _: 1,
    )
    yield from _family(
        "unreadable",
        "1: the state of the cursor cannot be read.",
        behind,
        _labels,
        lambda row: bool(row.error),
    )


def _of_topics(rows: Rows) -> Iterator[str]:
    topics = sorted(rows.topics, key=lambda row: -row.bytes_on_bookies)[:SERIES_MAX]
    shown = {row.topic: row for row in topics}
    yield from _family(
        "topic_bookie_bytes",
        "Bytes on bookies, all copies, by cause.",
        _by_cause(rows.storage, shown).items(),
        lambda item: {**_of_topic(shown[item[0][0]]), "cause": item[0][1]},
        lambda item: item[1],
    )
    yield from _family(
        "topic_cold_bytes", "Bytes in the object store.", topics, _of_topic,
        lambda row: row.bytes_cold,
    )  # fmt: skip
    yield from _family(
        "topic_freeable_bytes",
        "Bytes on bookies that the limits in force would free.",
        [row for row in rows.what_if if row.scenario == "now" and row.topic in shown],
        lambda row: _of_topic(shown[row.topic]),
        lambda row: row.bytes_on_bookies,
    )
    yield from _family(
        "topic_hot_key_ratio",
        "Share of the most frequent key in the keyed messages that were read.",
        [row for row in rows.key_skew if row.topic in shown],
        lambda row: _of_topic(shown[row.topic]),
        lambda row: row.top1_share,
    )
    yield from _family(
        "topic_republished_messages",
        "Dead letters and retries that were read, by original topic.",
        [row for row in rows.flows if row.topic in shown],
        lambda row: {
            **_of_topic(shown[row.topic]), "kind": row.kind, "origin": row.origin
        },
        lambda row: row.messages,
    )  # fmt: skip
    yield from _family(
        "topic_sampled",
        "1: the figures are those of a sample of the backlog.",
        [row for row in topics if row.scanned_entries],
        _of_topic,
        attrgetter("sampled"),
    )


def _by_cause(
    storage: Iterable[StorageRow], shown: Mapping[str, TopicRow]
) -> dict[tuple[str, str], int]:
    """Bytes on bookies by topic and cause."""
    sums: dict[tuple[str, str], int] = {}
    for row in storage:
        if row.topic in shown:
            key = (row.topic, row.cause)
            sums[key] = sums.get(key, 0) + row.bytes_on_bookies
    return dict(sorted(sums.items()))


def _labels(row: SubscriptionRow) -> dict[str, str]:
    return {"namespace": row.namespace, "topic": row.topic, "subscription": row.subscription}


def _of_topic(row: TopicRow) -> dict[str, str]:
    return {"namespace": row.namespace, "topic": row.topic}


def _no_labels(_: object) -> dict[str, str]:
    return {}


def _family(
    name: str,
    help_text: str,
    rows: Iterable[R],
    labels: Callable[[R], dict[str, str]],
    value: Callable[[R], float | None],
) -> Iterator[str]:
    """The lines of one metric; rows without a value are left out."""
    full = f"magnetar_backlog_{name}"
    yield f"# HELP {full} {help_text}"
    yield f"# TYPE {full} gauge"
    for row in rows:
        number = value(row)
        if number is None:
            continue
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels(row).items())
        yield f"{full}{{{pairs}}} {float(number):.17g}" if pairs else f"{full} {float(number):.17g}"


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(char, char) for char in text)
