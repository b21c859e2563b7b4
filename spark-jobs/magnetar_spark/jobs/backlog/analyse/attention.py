"""Derives findings from the tables: problems, and remedies. Pure."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from magnetar_spark.jobs.backlog.analyse.causes import Cause
from magnetar_spark.jobs.backlog.report.numbers import bytes_text, count_text, duration_text
from magnetar_spark.jobs.backlog.tables.tables import (
    FlowRow,
    KeySkewRow,
    Rows,
    StorageRow,
    SubscriptionRow,
    TopicRow,
)

HOLDS_BYTES: Final = 64 << 20
"""A subscription that keeps at least this on bookies is reported."""
STALLED_CRITICAL_S: Final = 3_600
"""The age of the oldest message at which a stalled backlog is critical."""
UNTRIMMED_BYTES: Final = 64 << 20
HOT_KEY_SHARE: Final = 0.2
HOT_KEY_MESSAGES: Final = 1_000
HOT_KEYS: Final = 10
"""Hot keys are reported for topics with more keys than this: with few keys, all are hot."""
PARTITION_RATIO: Final = 2.0
PARTITION_ENTRIES: Final = 1_000
RANGES: Final = 1_000
EXPIRES_WITHIN: Final = 0.2
"""The part of the TTL that the oldest message of a backlog has left when it is reported."""
FINDINGS_MAX: Final = 100


class Severity(IntEnum):
    """The severity of a finding; greater is worse."""

    NOTE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `weight` orders findings of one severity: bytes, entries or messages."""

    severity: Severity
    kind: str
    topic: str
    subscription: str
    text: str
    advice: str
    weight: float


def findings(rows: Rows) -> list[Finding]:
    """The findings, worst first, at most FINDINGS_MAX."""
    topics = {row.topic: row for row in rows.topics}
    results: list[Finding] = []
    for row in rows.subscriptions:
        results += _of_subscription(row, topics[row.topic])
    results += _untrimmed(rows.storage)
    for flow in rows.flows:
        results += _of_flow(flow)
    for skew in rows.key_skew:
        results += _of_skew(skew, topics[skew.topic])
    results.sort(
        key=lambda finding: (
            -finding.severity,
            -finding.weight,
            finding.topic,
            finding.subscription,
        )
    )
    return results[:FINDINGS_MAX]


def _of_subscription(row: SubscriptionRow, topic: TopicRow) -> list[Finding]:
    def finding(severity: Severity, kind: str, text: str, advice: str) -> Finding:
        weight = float(row.entries or 0)
        return Finding(severity, kind, row.topic, row.subscription, text, advice, weight)

    if row.error:
        return [
            finding(
                Severity.CRITICAL,
                "unreadable",
                f"its state cannot be read: {row.error}",
                "Everything is kept for it. Bring its bookies back, or delete the subscription.",
            )
        ]
    results: list[Finding] = []
    if row.trend == "stalled":
        kind = "none is connected" if row.consumers == 0 else "no consumer acknowledges"
        text = f"{count_text(row.entries)} entries, and nothing was consumed for "
        text += duration_text(row.since_s)
        text += f" ({kind})" if row.consumers is not None else ""
        advice = "Start its consumers, or delete the subscription if it is unused."
        old = row.age_s is not None and row.age_s >= STALLED_CRITICAL_S
        severity = Severity.CRITICAL if old else Severity.WARNING
        results.append(finding(severity, "stalled", text, advice))
    elif row.trend == "growing":
        text = (
            f"{count_text(row.entries)} entries and growing by {row.growth_per_s:,.1f}/s: "
            f"{row.published_per_s:,.1f}/s come, {row.consumed_per_s:,.1f}/s are consumed"
        )
        results.append(finding(Severity.CRITICAL, "growing", text, "Add consumers or partitions."))
    if row.holds_bytes >= HOLDS_BYTES:
        text = f"keeps {bytes_text(row.holds_bytes)} on bookies"
        results.append(
            finding(Severity.WARNING, "holds", text, "It is furthest behind. A TTL would bound it.")
        )
    if row.acked_ranges and row.acked_ranges >= RANGES:
        text = f"{count_text(row.acked_ranges)} acknowledged runs behind its oldest message"
        if row.held_by:
            text += f", which {row.held_by} may have"
        advice = "Check the oldest keys below; with a dead letter policy the rest can continue."
        results.append(finding(Severity.WARNING, "holes", text, advice))
    if reason := expiring(row, topic.ttl_s):
        advice = "Messages are being lost unread, or will be: consume faster, or raise the TTL."
        results.append(finding(Severity.CRITICAL, "expiring", reason, advice))
    return results


def expiring(row: SubscriptionRow, ttl_s: int) -> str:
    """Why messages of a backlog expire, or soon will; "" if they will not.

    Either the oldest message is close to the TTL, or at the rate of consumption, new messages would
    wait longer than the TTL.
    """
    if not ttl_s or not row.entries:
        return ""
    left_s, consumed_per_s = row.expires_in_s, row.consumed_per_s
    if left_s is not None and left_s < ttl_s * EXPIRES_WITHIN:
        age = duration_text(row.age_s)
        return f"its oldest message is {age} old; the TTL is {duration_text(ttl_s)}"
    if consumed_per_s and row.entries / consumed_per_s > ttl_s:
        wait = duration_text(row.entries / consumed_per_s)
        return f"what comes now is read in {wait} at this rate; the TTL is {duration_text(ttl_s)}"
    return ""


def _untrimmed(storage: list[StorageRow]) -> list[Finding]:
    sums: dict[str, int] = {}
    for row in storage:
        if row.cause == Cause.UNTRIMMED:
            sums[row.topic] = sums.get(row.topic, 0) + row.bytes_on_bookies
    return [
        Finding(
            Severity.WARNING,
            "untrimmed",
            topic,
            "",
            f"{bytes_text(size)} on bookies that nothing keeps",
            "Its broker deletes them at its next check, or when the topic is loaded.",
            float(size),
        )
        for topic, size in sums.items()
        if size >= UNTRIMMED_BYTES
    ]


def _of_flow(row: FlowRow) -> list[Finding]:
    if row.kind != "dead-letter" or not row.messages:
        return []
    text = f"{count_text(row.messages)} dead letters of {row.origin}"
    if not row.whole:
        text += " in what was read"
    return [
        Finding(
            Severity.WARNING,
            "dead-letters",
            row.topic,
            row.subscription,
            text,
            "Consumers gave up on them. REAL_TOPIC and ORIGIN_MESSAGE_ID name their origin.",
            float(row.messages),
        )
    ]


def _of_skew(row: KeySkewRow, topic: TopicRow) -> list[Finding]:
    results: list[Finding] = []
    if (
        row.top1_share is not None
        and row.top1_share >= HOT_KEY_SHARE
        and row.keyed_messages >= HOT_KEY_MESSAGES
        and row.keys > HOT_KEYS
    ):
        text = f"one of {count_text(row.keys)} keys has {row.top1_share:.0%} of the messages"
        advice = "Key_Shared and compaction are as fast as the consumer or task that has it."
        results.append(
            Finding(
                Severity.NOTE,
                "hot-key",
                row.topic,
                "",
                text,
                advice,
                float(row.keyed_messages),
            )
        )
    ratio = row.partition_ratio
    if ratio is not None and ratio >= PARTITION_RATIO and topic.entries >= PARTITION_ENTRIES:
        text = f"has {ratio:.1f} times the entries of a mean partition"
        results.append(
            Finding(
                Severity.NOTE,
                "skewed-partition",
                row.topic,
                "",
                text,
                "Its keys hash there; check the hot keys.",
                float(topic.entries),
            )
        )
    return results
