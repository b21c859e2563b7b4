"""Plans for Spark: of a batch read, and of one micro-batch of a stream.

What was asked for but is gone (trimmed by retention, deleted with its topic) fails the plan, or,
with `failOnDataLoss` off, is logged and passed over. Each topic's log is read once: the check and
the ranges are of the same state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.datasource import InputPartition

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName, parse_topic
from magnetar_spark.filters import Bounds
from magnetar_spark.log.access import Log, opened_log
from magnetar_spark.log.ledgers import TopicLog, topic_log
from magnetar_spark.log.losses import losses
from magnetar_spark.log.planning import Interval, Range, Window, ranges_of, tasks_of
from magnetar_spark.log.schemas import packed, topic_schemas
from magnetar_spark.log.topics import resolve
from magnetar_spark.offsets import Start
from magnetar_spark.options import ReadOptions

log: Final = get_logger("magnetar.spark.plan")


@dataclass(frozen=True, slots=True)
class Plan:
    """What tasks there are, and where the bookies are that they read from.

    `schemas` has all versions of each topic that is read, packed, by the name without partition.
    """

    tasks: list[tuple[Range, ...]]
    bookies: tuple[BookieRegistration, ...]
    schemas: Mapping[str, bytes] = field(default_factory=dict)

    def partitions(self) -> list[InputPartition]:
        return [LogPartition(ranges, self.bookies, self._schemas(ranges)) for ranges in self.tasks]

    def _schemas(self, ranges: Iterable[Range]) -> dict[str, bytes]:
        return {name: self.schemas[name] for name in _bases(ranges) if name in self.schemas}


class LogPartition(InputPartition):
    """One task. `schemas` are the versions that messages of its topics may be written under.

    They travel with the task: a stream's reader is sent once, before topics and versions that
    come later exist.
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
    """The tasks of a batch read, of what the filters leave."""
    starting = options.starting
    ranges: list[Range] = []
    async with opened_log(options.log) as opened:
        for topic in await resolve(opened.store, options.topics, options.pattern):
            if bounds.excludes(topic):
                continue
            window = _window(options, topic)
            found = await topic_log(opened, topic)
            if window.first < LATEST:
                start = None if window.first == EARLIEST else before(window.first)
                of_this_log = starting is not None and str(topic) in starting.by_topic
                _check(options, found, losses(found, start, of_this_log=of_this_log))
            ranges += ranges_of(found, bounds.narrowed(window), options.partition_bytes)
        return await _planned(opened, options, ranges)


async def plan_between(
    options: ReadOptions,
    between: Iterable[tuple[TopicName, Position, Position]],
    times: Interval,
) -> Plan:
    """The tasks of a micro-batch: of each topic what lies behind the first position, up to and
    with the second, which an earlier read found confirmed."""
    ranges: list[Range] = []
    async with opened_log(options.log) as opened:
        for topic, start, end in between:
            if start < end:
                found = await topic_log(opened, topic, end)
                _check(options, found, losses(found, start, end))
                window = Window(behind(start), end, times, times)
                ranges += ranges_of(found, window, options.partition_bytes)
        return await _planned(opened, options, ranges)


def behind(position: Position) -> Position:
    """The next position, where there is one."""
    return position if position == EARLIEST else Position(position[0], position[1] + 1)


def before(position: Position) -> Position:
    """The position that `behind` turns into this one."""
    return position if position == EARLIEST else Position(position[0], position[1] - 1)


def times_from(starting_ms: int | None) -> Interval:
    """Publish times from this one on, all of them for None."""
    times = Interval()
    return times if starting_ms is None else times.cut(starting_ms, times.high)


async def _planned(opened: Log, options: ReadOptions, ranges: list[Range]) -> Plan:
    """Schemas are read after the log, so the version of each message is among them."""
    schemas: dict[str, bytes] = {}
    if not options.raw_values:
        for name in sorted(_bases(ranges)):
            found = await topic_schemas(opened.store, parse_topic(name))
            schemas[name] = packed(found.versions)
    tasks = tasks_of(ranges, options.partition_bytes)
    return Plan(tasks, tuple(opened.bookies.registrations()), schemas)


def _bases(ranges: Iterable[Range]) -> set[str]:
    return {str(parse_topic(topic).base) for topic in {each.topic for each in ranges}}


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


def _check(options: ReadOptions, found: TopicLog, lost: Iterable[str]) -> None:
    """Raises PersistenceError if something is lost, or logs it with `failOnDataLoss` off."""
    for each in lost:
        if options.fail_on_data_loss:
            raise PersistenceError(
                f"{found.topic}: {each}; set failOnDataLoss to false to read on without it"
            )
        log.warning("entries lost", topic=str(found.topic), lost=each)
