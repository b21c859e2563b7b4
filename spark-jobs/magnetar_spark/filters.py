"""What filters on metadata columns say of topics, positions and times. Pure.

Pushed are comparisons of `__publishTime`, `__topic`, `__partition`, `__ledgerId` and, beside a
ledger that is fixed, `__entryId`. They narrow what is planned; Spark evaluates them all the same,
as a ledger may hold more than is wanted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from magnetar.core.ids import ID_MAX, Position
from magnetar.core.names import TopicName
from magnetar_spark.log.planning import Window
from magnetar_spark.table import ENTRY_ID, LEDGER_ID, PARTITION, PUBLISH_TIME, TOPIC

NUMBERS: Final = (PUBLISH_TIME, PARTITION, LEDGER_ID, ENTRY_ID)


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`, both inclusive."""

    low: int = -ID_MAX
    high: int = ID_MAX

    def cut(self, low: int, high: int) -> "Interval":
        return Interval(max(self.low, low), min(self.high, high))


class Bounds:
    """What all filters together leave. It can be pickled."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self.intervals = dict.fromkeys(NUMBERS, Interval())
        self.topics: set[str] | None = None
        self.topic_starts: list[str] = []
        for each in filters:
            self._take(each)

    def _take(self, each: Filter) -> None:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        name = ".".join(attribute)
        value = getattr(each, "value", None)
        if name in NUMBERS:
            self._take_number(name, each, value)
        elif name == TOPIC:
            if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
                self._only({value})
            elif isinstance(each, In):
                self._only({one for one in each.value if isinstance(one, str)})
            elif isinstance(each, StringStartsWith):
                self.topic_starts.append(each.value)

    def _only(self, names: set[str]) -> None:
        self.topics = names if self.topics is None else self.topics & names

    def _take_number(self, name: str, each: Filter, value: Any) -> None:
        known = self.intervals[name]
        if isinstance(each, In):
            numbers = [_number(one) for one in each.value if one is not None]
            known = known.cut(min(numbers, default=ID_MAX), max(numbers, default=-ID_MAX))
        elif value is None:
            return
        elif isinstance(each, EqualTo | EqualNullSafe):
            known = known.cut(_number(value), _number(value))
        elif isinstance(each, GreaterThan | GreaterThanOrEqual):
            known = known.cut(_number(value), ID_MAX)
        elif isinstance(each, LessThan | LessThanOrEqual):
            known = known.cut(-ID_MAX, _number(value))
        self.intervals[name] = known

    def excludes(self, topic: TopicName) -> bool:
        """Whether nothing of this topic or partition can be wanted."""
        name, partition = str(topic), self.intervals[PARTITION]
        return (
            (self.topics is not None and name not in self.topics)
            or not all(name.startswith(start) for start in self.topic_starts)
            or not partition.low <= topic.partition_index <= partition.high
        )

    def narrowed(self, window: Window) -> Window:
        """The window, less what the filters leave out."""
        time, ledger = self.intervals[PUBLISH_TIME], self.intervals[LEDGER_ID]
        entry = self.intervals[ENTRY_ID] if ledger.low == ledger.high else Interval()
        first = Position(ledger.low, max(0, entry.low))
        last = Position(ledger.high, entry.high)
        return Window(
            max(window.first, first),
            min(window.last, last),
            _later(window.publish_from_ms, time.low),
            _earlier(window.publish_to_ms, time.high),
        )


def _later(known: int | None, low: int) -> int | None:
    return known if low == -ID_MAX else max(low, low if known is None else known)


def _earlier(known: int | None, high: int) -> int | None:
    return known if high == ID_MAX else min(high, high if known is None else known)


def _number(value: Any) -> int:
    """Times in ms; without a zone they are in UTC, as the session's are when they come here."""
    if isinstance(value, datetime):
        known = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return int(known.timestamp() * 1000)
    return int(value)
