"""Builds the summary of each namespace that a run writes to metadata, for brokers and the operator.

Pure. Sums and maxima cover all subscriptions with a backlog, or are unknown (None): partial ones
would mislead.
"""

from typing import Any

import msgspec

from magnetar.documents.backlog import WORST, BacklogRecord, Behind, Noticed
from magnetar_spark.jobs.backlog.analyse.attention import Finding, expiring
from magnetar_spark.jobs.backlog.analyse.growth import Trend
from magnetar_spark.jobs.backlog.tables.tables import Rows


def worst(rows: Rows, count: int) -> list[dict[str, Any]]:
    """The subscriptions with the largest backlogs, by the names of the summary's JSON."""
    behind = [row for row in rows.subscriptions if row.entries or row.error]
    behind.sort(key=lambda row: (not row.error, -(row.bytes or 0), -(row.entries or 0)))
    return [
        {
            "topic": row.topic,
            "subscription": row.subscription,
            "entries": row.entries,
            "bytes": row.bytes,
            "delayedMessages": row.delayed_messages,
            "nextDeliveryMs": row.next_delivery,
            "ageSeconds": row.age_s,
            "trend": row.trend,
            "growthPerSecond": row.growth_per_s,
            "drainsInSeconds": row.drains_in_s,
        }
        for row in behind[:count]
    ]


def published(namespace: str, rows: Rows, findings: list[Finding], now_ms: int) -> BacklogRecord:
    """The summary of one namespace. Pure."""
    prefix = f"persistent://{namespace}/"
    topics = [row for row in rows.topics if row.namespace == namespace]
    subscriptions = [row for row in rows.subscriptions if row.namespace == namespace]
    behind = [row for row in subscriptions if row.entries or row.error]
    ttls = {row.topic: row.ttl_s for row in topics}
    return BacklogRecord(
        at_ms=now_ms,
        topics=len(topics),
        subscriptions=len(subscriptions),
        behind=len(behind),
        growing=sum(row.trend == Trend.GROWING for row in subscriptions),
        stalled=sum(row.trend == Trend.STALLED for row in subscriptions),
        unreadable=sum(bool(row.error) for row in subscriptions),
        expiring=sum(bool(expiring(row, ttls[row.topic])) for row in subscriptions),
        held_bytes=sum(row.holds_bytes for row in subscriptions if row.trend == Trend.STALLED),
        unknown=sum(row.trend == Trend.UNKNOWN and not row.error for row in behind),
        backlog_entries=sum(row.entries or 0 for row in subscriptions),
        backlog_messages=total([row.messages for row in behind]),
        backlog_bytes=sum(row.bytes or 0 for row in subscriptions),
        oldest_age_seconds=_largest([row.age_s for row in behind]),
        drains_in_seconds=_largest([row.drains_in_s for row in behind]),
        bytes_on_bookies=sum(row.bytes_on_bookies for row in topics),
        worst=msgspec.convert(
            worst(Rows(topics=topics, subscriptions=subscriptions), WORST), list[Behind]
        ),
        findings=[
            Noticed(
                finding.severity.name.lower(), finding.kind, finding.topic, finding.subscription
            )
            for finding in findings
            if finding.topic.startswith(prefix)
        ][:WORST],
    )


def total(values: list[int | None]) -> int | None:
    """The sum; None if any value is unknown, since a partial sum would mislead."""
    present = [value for value in values if value is not None]
    return sum(present) if len(present) == len(values) else None


def _largest(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return max(present, default=0.0) if len(present) == len(values) else None
