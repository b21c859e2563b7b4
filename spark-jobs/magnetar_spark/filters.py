"""What filters on metadata columns say of topics, positions and times. Pure.

Taken are comparisons of `__publishTime`, `__partition`, `__ledgerId` and `__entryId` with a value,
`in` for all of these but the time, `=`, `in` and `like 'x%'` for `__topic`, and `is not null` for
all five. They are kept exactly: an entry has one of each, so what they leave out is not planned, or
passed over before it is decompressed. Spark drops what a reader prunes where it takes no filter as
done, so these are, and all others are left to Spark.
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
from magnetar.offload.file_layout import TIME_MS_MAX
from magnetar_spark.log.planning import Interval, Window
from magnetar_spark.table import ENTRY_ID, LEDGER_ID, PARTITION, PUBLISH_TIME, TOPIC

NUMBERS: Final = (PUBLISH_TIME, PARTITION, LEDGER_ID, ENTRY_ID)
US_PER_MS: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Bounds:
    """What all filters together leave. Can be pickled. `left` are those that Spark must see to."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self.intervals = dict.fromkeys(NUMBERS, Interval())
        self.among: dict[str, frozenset[Any]] = {}
        """Columns that have one of these values."""
        self.topic_starts: list[str] = []
        self.left: list[Filter] = [each for each in filters if not self._take(each)]

    def _take(self, each: Filter) -> bool:
        """Whether the filter is kept from now on."""
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        name, value = ".".join(attribute), getattr(each, "value", None)
        if name not in (*NUMBERS, TOPIC):
            return False
        if isinstance(each, IsNotNull):
            if name == PUBLISH_TIME:  # null beyond the year 9999; the others never are
                self.intervals[name] = self.intervals[name].cut(-ID_MAX, TIME_MS_MAX)
            return True
        if isinstance(each, In):
            if name == PUBLISH_TIME or not all(_comparable(name, one) for one in each.value):
                return False
            self._among(name, each.value)
        elif value is None or not _comparable(name, value):
            return False
        elif isinstance(each, StringStartsWith) and name == TOPIC:
            self.topic_starts.append(value)
        elif isinstance(each, EqualTo | EqualNullSafe) and name != PUBLISH_TIME:
            self._among(name, (value,))
        elif name != TOPIC and isinstance(
            each,
            EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual,
        ):
            self.intervals[name] = self.intervals[name].cut(*_ends(each, value))
        else:
            return False
        return True

    def _among(self, name: str, values: Iterable[Any]) -> None:
        wanted = frozenset(value for value in values if value is not None)
        self.among[name] = self.among.get(name, wanted) & wanted

    def excludes(self, topic: TopicName) -> bool:
        """Whether nothing of this topic or partition is wanted."""
        name, index = str(topic), topic.partition_index
        return not (
            name in self.among.get(TOPIC, (name,))
            and all(name.startswith(start) for start in self.topic_starts)
            and index in self.among.get(PARTITION, (index,))
            and self.intervals[PARTITION].has(index)
        )

    def narrowed(self, window: Window) -> Window:
        """The window, less what the filters leave out.

        A ledger that is younger than a time may hold older messages, so only the window's own end
        leaves such ledgers out.
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
    """Whether the value is of the column's type, or null: others are Spark's to convert."""
    if value is None:
        return True
    if name == TOPIC:
        return isinstance(value, str)
    if name == PUBLISH_TIME:
        return isinstance(value, datetime)
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class _Value:
    """A literal as a number: what is not above it, and what is not below it."""

    floor: int
    ceiling: int


def _ends(each: Filter, value: Any) -> tuple[int, int]:
    """From where to where numbers are that pass the filter, both inclusive."""
    number = _number(value)
    if isinstance(each, GreaterThan):
        return number.floor + 1, ID_MAX
    if isinstance(each, GreaterThanOrEqual):
        return number.ceiling, ID_MAX
    if isinstance(each, LessThan):
        return -ID_MAX, number.ceiling - 1
    if isinstance(each, LessThanOrEqual):
        return -ID_MAX, number.floor
    return number.ceiling, number.floor  # none where it lies between two


def _number(value: int | datetime) -> _Value:
    """Times in ms, finer ones between two; without a zone they are in UTC."""
    if not isinstance(value, datetime):
        return _Value(value, value)
    known = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    micros = (known - _EPOCH) // timedelta(microseconds=1)
    return _Value(micros // US_PER_MS, -(-micros // US_PER_MS))
