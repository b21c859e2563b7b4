"""The sections of the report that are based on cursors and ledgers. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from magnetar_spark.jobs.backlog.analyse.causes import Cause
from magnetar_spark.jobs.backlog.report.charts import Bar, Segment, legend, rows_chart
from magnetar_spark.jobs.backlog.report.numbers import (
    UNKNOWN,
    bytes_text,
    count_text,
    duration_text,
    rate_text,
    short_topic,
    time_text,
)
from magnetar_spark.jobs.backlog.report.page import Cell, section, table
from magnetar_spark.jobs.backlog.tables.tables import (
    AckHoleRow,
    Rows,
    SubscriptionRow,
    UnreadKeyRow,
)

R = TypeVar("R")

CAUSES: Final = (
    (Cause.SUBSCRIPTION, "s4", "slowest subscription"),
    (Cause.RETENTION, "s0", "retention"),
    (Cause.COMPACTION, "s7", "not compacted yet"),
    (Cause.OPEN, "s2", "open ledger"),
    (Cause.UNTRIMMED, "s1", "un-trimmed"),
    (Cause.OFFLOADED, "s3", "offloaded, not let go yet"),
    (Cause.DELETING, "s6", "being deleted"),
    (Cause.CURSORS, "s5", "cursors"),
)


def topped(
    rows: Sequence[R], amount: Callable[[R], int | None], top: int
) -> tuple[list[R], int, int]:
    """The rows with the largest amounts, the sum of the other rows' amounts, and their number.

    Rows without an amount are left out.
    """
    having = sorted((row for row in rows if amount(row)), key=lambda row: -(amount(row) or 0))
    rest = having[top:]
    return having[:top], sum(amount(row) or 0 for row in rest), len(rest)


def label(row: SubscriptionRow | UnreadKeyRow) -> str:
    """The label of a row about a subscription."""
    return f"{short_topic(row.topic)} · {row.subscription}"


def approximately(text: str, exact: bool) -> str:
    """Marks an estimate."""
    return text if exact or text == UNKNOWN else f"≈ {text}"


def backlogs(rows: Rows, top: int) -> str:
    """The section of backlogs by subscription."""
    subscriptions = rows.subscriptions
    shown, rest, others = topped(subscriptions, lambda row: row.bytes, top)
    if not shown:
        return section("Backlogs", "Every subscription has acknowledged everything.")
    bars = [
        Bar(
            label(row),
            f"{bytes_text(row.bytes)} · {count_text(row.entries)} entries",
            (
                Segment(
                    "s0",
                    row.bytes or 0,
                    f"{label(row)}: {bytes_text(row.bytes)}, {row.entries:,} entries",
                ),
            ),
        )
        for row in shown
    ]
    if others:
        text = bytes_text(rest)
        bars.append(Bar(f"{others} others", text, (Segment("other", rest, text),)))
    heads: list[Cell] = ["Topic", "Subscription"]
    heads += [("n", name) for name in ("Entries", "Messages", "Bytes", "Oldest", "Unacked")]
    with_delays = any(row.delayed_messages for row in shown)
    heads += [("n", "Delayed"), "Next delivery"] if with_delays else []
    heads += ["Type", "Held by"]
    cells: list[list[Cell]] = [
        [
            ("name", short_topic(row.topic)),
            ("name", row.subscription),
            ("n", count_text(row.entries)),
            ("n", approximately(count_text(row.messages), row.messages_exact)),
            ("n", approximately(bytes_text(row.bytes), row.bytes_exact)),
            ("n", duration_text(row.age_s)),
            ("n", count_text(row.unacked_messages) if row.asked else "not asked"),
            *(_delays(row) if with_delays else ()),
            row.type or UNKNOWN,
            ("name", row.held_by),
        ]
        for row in shown
    ]
    return section(
        "Backlogs",
        "Bytes and entries that each subscription has not acknowledged.",
        rows_chart(bars, "Unacknowledged bytes by subscription"),
        table(heads, cells),
    )


def _delays(row: SubscriptionRow) -> tuple[Cell, Cell]:
    """The messages that are not due, and when the first of them is."""
    count = approximately(count_text(row.delayed_messages), row.messages_exact)
    return ("n", count), time_text(row.next_delivery) if row.next_delivery else "-"


def movement(rows: Rows, top: int) -> str:
    """The section of growth and time to drain."""
    with_growth = [row for row in rows.subscriptions if row.growth_per_s is not None]
    if not with_growth:
        return section("Growth and time to drain", "Not known: there is no earlier run to compare.")
    with_growth.sort(key=lambda row: (-(row.growth_per_s or 0), -(row.entries or 0)))
    moving = [row for row in with_growth if row.growth_per_s or row.entries]
    bars = [
        Bar(
            label(row),
            f"{'+' if row.growth_per_s > 0 else ''}{rate_text(row.growth_per_s)}",
            (
                Segment(
                    "s4" if row.growth_per_s > 0 else "s2",
                    abs(row.growth_per_s),
                    f"{label(row)}: {row.growth_per_s:+,.2f} entries/s",
                ),
            ),
        )
        for row in moving
        if row.growth_per_s
    ]
    if len(bars) > top:
        bars = sorted(bars, key=lambda bar: -bar.value)[:top]
    cells: list[list[Cell]] = [
        [
            ("name", short_topic(row.topic)),
            ("name", row.subscription),
            row.trend,
            ("n", rate_text(row.published_per_s)),
            ("n", rate_text(row.consumed_per_s)),
            ("n", _drains(row)),
        ]
        for row in moving[:top]
    ]
    heads: list[Cell] = ["Topic", "Subscription", "Trend", ("n", "Published")]
    heads += [("n", "Consumed"), ("n", "Empty in")]
    return section(
        "Growth and time to drain",
        "Entries per second since the earlier run; at that rate a backlog is gone after the last "
        "column.",
        legend([("s4", "grows"), ("s2", "shrinks")]) if bars else "",
        rows_chart(bars, "Growth by subscription") if bars else "",
        table(heads, cells),
    )


def _drains(row: SubscriptionRow) -> str:
    if row.drains_in_s is not None:
        return duration_text(row.drains_in_s)
    return "never" if row.trend in ("growing", "stalled", "steady") else UNKNOWN


def storage(rows: Rows, top: int) -> str:
    """The section of bytes on bookies by topic and cause."""
    sums: dict[str, dict[str, int]] = {}
    needed: dict[str, set[str]] = {}
    for row in rows.storage:
        by_cause = sums.setdefault(row.topic, {})
        by_cause[row.cause] = by_cause.get(row.cause, 0) + row.bytes_on_bookies
        if row.subscription:
            needed.setdefault(row.topic, set()).add(row.subscription)
    ordered = sorted(sums, key=lambda topic: (-sum(sums[topic].values()), topic))
    ordered = [topic for topic in ordered if sum(sums[topic].values())]
    if not ordered:
        return section("Bytes on bookies", "None.")
    bars = [
        _causes_bar(short_topic(topic), sums[topic], needed.get(topic, set()))
        for topic in ordered[:top]
    ]
    if len(ordered) > top:
        rest: dict[str, int] = {}
        for topic in ordered[top:]:
            for cause, size in sums[topic].items():
                rest[cause] = rest.get(cause, 0) + size
        bars.append(_causes_bar(f"{len(ordered) - top} others", rest, set()))
    present = {cause for by_cause in sums.values() for cause, size in by_cause.items() if size}
    series = [(css, name) for cause, css, name in CAUSES if cause.value in present]
    by_topic = {row.topic: row.bytes_cold for row in rows.topics}
    cold = sum(by_topic.values())
    text = "All copies, by what keeps them."
    if cold:
        text += f" {bytes_text(cold)} more are in the object store."
    return section(
        "Bytes on bookies",
        text,
        legend(series),
        rows_chart(bars, "Bytes on bookies by topic and cause"),
        _causes_table(ordered[:top], sums, present, by_topic),
    )


def _causes_table(
    topics: Sequence[str],
    sums: dict[str, dict[str, int]],
    present: set[str],
    cold: dict[str, int],
) -> str:
    """The chart's numbers as a table, with the bytes in the object store."""
    shown = [(cause.value, name) for cause, _, name in CAUSES if cause.value in present]
    heads: list[Cell] = ["Topic", *(("n", name) for _, name in shown)]
    with_cold = any(cold.values())
    if with_cold:
        heads.append(("n", "object store"))
    cells: list[list[Cell]] = []
    for topic in topics:
        line: list[Cell] = [("name", short_topic(topic))]
        line += [("n", _size(sums[topic].get(cause, 0))) for cause, _ in shown]
        if with_cold:
            line.append(("n", _size(cold.get(topic, 0))))
        cells.append(line)
    return table(heads, cells)


def _size(size: int) -> str:
    return bytes_text(size) if size else "-"


def _causes_bar(label: str, by_cause: dict[str, int], needed: Iterable[str]) -> Bar:
    names = ", ".join(sorted(needed))
    segments = []
    for cause, css, name in CAUSES:
        size = by_cause.get(cause.value, 0)
        holders = f" ({names})" if cause is Cause.SUBSCRIPTION and names else ""
        if size:
            segments.append(Segment(css, size, f"{label}: {bytes_text(size)}, {name}{holders}"))
    return Bar(label, bytes_text(sum(by_cause.values())), tuple(segments))


def what_if(rows: Rows, top: int) -> str:
    """The section of bytes that limits would free."""
    scenarios: dict[str, list[int]] = {}
    for row in rows.what_if:
        sums = scenarios.setdefault(row.scenario, [0, 0, 0, 0])
        sums[0] += row.bytes_on_bookies
        sums[1] += row.ledgers
        sums[2] += sum(count for _, count in row.expired)
        sums[3] += row.bytes_cold
    bars = [
        Bar(
            "limits in force" if name == "now" else name,
            bytes_text(size),
            (Segment("s0", size, f"{name}: {bytes_text(size)} in {ledgers:,} ledgers"),),
        )
        for name, (size, ledgers, *_) in list(scenarios.items())[:top]
    ]
    cells: list[list[Cell]] = [
        [
            "limits in force" if name == "now" else name,
            ("n", bytes_text(size)),
            ("n", _size(cold)),
            ("n", count_text(ledgers)),
            ("n", count_text(expired)),
        ]
        for name, (size, ledgers, expired, cold) in list(scenarios.items())[:top]
    ]
    heads: list[Cell] = ["Limits", ("n", "Bytes on bookies"), ("n", "Object store")]
    heads += [("n", "Ledgers"), ("n", "Entries lost unread")]
    return section(
        "What TTL and retention would free",
        "Now, if these limits held. Ledgers go whole, and not the newest; a TTL acknowledges for "
        "everybody what is older.",
        rows_chart(bars, "Bytes freed by limits"),
        table(heads, cells),
    )


def ack_holes(rows: Rows, top: int) -> str:
    """The section of ack holes, which hold mark-delete positions back."""
    having = [row for row in rows.subscriptions if row.acked_ranges]
    having.sort(key=lambda row: -(row.acked_beyond or 0))
    if not having:
        return section("Ack holes", "None: nothing is acknowledged out of order.")
    first: dict[tuple[str, str], AckHoleRow] = {}
    for ack_hole in rows.ack_holes:
        first.setdefault((ack_hole.topic, ack_hole.subscription), ack_hole)
    cells: list[list[Cell]] = []
    for row in having[:top]:
        hole = first.get((row.topic, row.subscription))
        where = "" if hole is None else f"{hole.first_ledger}:{hole.first_entry}"
        cells.append(
            [
                ("name", label(row)),
                ("n", count_text(row.acked_ranges)),
                ("n", count_text(row.acked_beyond)),
                ("n", count_text(row.partial_entries)),
                ("name", where if hole is None else f"{where}, {hole.entries:,} entries"),
                ("name", row.held_by if row.asked else "no broker was asked"),
            ]
        )
    heads: list[Cell] = ["Subscription", ("n", "Acked runs"), ("n", "Entries in them")]
    heads += [("n", "Partly acked batches"), "Oldest hole", "Held by"]
    return section(
        "Ack holes",
        "Entries acknowledged behind others that are not: those hold whole ledgers back.",
        table(heads, cells),
    )
