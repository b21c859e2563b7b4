"""Plans for Spark: of a batch read, and of one micro-batch of a stream.

What was wanted but is gone (trimmed by retention, deleted with its topic) fails the plan, or, with
`failOnDataLoss` off, is passed over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import TopicName
from magnetar_spark.filters import Bounds
from magnetar_spark.log.access import Log, opened_log
from magnetar_spark.log.ledgers import TopicLog, topic_log
from magnetar_spark.log.planning import Interval, Range, Window, ranges_of, tasks_of
from magnetar_spark.log.topics import resolve
from magnetar_spark.offsets import Start
from magnetar_spark.options import ReadOptions


@dataclass(frozen=True, slots=True)
class Plan:
    """What tasks there are, and where the bookies are that they read from."""

    tasks: list[tuple[Range, ...]]
    bookies: tuple[BookieRegistration, ...]

    def partitions(self) -> list[InputPartition]:
        return [LogPartition(ranges, self.bookies) for ranges in self.tasks]


class LogPartition(InputPartition):
    """One task."""

    def __init__(self, ranges: Sequence[Range], bookies: tuple[BookieRegistration, ...]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.bookies = bookies


async def plan_read(options: ReadOptions, bounds: Bounds) -> Plan:
    """The tasks of a batch read, of what the filters leave."""
    windows: dict[TopicName, Window] = {}
    async with opened_log(options.log) as log:
        for topic in await resolve(log.store, options.topics, options.pattern):
            if bounds.excludes(topic):
                continue
            window = _window(options, topic)
            if options.fail_on_data_loss and window.first > EARLIEST:
                _check_start(await topic_log(log, topic), window.first)
            windows[topic] = bounds.narrowed(window)
        return await _planned(log, windows.items(), options.partition_bytes)


async def plan_between(
    options: ReadOptions, between: Iterable[tuple[TopicName, Position, Position]]
) -> Plan:
    """The tasks of a micro-batch: of each topic what lies behind the first position, up to and
    with the second."""
    times = _times(options.starting, None)
    windows = [
        (topic, Window(behind(start), end, times)) for topic, start, end in between if start < end
    ]
    async with opened_log(options.log) as log:
        if options.fail_on_data_loss:
            for topic, window in windows:
                _check_start(await topic_log(log, topic), window.first)
        return await _planned(log, windows, options.partition_bytes)


def behind(position: Position) -> Position:
    """The next position, where there is one."""
    return position if position == EARLIEST else Position(position[0], position[1] + 1)


async def _planned(
    log: Log, windows: Iterable[tuple[TopicName, Window]], partition_bytes: int
) -> Plan:
    ranges: list[Range] = []
    for topic, window in windows:
        ranges += ranges_of(await topic_log(log, topic), window, partition_bytes)
    return Plan(tasks_of(ranges, partition_bytes), tuple(log.bookies.registrations()))


def _window(options: ReadOptions, topic: TopicName) -> Window:
    starting, ending = options.starting, options.ending
    first = starting.of(topic) if starting else None
    last = ending.of(topic) if ending else None
    return Window(
        EARLIEST if first is None else first,
        LATEST if last is None else last,
        _times(starting, ending),
    )


def _times(starting: Start | None, ending: Start | None) -> Interval:
    times = Interval()
    if starting is not None and starting.time_ms is not None:
        times = times.cut(starting.time_ms, times.high)
    if ending is not None and ending.time_ms is not None:
        times = times.cut(times.low, ending.time_ms)
    return times


def _check_start(log: TopicLog, first: Position) -> None:
    """Raises PersistenceError where entries from `first` on were trimmed."""
    if first <= log.trimmed_to and first > EARLIEST:
        raise PersistenceError(
            f"{log.topic}: entries from {first} to {log.trimmed_to} are not there any more "
            "(retention let them go); set failOnDataLoss to false to read on without them"
        )
