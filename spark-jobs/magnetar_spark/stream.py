"""The streaming reader: offsets, micro-batches, limits.

An offset says of each topic or partition the last position that was read: `{"TOPIC": "L:E"}`, with
`-1:-1` for nothing yet. Spark writes offsets to its checkpoint before it reads a micro-batch; the
same offsets always mean the same entries, so a micro-batch that is repeated after a crash has the
same rows, and a sink that knows its batches (files do) has each of them exactly once. Nothing is
remembered but that: no subscription, no cursor, nothing in the metadata store.

Topics and partitions that come later are read from their beginning.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import TopicName, parse_topic
from magnetar_spark.log.access import Log, opened_log
from magnetar_spark.log.ledgers import TopicLog, topic_end, topic_log
from magnetar_spark.log.running import run
from magnetar_spark.log.topics import resolve
from magnetar_spark.offsets import parse_position
from magnetar_spark.options import ReadOptions
from magnetar_spark.planner import LogPartition, behind, plan_between
from magnetar_spark.tasks import record_batches
from magnetar_spark.values import Values

Offset = Mapping[str, str]


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text."""

    def __init__(self, options: ReadOptions, schema: StructType, values: Values) -> None:
        self._options = options
        self._schema = schema
        self._values = values
        self._target: dict[str, str] | None = None
        """Of a query that ends: the ends when it began."""

    def initialOffset(self) -> dict[str, str]:
        return run(_initial(self._options))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return run(_latest(self._options, start, bytes_max, self._target))

    def reportLatestOffset(self) -> dict[str, str]:
        return run(_latest(self._options, {}, None, None))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.reportLatestOffset()

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        between = [
            (parse_topic(name), _position(start, name), parse_position(last))
            for name, last in end.items()
        ]
        return run(plan_between(self._options, between)).partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return iter(())
        return record_batches(self._options.log, partition, self._schema, self._values)

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint is all there is."""

    def stop(self) -> None:
        """Nothing is open between two calls."""


def _position(offset: Offset, name: str) -> Position:
    return parse_position(offset[name]) if name in offset else EARLIEST


async def _initial(options: ReadOptions) -> dict[str, str]:
    """Where a new query begins: behind the newest entry, unless the options say otherwise."""
    starting = options.starting
    offset: dict[str, str] = {}
    async with opened_log(options.log) as log:
        for topic in await resolve(log.store, options.topics, options.pattern):
            first = starting.of(topic) if starting else LATEST
            if first is None:  # a time, or topics that no offset was given for
                first = EARLIEST
            if first == LATEST:
                last = await topic_end(log, topic)
            else:
                last = first if first == EARLIEST else Position(first[0], first[1] - 1)
            offset[str(topic)] = str(last)
    return offset


async def _latest(
    options: ReadOptions,
    start: Offset,
    bytes_max: int | None,
    target: Offset | None,
) -> dict[str, str]:
    """The newest offset, less what the limits leave for later; never before `start`."""
    ends: dict[TopicName, Position] = {}
    async with opened_log(options.log) as log:
        for topic in await resolve(log.store, options.topics, options.pattern):
            name = str(topic)
            if target is not None and name not in target:
                continue
            end = await topic_end(log, topic)
            if target is not None:
                end = min(end, parse_position(target[name]))
            ends[topic] = max(end, _position(start, name))
        if bytes_max is not None:
            ends = await _within(log, start, ends, bytes_max)
    latest = {str(topic): str(end) for topic, end in ends.items()}
    # A topic that was deleted stays where it was read to.
    return {**start, **latest}


async def _within(
    log: Log, start: Offset, ends: Mapping[TopicName, Position], bytes_max: int
) -> dict[TopicName, Position]:
    """Nearer ends, so that about `bytes_max` lie before them; each topic has its share."""
    logs = {topic: await topic_log(log, topic) for topic in ends}
    waiting = {
        topic: _bytes_between(logs[topic], _position(start, str(topic)), end)
        for topic, end in ends.items()
    }
    total = sum(waiting.values())
    if total <= bytes_max:
        return dict(ends)
    return {
        topic: _reached(
            logs[topic], _position(start, str(topic)), end, bytes_max * waiting[topic] / total
        )
        for topic, end in ends.items()
    }


def _steps(log: TopicLog, start: Position, end: Position) -> Iterator[tuple[int, int, int, float]]:
    """Ledger, first and last entry, bytes of an entry, of what lies behind start up to end."""
    first = behind(start)
    for span in log.ledgers:
        low = first.entry_id if span.ledger_id == first.ledger_id else 0
        high = span.last_entry
        if span.ledger_id == end.ledger_id:
            high = min(high, end.entry_id)
        if first.ledger_id <= span.ledger_id <= end.ledger_id and max(0, low) <= high:
            yield span.ledger_id, max(0, low), high, span.entry_bytes


def _bytes_between(log: TopicLog, start: Position, end: Position) -> float:
    return sum((high - low + 1) * size for _, low, high, size in _steps(log, start, end))


def _reached(log: TopicLog, start: Position, end: Position, room: float) -> Position:
    """Where about `room` bytes behind start end; one entry at least."""
    reached = start
    for ledger_id, low, high, size in _steps(log, start, end):
        count = min(high - low + 1, int(room / max(1.0, size)))
        if reached == start:
            count = max(1, count)
        if count:
            reached = Position(ledger_id, low + count - 1)
        if count < high - low + 1:
            return reached
        room -= count * size
    return max(reached, end)
