"""The sections of the report that are based on scanned entries. Pure."""

from collections import Counter
from datetime import UTC, datetime
from typing import Final

from magnetar_spark.jobs.backlog.report.charts import (
    Bar,
    Segment,
    columns_chart,
    legend,
    rows_chart,
)
from magnetar_spark.jobs.backlog.report.numbers import (
    UNKNOWN,
    bytes_text,
    count_text,
    short_topic,
    time_text,
)
from magnetar_spark.jobs.backlog.report.page import Cell, section, table
from magnetar_spark.jobs.backlog.report.parts import approximately, label, topped
from magnetar_spark.jobs.backlog.tables.tables import KeySkewRow, Rows

TIME_COLUMNS_MAX: Final = 120
RATE_SERIES: Final = 6
MINUTE_MS: Final = 60_000


def _of_sample(rows: Rows) -> str:
    """A remark if only samples of topics were scanned, so that counts are the samples'."""
    sampled = [row.topic for row in rows.topics if row.sampled]
    if not sampled:
        return ""
    which = short_topic(sampled[0]) if len(sampled) == 1 else f"{len(sampled)} topics"
    return f" Of {which} a sample was read: counts are the sample's."


def unread_keys(rows: Rows, top: int) -> str:
    """The section of keys with the oldest unread messages."""
    oldest = [row for row in rows.unread_keys if row.rank_oldest <= top]
    oldest.sort(key=lambda row: (row.oldest is None, row.oldest, row.rank_oldest))
    if not oldest:
        return ""
    cells: list[list[Cell]] = [
        [
            ("name", row.key_text if row.key_text is not None else "(no key)"),
            ("name", label(row)),
            ("n", approximately(count_text(row.messages), not row.sampled)),
            ("n", time_text(row.oldest)),
            ("name", f"{row.ledger_id}:{row.entry_id}"),
            ("name", row.held_by),
        ]
        for row in oldest[:top]
    ]
    heads: list[Cell] = ["Key", "Subscription", ("n", "Messages"), ("n", "Oldest published")]
    heads += ["At", "Held by"]
    return section(
        "Oldest unread by key",
        "Keys whose first unread message waits longest.",
        table(heads, cells),
    )


def hot_keys(rows: Rows, top: int) -> str:
    """The section of hot keys and of their distribution."""
    if not rows.keys:
        return ""
    shown = sorted(rows.keys, key=lambda row: -row.messages)[:top]
    bars = [
        Bar(
            f"{row.key_text} · {short_topic(row.topic)}",
            f"{count_text(row.messages)} · {row.share:.1%}",
            (
                Segment(
                    "s3",
                    row.messages,
                    f"{row.key_text} in {short_topic(row.topic)}: {row.messages:,} "
                    f"messages, {bytes_text(row.bytes)}",
                ),
            ),
        )
        for row in shown
    ]
    spread = [row for row in rows.key_skew if row.keys]
    spread.sort(key=lambda row: (-(row.top1_share or 0), row.topic))
    cells: list[list[Cell]] = [
        [
            ("name", short_topic(row.topic)),
            ("n", count_text(row.keyed_messages)),
            ("n", count_text(row.keys)),
            *(("n", f"{share or 0:.1%}") for share in _top_shares(row)),
            ("n", "-" if row.partition_ratio is None else f"{row.partition_ratio:.2f}"),
        ]
        for row in spread[:top]
    ]
    heads: list[Cell] = ["Topic or partition"]
    names = ("Keyed messages", "Keys", "Top key", "Top 10", "Top 100", "By mean partition")
    heads += [("n", name) for name in names]
    return section(
        "Hot keys and skew",
        "Of the messages that were read." + _of_sample(rows),
        rows_chart(bars, "Messages by key"),
        table(heads, cells),
    )


def _top_shares(row: KeySkewRow) -> tuple[float | None, ...]:
    return row.top1_share, row.top10_share, row.top100_share


def flows(rows: Rows, top: int) -> str:
    """The section of dead letters and retries."""
    shown, _, _ = topped(rows.flows, lambda row: row.messages, top)
    cells: list[list[Cell]] = [
        [
            row.kind,
            ("name", short_topic(row.topic)),
            ("name", short_topic(row.origin)),
            ("name", row.subscription or UNKNOWN),
            ("n", approximately(count_text(row.messages), row.whole)),
            ("n", UNKNOWN if row.per_hour is None else f"{count_text(row.per_hour)}/h"),
            ("n", f"{row.redeliveries_mean:.1f} / {row.redeliveries_max}"),
            ("n", time_text(row.last)),
        ]
        for row in shown
    ]
    heads: list[Cell] = ["Kind", "In", "First sent to", "Given up by", ("n", "Messages")]
    heads += [("n", "Rate"), ("n", "Redeliveries mean / most"), ("n", "Last")]
    if not cells:
        return section("Dead letters and retries", "None in what was read.")
    return section(
        "Dead letters and retries", "By where they were sent first.", table(heads, cells)
    )


def rates(rows: Rows, _top: int) -> str:
    """The section of messages over time."""
    minutes_of_topics = rows.rates
    if not minutes_of_topics:
        return ""
    totals: dict[str, int] = {}
    for row in minutes_of_topics:
        totals[row.topic] = totals.get(row.topic, 0) + row.messages
    named = sorted(totals, key=lambda topic: (-totals[topic], topic))[:RATE_SERIES]
    css = {topic: f"s{number}" for number, topic in enumerate(named)}
    first = min(row.minute for row in minutes_of_topics)
    last = max(row.minute for row in minutes_of_topics)
    minutes = max(1, -(-((last - first) // MINUTE_MS + 1) // TIME_COLUMNS_MAX))
    width_ms = minutes * MINUTE_MS
    columns: dict[int, dict[str, int]] = {at: {} for at in range(first, last + 1, width_ms)}
    for row in minutes_of_topics:
        at = first + (row.minute - first) // width_ms * width_ms
        series = css.get(row.topic, "other")
        columns[at][series] = columns[at].get(series, 0) + row.messages
    names = {css[topic]: short_topic(topic) for topic in named} | {"other": "others"}
    bars = [
        Bar(
            f"{datetime.fromtimestamp(at / 1000, UTC):%d. %H:%M}",
            "",
            tuple(
                Segment(
                    series,
                    counts[series],
                    f"{time_text(at)}, {names[series]}: {counts[series]:,} messages",
                )
                for series in names
                if series in counts
            ),
        )
        for at, counts in sorted(columns.items())
    ]
    keys = [(key, name) for key, name in names.items() if key != "other" or len(totals) > len(css)]
    width = "minute" if minutes == 1 else f"{minutes} minutes"
    return section(
        "Messages over time",
        f"Published in each {width} (UTC), in the messages read." + _of_sample(rows),
        legend(keys),
        columns_chart(bars, "Messages over time"),
    )


def rate_histogram(rows: Rows, _top: int) -> str:
    """The section with a histogram of messages per minute, from each topic's first to its last."""
    by_topic: dict[str, dict[int, int]] = {}
    for row in rows.rates:
        by_topic.setdefault(row.topic, {})[row.minute] = row.messages
    if not by_topic:
        return ""
    counts: Counter[int] = Counter()
    for minutes in by_topic.values():
        counts.update(messages.bit_length() for messages in minutes.values())
        counts[0] += (max(minutes) - min(minutes)) // MINUTE_MS + 1 - len(minutes)
    bars = []
    for power in range(max(counts) + 1):
        low, high = (1 << power) // 2, (1 << power) - 1
        span = f"{count_text(low)} to {count_text(high)}" if low < high else count_text(low)
        tip = f"{counts[power]:,} minutes with {span} messages"
        bars.append(Bar(span, "", (Segment("s2", counts[power], tip),)))
    return section(
        "Rates",
        "Minutes of topics, by the messages that were published in them." + _of_sample(rows),
        columns_chart(bars, "Minutes by messages", labels_max=10),
    )


def sizes(rows: Rows, _top: int) -> str:
    """The section with a histogram of message sizes."""
    sums: dict[int, list[int]] = {}
    for row in rows.sizes:
        total = sums.setdefault(row.below_bytes, [0, 0])
        total[0] += row.messages
        total[1] += row.bytes
    if not sums:
        return ""
    below = min(sums)
    bars = []
    while below <= max(sums):
        messages, size = sums.get(below, (0, 0))
        text = f"below {bytes_text(below)}: {messages:,} messages, {bytes_text(size)}"
        bars.append(Bar(f"< {bytes_text(below)}", "", (Segment("s5", messages, text),)))
        below *= 2
    return section(
        "Message sizes",
        "Of values, uncompressed, in the messages read; a column has sizes from half its label on."
        + _of_sample(rows),
        columns_chart(bars, "Messages by size", labels_max=10),
    )
