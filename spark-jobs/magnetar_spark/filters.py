"""Translates filters on metadata columns into bounds on topics, positions and times. Pure.

Supported are comparisons of `__publishTime`, `__partition`, `__ledgerId` and `__entryId` with a
value, `in` for all of these except the time, `=`, `in` and `like 'x%'` for `__topic`, and `is not
null` for all five. They are applied exactly, so excluded entries are not planned, or are skipped
before decompression. If a reader accepts no filter, Spark drops its pruning; so these are reported
as applied, and all others are left to Spark.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from magnetar.core.ids import ID_MAX
from magnetar.core.names import TopicName
from magnetar.jobs.log.ranges import Interval, Window
from magnetar.offload.file_layout import TIME_MS_MAX
from magnetar_spark.table import ENTRY_ID, LEDGER_ID, PARTITION, PUBLISH_TIME, TOPIC

NUMBERS: Final = (PUBLISH_TIME, PARTITION, LEDGER_ID, ENTRY_ID)
US_PER_MS: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Bounds:
    """The bounds of all filters together. Picklable. `left` are the filters left to Spark."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self.intervals = dict.fromkeys(NUMBERS, Interval())
        self.among: dict[str, frozenset[Any]] = {}
        """The allowed values of columns."""
        self.topic_starts: list[str] = []
        self.left: list[Filter] = [condition for condition in filters if not self._apply(condition)]

    def _apply(self, condition: Filter) -> bool:
        """Adds a filter to the bounds; False if it is not supported."""
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        name, value = ".".join(attribute), getattr(condition, "value", None)
        if name not in (*NUMBERS, TOPIC):
            return False
        if isinstance(condition, IsNotNull):
            if name == PUBLISH_TIME:  # null beyond the year 9999; the other columns never are
                self.intervals[name] = self.intervals[name].cut(-ID_MAX, TIME_MS_MAX)
            return True
        if isinstance(condition, In):
            values = condition.value
            if name == PUBLISH_TIME or not all(_comparable(name, value) for value in values):
                return False
            self._among(name, values)
        elif value is None or not _comparable(name, value):
            return False
        elif isinstance(condition, StringStartsWith) and name == TOPIC:
            self.topic_starts.append(value)
        elif isinstance(condition, EqualTo | EqualNullSafe) and name != PUBLISH_TIME:
            self._among(name, (value,))
        elif name != TOPIC and isinstance(
            condition,
            EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual,
        ):
            self.intervals[name] = self.intervals[name].cut(*_ends(condition, value))
        else:
            return False
        return True

    def _among(self, name: str, values: Iterable[Any]) -> None:
        wanted = frozenset(value for value in values if value is not None)
        self.among[name] = self.among.get(name, wanted) & wanted

    def excludes(self, topic: TopicName) -> bool:
        """Whether no entry of this topic or partition passes."""
        name, index = str(topic), topic.partition_index
        return not (
            name in self.among.get(TOPIC, (name,))
            and all(name.startswith(start) for start in self.topic_starts)
            and index in self.among.get(PARTITION, (index,))
            and self.intervals[PARTITION].has(index)
        )

    def narrowed(self, window: Window) -> Window:
        """The window within the filters' bounds.

        A ledger that was created after a time may hold older messages, so only the window's own
        end excludes such ledgers.
        """
        time = self.intervals[PUBLISH_TIME]
        return replace(
            window,
            publish_ms=window.publish_ms.cut(time.low, time.high),
            ledgers_ms=window.ledgers_ms.cut(time.low, window.ledgers_ms.high),
            ledgers=self.intervals[LEDGER_ID],
            entries=self.intervals[ENTRY_ID],
            ledgers_among=self.among.get(LEDGER_ID),
            entries_among=self.among.get(ENTRY_ID),
        )


def _comparable(name: str, value: Any) -> bool:
    """Whether the value is null or of the column's type; Spark converts other values."""
    if value is None:
        return True
    if name == TOPIC:
        return isinstance(value, str)
    if name == PUBLISH_TIME:
        return isinstance(value, datetime)
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class _Value:
    """A literal between integers: the greatest one not above it, the least one not below it."""

    floor: int
    ceiling: int


def _ends(condition: Filter, value: Any) -> tuple[int, int]:
    """The range of numbers that pass the filter, inclusive."""
    number = _number(value)
    if isinstance(condition, GreaterThan):
        return number.floor + 1, ID_MAX
    if isinstance(condition, GreaterThanOrEqual):
        return number.ceiling, ID_MAX
    if isinstance(condition, LessThan):
        return -ID_MAX, number.ceiling - 1
    if isinstance(condition, LessThanOrEqual):
        return -ID_MAX, number.floor
    return number.ceiling, number.floor  # empty if the value is between two integers


def _number(value: int | datetime) -> _Value:
    """Times in ms, possibly between two; a time without a zone is UTC."""
    if not isinstance(value, datetime):
        return _Value(value, value)
    time = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    micros = (time - _EPOCH) // timedelta(microseconds=1)
    return _Value(micros // US_PER_MS, -(-micros // US_PER_MS))
