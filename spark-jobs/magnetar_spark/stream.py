"""The streaming reader: offsets, micro-batches, limits.

An offset has the last position read of each topic or partition (`stream_offsets`). Spark writes
offsets to its checkpoint before it reads a micro-batch. The same offsets always mean the same
entries, so a micro-batch that is repeated after a crash has the same rows, and a sink that tracks
its batches (as files do) has each of them exactly once. A position in an offset is confirmed: a
plan reads up to it or fails, and never asks again for the log's end. The only state is the offsets:
no subscription, no cursor, nothing in the metadata store.

A topic ends before the first entry of an open transaction. Once that has ended, the next offset is
behind it, so its messages come in their order, and aborted ones are left out of every plan alike.

Topics and partitions that are created later are read from their beginning.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from magnetar.bookie.api import BookieError
from magnetar.core.errors import PersistenceError, TopicNotFound
from magnetar.core.ids import LATEST, Position
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName, parse_topic
from magnetar.jobs.event_loop import run
from magnetar.jobs.log.ledgers import last_before, topic_end, topic_log, topic_start
from magnetar.jobs.log.topic_log import TopicLog
from magnetar.jobs.log.topics import logs_of, means, resolve
from magnetar.jobs.log.transactions.visible import Settled
from magnetar_spark.log.access import RegisteredLog, opened_log
from magnetar_spark.options import ReadOptions
from magnetar_spark.planner import LogPartition, before, behind, plan_between, times_from
from magnetar_spark.stream_offsets import StreamOffset
from magnetar_spark.tasks import record_batches
from magnetar_spark.values import Values

logger: Final = get_logger("magnetar.spark.stream")


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream that Spark drives; lives as long as its query runs."""

    def __init__(self, options: ReadOptions, schema: StructType, values: Values) -> None:
        self._options = options
        self._schema = schema
        self._values = values
        self._initial: StreamOffset | None = None
        self._target: StreamOffset | None = None
        """The topics' ends at the start of a query with an end; None for others."""
        self._settled: dict[TopicName, Settled] = {}
        """What is known about transactions, so that each trigger reads on where the last ended."""

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the reader, too; they plan nothing.
        return {**self.__dict__, "_settled": {}}

    def initialOffset(self) -> dict[str, Any]:
        self._initial = run(_initial(self._options, self._settled))
        return self._initial.document()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        current = StreamOffset.parse(start)
        ends = run(_latest(self._options, current, bytes_max, self._target, self._settled))
        if ends == current.positions:
            return start
        began = current.positions if current == self._initial else None
        return replace(current, positions=ends, began=began).document()

    def reportLatestOffset(self) -> dict[str, Any]:
        return run(_newest(self._options, self._settled)).document()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = run(_newest(self._options, self._settled))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        offset, ends = StreamOffset.parse(start), StreamOffset.parse(end)
        if ends.began is not None:
            offset = replace(offset, positions=ends.began)
        between = [
            (parse_topic(name), offset.of(name), last) for name, last in ends.positions.items()
        ]
        plan = plan_between(self._options, between, times_from(ends.starting_ms), self._settled)
        return run(plan).partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return iter(())
        return record_batches(self._options.log, partition, self._schema, self._values)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint is the only state."""

    def stop(self) -> None:
        """Does nothing: no connection stays open between calls."""


async def _initial(options: ReadOptions, settled: dict[TopicName, Settled]) -> StreamOffset:
    """The start of a new query: after the newest entry, unless the options say otherwise."""
    starting = options.starting
    positions: dict[str, Position] = {}
    async with opened_log(options.log) as opened:
        log = replace(opened, settled=settled)
        for topic in await resolve(log.store, options.topics, options.pattern):
            first = starting.of(topic) if starting else LATEST
            if first == LATEST:
                last = await topic_end(log, topic)
            elif first is None or first.ledger_id < 0:
                # A time, topics that no offset was given for, or the earliest entry.
                last = await topic_start(log, topic)
            elif starting is not None and str(topic) in starting.by_topic:
                last = before(first)
            else:
                last = await last_before(log, topic, first)
            positions[str(topic)] = last
    return StreamOffset(positions, None if starting is None else starting.time_ms)


async def _newest(options: ReadOptions, settled: dict[TopicName, Settled]) -> StreamOffset:
    """The current readable end of each topic. Raises BookieError if it is unknown."""
    async with opened_log(options.log) as opened:
        log = replace(opened, settled=settled)
        topics = await resolve(log.store, options.topics, options.pattern)
        return StreamOffset({str(topic): await topic_end(log, topic) for topic in topics})


async def _latest(
    options: ReadOptions,
    start: StreamOffset,
    bytes_max: int | None,
    target: StreamOffset | None,
    settled: dict[TopicName, Settled],
) -> dict[str, Position]:
    """The newest positions within the limits, never before `start`."""
    ends: dict[TopicName, Position] = {}
    async with opened_log(options.log) as opened:
        log = replace(opened, settled=settled)
        topics = await resolve(log.store, options.topics, options.pattern)
        for topic in topics:
            name = str(topic)
            if target is not None and name not in target.positions:
                continue
            read = start.of(name)
            end = await _end(log, topic, read) if target is None else target.of(name)
            ends[topic] = max(end, read)
        if bytes_max is not None:
            ends = await _within(log, start, ends, bytes_max)
        kept = await _kept(log, options, start, {str(topic) for topic in topics})
    return {**kept, **{str(topic): end for topic, end in ends.items()}}


async def _end(log: RegisteredLog, topic: TopicName, start: Position) -> Position:
    """The topic's end, or `start` while too few bookies answer; the query waits for them."""
    try:
        return await topic_end(log, topic)
    except BookieError as error:
        logger.warning("the topic waits for its bookies", topic=str(topic), error=str(error))
        return start


async def _kept(
    log: RegisteredLog, options: ReadOptions, start: StreamOffset, meant: set[str]
) -> dict[str, Position]:
    """The positions to keep: of selected topics, and of existing topics no longer selected.

    If a selected topic was deleted, it is unknown whether all of it was read: raises
    PersistenceError, or logs it if `failOnDataLoss` is off.
    """
    kept: dict[str, Position] = {}
    for name, position in start.positions.items():
        topic = parse_topic(name)
        if name in meant or await _exists(log, topic):
            kept[name] = position
        elif means(options.topics, options.pattern, topic):
            lost = f"the topic was deleted, with what was behind {position}"
            if options.fail_on_data_loss:
                raise PersistenceError(
                    f"{name}: {lost}; set failOnDataLoss to false to read on without it"
                )
            logger.warning("entries lost", topic=name, lost=lost)
    return kept


async def _exists(log: RegisteredLog, topic: TopicName) -> bool:
    """Whether the log exists; it does not if a partitioned topic has taken the topic's name."""
    try:
        return topic in await logs_of(log.store, topic)
    except TopicNotFound:
        return False


async def _within(
    log: RegisteredLog, start: StreamOffset, ends: Mapping[TopicName, Position], bytes_max: int
) -> dict[TopicName, Position]:
    """Nearer ends, with about `bytes_max` before them, divided among the topics in proportion."""
    logs = {topic: await topic_log(log, topic, end) for topic, end in ends.items()}
    waiting = {
        topic: _bytes_between(logs[topic], start.of(str(topic)), end) for topic, end in ends.items()
    }
    total = sum(waiting.values())
    if total <= bytes_max:
        return dict(ends)
    return {
        topic: _reached(logs[topic], start.of(str(topic)), end, bytes_max * waiting[topic] / total)
        for topic, end in ends.items()
    }


def _steps(log: TopicLog, start: Position, end: Position) -> Iterator[tuple[int, int, int, float]]:
    """Per ledger after start, up to end: its id, first and last entry, bytes per entry."""
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
    """The position about `room` bytes after start; at least one entry."""
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
