"""Computes when a schedule is due next, as Kubernetes' CronJob controller does. Pure: no IO.

A schedule has five fields (minute hour day month weekday) with lists, ranges, steps and names, or
is a macro. If day and weekday are both restricted, either is sufficient; `*` and `*/1` do not
restrict, `*/2` does. Times are in a time zone: a time that the clock skips in spring is not due.
Bound: a schedule that is not due within YEARS_MAX (30 February) is never due.
"""

import calendar
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from zoneinfo import ZoneInfo

YEARS_MAX: Final = 5
MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}
_MONTHS: Final = {name.lower(): at for at, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS: Final = {
    name: at for at, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
}
_FIELDS: Final[tuple[tuple[str, int, int, dict[str, int]], ...]] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 6, _WEEKDAYS),
)


class BadSchedule(ValueError):
    """The schedule cannot be parsed; the text names the field."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A parsed schedule: `parse`, then `after`."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Day and weekday are both restricted."""
    zone: datetime.tzinfo = datetime.UTC

    @classmethod
    def parse(cls, text: str, time_zone: str | None = None) -> "Schedule":
        """Parses a schedule. Raises BadSchedule."""
        try:
            zone = ZoneInfo(time_zone) if time_zone else datetime.UTC
        except (KeyError, ValueError, OSError) as error:
            raise BadSchedule(f"there is no time zone {time_zone!r}") from error
        parts = MACROS.get(text, text).split()
        if len(parts) != len(_FIELDS):
            raise BadSchedule(f"{text!r} has {len(parts)} fields of {len(_FIELDS)}")
        minutes, hours, days, months, weekdays = (
            frozenset(_values(part, *field)) for part, field in zip(parts, _FIELDS, strict=True)
        )
        either = not _is_open(parts[2]) and not _is_open(parts[4])
        return cls(minutes, hours, days, months, weekdays, either, zone)

    def after(self, moment: datetime.datetime) -> datetime.datetime | None:
        """The first due time after `moment`, in UTC; None: never."""
        local = moment.astimezone(self.zone)
        first = local.date()
        for ahead in range(YEARS_MAX * 366):
            day = first + datetime.timedelta(days=ahead)
            if not self._has_day(day):
                continue
            times = [at for at in self._times(day) if at > moment]
            if times:
                return min(times)
        return None

    def _has_day(self, day: datetime.date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day or by_weekday if self.either_day else by_day and by_weekday

    def _times(self, day: datetime.date) -> Iterator[datetime.datetime]:
        for hour in self.hours:
            for minute in self.minutes:
                clock = datetime.time(hour, minute)
                local = datetime.datetime.combine(day, clock, tzinfo=self.zone)
                at = local.astimezone(datetime.UTC)
                if at.astimezone(self.zone).time() == clock:  # otherwise the clock skips it
                    yield at


def _is_open(part: str) -> bool:
    """Whether a field of days does not restrict: an item is `*`, with a step of at most 1.

    For robfig/cron, the library of Kubernetes' controller, `*/2` restricts.
    """
    return any(item.partition("/")[::2] in (("*", ""), ("*", "1")) for item in part.split(","))


def _values(part: str, name: str, low: int, high: int, words: dict[str, int]) -> Iterator[int]:
    def number(text: str) -> int:
        value = words.get(text.lower(), int(text) if text.isdecimal() else -1)
        if not low <= value <= high:
            raise BadSchedule(f"{name} {part!r}: {text!r} is not in {low} to {high}")
        return value

    for item in part.split(","):
        span, slash, step_text = item.partition("/")
        if slash and not (step_text.isdecimal() and int(step_text) > 0):
            raise BadSchedule(f"{name} {part!r}: the step {step_text!r} is no number above 0")
        first, dash, last = span.partition("-")
        if span == "*":
            start, end = low, high
        else:
            start = number(first)
            # "5/15" runs to the end of the range; "5" alone does not.
            end = number(last) if dash else (high if slash else start)
        if end < start:
            raise BadSchedule(f"{name} {part!r}: the range {span!r} goes backwards")
        yield from range(start, end + 1, int(step_text) if slash else 1)
