"""Finds messages that were published again: dead letters and retries.

Clients that give up or delay a message publish it again, with properties for its origin
(REAL_TOPIC, ORIGIN_MESSAGE_ID) and number of deliveries (RECONSUMETIMES). These identify it in any
topic; the default topics are `{topic}-{subscription}-DLQ` and `-RETRY`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from magnetar_spark.jobs.backlog.scan.partials import FLOW, SumRow, partial
from magnetar_spark.table import PROPERTIES, PUBLISH_TIME, VALUE

REAL_TOPIC: Final = "REAL_TOPIC"
RECONSUME_TIMES: Final = "RECONSUMETIMES"
MARK: Final = REAL_TOPIC.encode()
"""Occurs in the bytes of every entry that has such messages."""
ORIGINS_MAX: Final = 1_000
"""Origins distinguished in one Arrow batch; the others count as "(others)"."""
OTHERS: Final = "(others)"


class FlowKind(StrEnum):
    """Why messages were published again."""

    DEAD_LETTER = "dead-letter"
    RETRY = "retry"
    OTHER = "other"


@dataclass(slots=True)
class _Sum:
    messages: int = 0
    size_bytes: int = 0
    oldest_ms: int = 1 << 62
    newest_ms: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """The messages in a topic that were first sent to `origin`."""

    topic: str
    origin: str
    messages: int
    size_bytes: int
    oldest_ms: int
    newest_ms: int
    redeliveries_mean: float
    redeliveries_max: int


def kind_of(local_name: str) -> FlowKind:
    """The kind by the default names of clients."""
    name = local_name.upper()
    if name.endswith("-DLQ"):
        return FlowKind.DEAD_LETTER
    return FlowKind.RETRY if name.endswith("-RETRY") else FlowKind.OTHER


def subscription_of(local_name: str, real_local: str) -> str:
    """The subscription in `{topic}-{subscription}-DLQ`; "" for other names."""
    stem, _, kind = local_name.rpartition("-")
    if kind.upper() not in ("DLQ", "RETRY") or not stem.startswith(real_local + "-"):
        return ""
    return stem[len(real_local) + 1 :]


def flow_sums(topic: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Sums by origin and number of deliveries, from a batch with properties."""
    sums: dict[tuple[str, int], _Sum] = {}
    properties = batch.column(PROPERTIES).to_pylist(maps_as_pydicts="lossy")
    times = batch.column(PUBLISH_TIME).cast(pa.int64()).to_pylist()
    for headers, time_us, value in zip(
        properties, times, batch.column(VALUE).to_pylist(), strict=True
    ):
        if not headers or REAL_TOPIC not in headers:
            continue
        key = (headers[REAL_TOPIC], _number(headers.get(RECONSUME_TIMES)))
        if key not in sums and len(sums) >= ORIGINS_MAX:
            key = (OTHERS, 0)
        total = sums.setdefault(key, _Sum())
        total.messages += 1
        total.size_bytes += len(value or b"")
        total.oldest_ms = min(total.oldest_ms, time_us // 1000)
        total.newest_ms = max(total.newest_ms, time_us // 1000)
    if sums:
        yield partial(
            FLOW,
            topic,
            len(sums),
            key=[origin.encode() for origin, _ in sums],
            number=[times for _, times in sums],
            messages=[total.messages for total in sums.values()],
            bytes=[total.size_bytes for total in sums.values()],
            oldest_ms=[total.oldest_ms for total in sums.values()],
            newest_ms=[total.newest_ms for total in sums.values()],
        )


def _number(text: Any) -> int:
    return int(text) if isinstance(text, str) and text.isdigit() else 0


def merged(rows: Iterable[SumRow]) -> list[Flow]:
    """Adds up sums of the kind FLOW by topic and origin."""
    sums: dict[tuple[str, str], _Sum] = {}
    times: dict[tuple[str, str], Counter[int]] = {}
    for row in rows:
        key = (row.topic, row.text)
        total = sums.setdefault(key, _Sum())
        total.messages += row.messages
        total.size_bytes += row.bytes
        total.oldest_ms = min(total.oldest_ms, row.oldest_ms)
        total.newest_ms = max(total.newest_ms, row.newest_ms)
        times.setdefault(key, Counter())[row.number] += row.messages
    return [
        Flow(
            topic,
            origin,
            total.messages,
            total.size_bytes,
            total.oldest_ms,
            total.newest_ms,
            sum(n * c for n, c in times[topic, origin].items()) / max(1, total.messages),
            max(times[topic, origin]),
        )
        for (topic, origin), total in sorted(sums.items(), key=lambda item: item[0])
    ]
