"""When a schedule is due next, as Kubernetes' CronJob controller reckons it. Pure.

Five fields (minute hour day month weekday) with lists, ranges, steps and names, or a macro. Where
day and weekday are both given, either of them is enough; `*` and `*/1` are not given, `*/2` is.
Times are those of a time zone: one that a clock skips in spring is not due. Bound: YEARS_MAX are
looked through; what is not due in them never is (30 February).
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
    """It cannot be read; says which field."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """See the module's text. `parse`, then `after`."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Day and weekday are both given."""
    zone: datetime.tzinfo = datetime.UTC

    @classmethod
    def parse(cls, text: str, time_zone: str | None = None) -> "Schedule":
        """Raises BadSchedule."""
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
        """The first time later than that, in UTC; None: never."""
        local = moment.astimezone(self.zone)
        first = local.date()
        for ahead in range(YEARS_MAX * 366):
            day = first + datetime.timedelta(days=ahead)
            if not self._has_day(day):
                continue
            found = [at for at in self._times(day) if at > moment]
            if found:
                return min(found)
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
                found = local.astimezone(datetime.UTC)
                back = found.astimezone(self.zone)
                if back.time() == clock:  # else the clock skips it
                    yield found


def _is_open(part: str) -> bool:
    """Whether a field of days counts as not given: an item is `*`, with a step of 1 at most.

    robfig/cron, the library of Kubernetes' controller, counts `*/2` as given.
    """
    return any(one.partition("/")[::2] in (("*", ""), ("*", "1")) for one in part.split(","))


def _values(part: str, name: str, low: int, high: int, words: dict[str, int]) -> Iterator[int]:
    def number(text: str) -> int:
        value = words.get(text.lower(), int(text) if text.isdecimal() else -1)
        if not low <= value <= high:
            raise BadSchedule(f"{name} {part!r}: {text!r} is not in {low} to {high}")
        return value

    for one in part.split(","):
        span, slash, step_text = one.partition("/")
        if slash and not (step_text.isdecimal() and int(step_text) > 0):
            raise BadSchedule(f"{name} {part!r}: the step {step_text!r} is no number above 0")
        first, dash, last = span.partition("-")
        if span == "*":
            start, end = low, high
        else:
            start = number(first)
            # "5/15" goes on to the end; "5" alone does not.
            end = number(last) if dash else (high if slash else start)
        if end < start:
            raise BadSchedule(f"{name} {part!r}: the range {span!r} goes backwards")
        yield from range(start, end + 1, int(step_text) if slash else 1)
