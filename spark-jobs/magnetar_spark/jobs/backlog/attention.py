"""What needs attention: findings, the worst first, each with what can be done. Pure."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from magnetar_spark.jobs.backlog.causes import Cause
from magnetar_spark.jobs.backlog.shown import bytes_text, count_text, duration_text
from magnetar_spark.jobs.backlog.tables import Rows

Row = dict[str, Any]

HOLDS_BYTES: Final = 64 << 20
"""A subscription without a trend that keeps less than this on bookies is not worth a word."""
STALLED_CRITICAL_S: Final = 3_600
"""How old the oldest message is of a stalled backlog that is critical."""
UNTRIMMED_BYTES: Final = 64 << 20
HOT_KEY_SHARE: Final = 0.2
HOT_KEY_MESSAGES: Final = 1_000
HOT_KEYS: Final = 10
"""A hot key is one of more than so many; a topic with few keys has no other."""
PARTITION_RATIO: Final = 2.0
PARTITION_ENTRIES: Final = 1_000
RANGES: Final = 1_000
EXPIRES_WITHIN: Final = 0.2
"""Of the TTL: how close to it the oldest message of a backlog is."""
FINDINGS_MAX: Final = 100


class Severity(IntEnum):
    """The greater, the worse."""

    NOTE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """`weight` orders findings of one severity: bytes, entries or messages."""

    severity: Severity
    kind: str
    topic: str
    subscription: str
    text: str
    advice: str
    weight: float


def findings(rows: Rows) -> list[Finding]:
    """The worst first, at most FINDINGS_MAX."""
    topics = {row["topic"]: row for row in rows["topics"]}
    found: list[Finding] = []
    for row in rows["subscriptions"]:
        found += _of_subscription(row, topics[row["topic"]])
    found += _untrimmed(rows["storage"])
    for row in rows["flows"]:
        found += _of_flow(row)
    for row in rows["key_skew"]:
        found += _of_skew(row, topics[row["topic"]])
    found.sort(key=lambda each: (-each.severity, -each.weight, each.topic, each.subscription))
    return found[:FINDINGS_MAX]


def _of_subscription(row: Row, topic: Row) -> list[Finding]:
    def finding(severity: Severity, kind: str, text: str, advice: str) -> Finding:
        weight = float(row["entries"] or 0)
        return Finding(severity, kind, row["topic"], row["subscription"], text, advice, weight)

    if row["error"]:
        return [
            finding(
                Severity.CRITICAL,
                "unreadable",
                f"its state cannot be read: {row['error']}",
                "Everything is kept for it. Bring its bookies back, or delete the subscription.",
            )
        ]
    found: list[Finding] = []
    entries = row["entries"]
    if row["trend"] == "stalled":
        kind = "none is connected" if row["consumers"] == 0 else "no consumer acknowledges"
        text = f"{count_text(entries)} entries, and nothing was consumed for "
        text += duration_text(row["since_s"])
        text += f" ({kind})" if row["consumers"] is not None else ""
        advice = "Start its consumers, or delete the subscription if nobody needs it."
        old = row["age_s"] is not None and row["age_s"] >= STALLED_CRITICAL_S
        severity = Severity.CRITICAL if old else Severity.WARNING
        found.append(finding(severity, "stalled", text, advice))
    elif row["trend"] == "growing":
        text = (
            f"{count_text(entries)} entries and growing by {row['growth_per_s']:,.1f}/s: "
            f"{row['published_per_s']:,.1f}/s come, {row['consumed_per_s']:,.1f}/s are consumed"
        )
        found.append(finding(Severity.CRITICAL, "growing", text, "Add consumers or partitions."))
    if row["holds_bytes"] >= HOLDS_BYTES:
        text = f"keeps {bytes_text(row['holds_bytes'])} on bookies"
        found.append(
            finding(Severity.WARNING, "holds", text, "It is furthest behind. A TTL would bound it.")
        )
    if row["acked_ranges"] and row["acked_ranges"] >= RANGES:
        text = f"{count_text(row['acked_ranges'])} acknowledged runs behind its oldest message"
        if row["held_by"]:
            text += f", which {row['held_by']} may have"
        advice = "Look at the oldest keys below; a dead letter policy lets the rest go on."
        found.append(finding(Severity.WARNING, "holes", text, advice))
    if said := expiring(row, topic["ttl_s"]):
        advice = "Messages are being lost unread, or will be: consume faster, or raise the TTL."
        found.append(finding(Severity.CRITICAL, "expiring", said, advice))
    return found


def expiring(row: Row, ttl_s: int) -> str:
    """Why messages of a backlog will outlive the TTL, or do; empty where they will not.

    The oldest is about to, or what comes now would wait longer, at the rate of consumption.
    """
    if not ttl_s or not row["entries"]:
        return ""
    left_s, consumed_per_s = row["expires_in_s"], row["consumed_per_s"]
    if left_s is not None and left_s < ttl_s * EXPIRES_WITHIN:
        age = duration_text(row["age_s"])
        return f"its oldest message is {age} old; the TTL is {duration_text(ttl_s)}"
    if consumed_per_s and row["entries"] / consumed_per_s > ttl_s:
        wait = duration_text(row["entries"] / consumed_per_s)
        return f"what comes now is read in {wait} at this rate; the TTL is {duration_text(ttl_s)}"
    return ""


def _untrimmed(storage: list[Row]) -> list[Finding]:
    sums: dict[str, int] = {}
    for row in storage:
        if row["cause"] == Cause.UNTRIMMED:
            sums[row["topic"]] = sums.get(row["topic"], 0) + row["bytes_on_bookies"]
    return [
        Finding(
            Severity.WARNING,
            "untrimmed",
            topic,
            "",
            f"{bytes_text(size)} on bookies that nothing keeps",
            "Its broker lets them go when it looks next, or when the topic is loaded.",
            float(size),
        )
        for topic, size in sums.items()
        if size >= UNTRIMMED_BYTES
    ]


def _of_flow(row: Row) -> list[Finding]:
    if row["kind"] != "dead-letter" or not row["messages"]:
        return []
    text = f"{count_text(row['messages'])} dead letters of {row['origin']}"
    if not row["whole"]:
        text += " in what was read"
    return [
        Finding(
            Severity.WARNING,
            "dead-letters",
            row["topic"],
            row["subscription"],
            text,
            "Consumers gave them up. Look at one: REAL_TOPIC and ORIGIN_MESSAGE_ID say whence.",
            float(row["messages"]),
        )
    ]


def _of_skew(row: Row, topic: Row) -> list[Finding]:
    found: list[Finding] = []
    if (
        row["top1_share"] is not None
        and row["top1_share"] >= HOT_KEY_SHARE
        and row["keyed_messages"] >= HOT_KEY_MESSAGES
        and row["keys"] > HOT_KEYS
    ):
        text = f"one of {count_text(row['keys'])} keys has {row['top1_share']:.0%} of the messages"
        advice = "Key_Shared and compaction work as fast as the one that has it."
        found.append(
            Finding(
                Severity.NOTE,
                "hot-key",
                row["topic"],
                "",
                text,
                advice,
                float(row["keyed_messages"]),
            )
        )
    ratio = row["partition_ratio"]
    if ratio is not None and ratio >= PARTITION_RATIO and topic["entries"] >= PARTITION_ENTRIES:
        text = f"has {ratio:.1f} times the entries of a mean partition"
        found.append(
            Finding(
                Severity.NOTE,
                "skewed-partition",
                row["topic"],
                "",
                text,
                "Its keys hash there; look at the hot keys.",
                float(topic["entries"]),
            )
        )
    return found
