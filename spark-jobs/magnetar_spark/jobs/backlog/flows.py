"""Messages that came from elsewhere: dead letters and retries.

Clients that give a message up, or want it later, publish it again with properties that say where it
came from (REAL_TOPIC, ORIGIN_MESSAGE_ID) and how often it was delivered (RECONSUMETIMES). So they
are known wherever they are; by default they are in `{topic}-{subscription}-DLQ` and `-RETRY`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from magnetar_spark.jobs.backlog.partials import FLOW, partial
from magnetar_spark.table import PROPERTIES, PUBLISH_TIME, VALUE

REAL_TOPIC: Final = "REAL_TOPIC"
RECONSUME_TIMES: Final = "RECONSUMETIMES"
MARK: Final = REAL_TOPIC.encode()
"""In the bytes of every entry that has such messages."""
ORIGINS_MAX: Final = 1_000
"""Told apart in one Arrow batch; the rest counts for "(others)"."""
OTHERS: Final = "(others)"


class FlowKind(StrEnum):
    """Why messages came again."""

    DEAD_LETTER = "dead-letter"
    RETRY = "retry"
    OTHER = "other"


@dataclass(slots=True)
class _Sum:
    messages: int = 0
    size_bytes: int = 0
    oldest_ms: int = 1 << 62
    newest_ms: int = 0


def kind_of(local_name: str) -> FlowKind:
    """By the names that clients give by default."""
    name = local_name.upper()
    if name.endswith("-DLQ"):
        return FlowKind.DEAD_LETTER
    return FlowKind.RETRY if name.endswith("-RETRY") else FlowKind.OTHER


def subscription_of(local_name: str, real_local: str) -> str:
    """The subscription in `{topic}-{subscription}-DLQ`; "" where the name is another."""
    stem, _, kind = local_name.rpartition("-")
    if kind.upper() not in ("DLQ", "RETRY") or not stem.startswith(real_local + "-"):
        return ""
    return stem[len(real_local) + 1 :]


def flow_sums(topic: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Sums by origin and number of deliveries, of a batch with properties."""
    sums: dict[tuple[str, int], _Sum] = {}
    properties = batch.column(PROPERTIES).to_pylist(maps_as_pydicts="lossy")
    times = batch.column(PUBLISH_TIME).cast(pa.int64()).to_pylist()
    for found, time_us, value in zip(
        properties, times, batch.column(VALUE).to_pylist(), strict=True
    ):
        if not found or REAL_TOPIC not in found:
            continue
        key = (found[REAL_TOPIC], _number(found.get(RECONSUME_TIMES)))
        if key not in sums and len(sums) >= ORIGINS_MAX:
            key = (OTHERS, 0)
        each = sums.setdefault(key, _Sum())
        each.messages += 1
        each.size_bytes += len(value or b"")
        each.oldest_ms = min(each.oldest_ms, time_us // 1000)
        each.newest_ms = max(each.newest_ms, time_us // 1000)
    if sums:
        yield partial(
            FLOW,
            topic,
            len(sums),
            key=[origin.encode() for origin, _ in sums],
            number=[times for _, times in sums],
            messages=[each.messages for each in sums.values()],
            bytes=[each.size_bytes for each in sums.values()],
            oldest_ms=[each.oldest_ms for each in sums.values()],
            newest_ms=[each.newest_ms for each in sums.values()],
        )


def _number(text: Any) -> int:
    return int(text) if isinstance(text, str) and text.isdigit() else 0


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of FLOW as one row for each topic and origin, with the most deliveries seen."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    times: dict[tuple[str, str], Counter[int]] = {}
    for row in rows:
        key = (row["topic"], bytes(row["key"]).decode(errors="replace"))
        each = found.setdefault(
            key,
            {
                "messages": 0,
                "bytes": 0,
                "oldest_ms": row["oldest_ms"],
                "newest_ms": row["newest_ms"],
            },
        )
        each["messages"] += row["messages"]
        each["bytes"] += row["bytes"]
        each["oldest_ms"] = min(each["oldest_ms"], row["oldest_ms"])
        each["newest_ms"] = max(each["newest_ms"], row["newest_ms"])
        times.setdefault(key, Counter())[row["number"]] += row["messages"]
    return [
        {
            "topic": topic,
            "origin": origin,
            **each,
            "redeliveries_max": max(times[topic, origin]),
            "redeliveries_mean": sum(n * c for n, c in times[topic, origin].items())
            / max(1, each["messages"]),
        }
        for (topic, origin), each in sorted(found.items())
    ]
