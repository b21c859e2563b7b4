"""Plans batch reads, and micro-batches of streams, for Spark.

If requested entries are gone (trimmed by retention, or deleted with their topic), the plan fails,
or with `failOnDataLoss` off logs the loss and continues. Each topic's log is read once, so the
check and the ranges see the same state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql.datasource import InputPartition

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName, parse_topic
from magnetar.jobs.log.ledgers import topic_log
from magnetar.jobs.log.ranges import Interval, Range, Window, ranges_of, tasks_of
from magnetar.jobs.log.topics import resolve
from magnetar.jobs.log.transactions.visible import Settled
from magnetar_spark.filters import Bounds
from magnetar_spark.log.access import RegisteredLog, opened_log
from magnetar_spark.log.losses import losses
from magnetar_spark.log.schemas import packed, topic_schemas
from magnetar_spark.offsets import Start
from magnetar_spark.options import ReadOptions

log: Final = get_logger("magnetar.spark.plan")


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks of a read, and the bookies that they read from.

    `schemas` has all versions of each topic, packed, by its name without partition.
    """

    tasks: list[tuple[Range, ...]]
    bookies: tuple[BookieRegistration, ...]
    schemas: Mapping[str, bytes] = field(default_factory=dict)

    def partitions(self) -> list[InputPartition]:
        return [LogPartition(ranges, self.bookies, self._schemas(ranges)) for ranges in self.tasks]

    def _schemas(self, ranges: Iterable[Range]) -> dict[str, bytes]:
        return {name: self.schemas[name] for name in _bases(ranges) if name in self.schemas}


class LogPartition(InputPartition):
    """One task. `schemas` are the versions that its messages may have been written with.

    Schemas travel with the task, since a stream's reader is sent only once, before later topics
    and versions exist.
    """

    def __init__(
        self,
        ranges: Sequence[Range],
        bookies: tuple[BookieRegistration, ...],
        schemas: Mapping[str, bytes],
    ) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.bookies = bookies
        self.schemas = dict(schemas)


async def plan_read(options: ReadOptions, bounds: Bounds) -> Plan:
    """The tasks of a batch read, within the filters' bounds."""
    starting = options.starting
    ranges: list[Range] = []
    async with opened_log(options.log) as opened:
        for topic in await resolve(opened.store, options.topics, options.pattern):
            if bounds.excludes(topic):
                continue
            window = _window(options, topic)
            current = await topic_log(opened, topic)
            if window.first < LATEST:
                start = None if window.first == EARLIEST else before(window.first)
                of_this_log = starting is not None and str(topic) in starting.by_topic
                _check(options, topic, losses(current, start, of_this_log=of_this_log))
            ranges += ranges_of(current, bounds.narrowed(window), options.partition_bytes)
        return await _planned(opened, options, ranges)


async def plan_between(
    options: ReadOptions,
    between: Iterable[tuple[TopicName, Position, Position]],
    times: Interval,
    settled: dict[TopicName, Settled],
) -> Plan:
    """The tasks of a micro-batch: per topic, the entries after the first position, up to and
    including the second, which an earlier read found confirmed, and not held back by a transaction.

    Raises PersistenceError if a transaction holds back some of them now: it was read as ended
    before, so the metadata store has lost its outcome.
    """
    ranges: list[Range] = []
    async with opened_log(options.log) as fresh:
        opened = replace(fresh, settled=settled)
        for topic, start, end in between:
            if start < end:
                current = await topic_log(opened, topic, end)
                _check(options, topic, losses(current, start, end))
                if current.horizon is not None and current.horizon <= end:
                    raise PersistenceError(
                        f"{topic}: {current.horizon} is in an open transaction, though the stream "
                        f"has been read up to {end}; retry once the transaction has ended"
                    )
                window = Window(behind(start), end, times, times)
                ranges += ranges_of(current, window, options.partition_bytes)
        return await _planned(opened, options, ranges)


def behind(position: Position) -> Position:
    """The next position; EARLIEST stays."""
    return position if position == EARLIEST else Position(position[0], position[1] + 1)


def before(position: Position) -> Position:
    """The inverse of `behind`."""
    return position if position == EARLIEST else Position(position[0], position[1] - 1)


def times_from(starting_ms: int | None) -> Interval:
    """Publish times from `starting_ms` on; all times for None."""
    times = Interval()
    return times if starting_ms is None else times.cut(starting_ms, times.high)


async def _planned(opened: RegisteredLog, options: ReadOptions, ranges: list[Range]) -> Plan:
    """Completes a plan. Schemas are read after the log, so all messages' versions are included."""
    schemas: dict[str, bytes] = {}
    if not options.raw_values:
        for name in sorted(_bases(ranges)):
            of_topic = await topic_schemas(opened.store, parse_topic(name))
            schemas[name] = packed(of_topic.versions)
    tasks = tasks_of(ranges, options.partition_bytes)
    return Plan(tasks, tuple(opened.bookies.registrations()), schemas)


def _bases(ranges: Iterable[Range]) -> set[str]:
    return {str(parse_topic(topic).base) for topic in {item.topic for item in ranges}}


def _window(options: ReadOptions, topic: TopicName) -> Window:
    starting, ending = options.starting, options.ending
    first = starting.of(topic) if starting else None
    last = ending.of(topic) if ending else None
    times = _times(starting, ending)
    return Window(
        EARLIEST if first is None else first, LATEST if last is None else last, times, times
    )


def _times(starting: Start | None, ending: Start | None) -> Interval:
    times = times_from(None if starting is None else starting.time_ms)
    if ending is not None and ending.time_ms is not None:
        times = times.cut(times.low, ending.time_ms)
    return times


def _check(options: ReadOptions, topic: TopicName, lost: Iterable[str]) -> None:
    """Raises PersistenceError for a loss, or logs it if `failOnDataLoss` is off."""
    for loss in lost:
        if options.fail_on_data_loss:
            raise PersistenceError(
                f"{topic}: {loss}; set failOnDataLoss to false to read on without it"
            )
        log.warning("entries lost", topic=str(topic), lost=loss)
