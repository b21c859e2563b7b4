"""How a backlog moves between two runs, and when it will be gone. Pure.

Between the run before and this one, `appended` entries came (counted from where the log ended
then); what is not in the backlog now was consumed. A first run, a subscription that was not there,
and a log whose old end was trimmed away leave it unknown: nothing is guessed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from magnetar.core.ids import Position
from magnetar.managed_ledger.index import LedgerIndex

SECONDS_MIN: Final = 1.0
"""Between two runs, for rates to mean something."""


class Trend(StrEnum):
    """Where a backlog goes."""

    UNKNOWN = "unknown"
    EMPTY = "empty"
    GROWING = "growing"
    STALLED = "stalled"
    """There is a backlog, and nothing was consumed."""
    STEADY = "steady"
    DRAINING = "draining"
    RESET = "reset"
    """It moved back: more is unread than came, so somebody rewound it."""


@dataclass(frozen=True, slots=True)
class Before:
    """What the run before saw of a subscription."""

    at_ms: int
    entries: int
    end: Position
    """Of the log."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Entries per second; None: not known. `drains_in_s` is None, too, where it never will."""

    trend: Trend
    seconds: float | None = None
    published_per_s: float | None = None
    consumed_per_s: float | None = None
    growth_per_s: float | None = None
    drains_in_s: float | None = None


def appended_since(index: LedgerIndex, trimmed_to: Position, end: Position) -> int | None:
    """Entries that came behind `end`; None where some of them are gone already.

    `trimmed_to` is the greatest position of a ledger that is no longer there.
    """
    if end < trimmed_to or end > index.last_confirmed:
        return None
    return index.rank_end - index.rank(*end)


def progress(before: Before | None, entries: int, appended: int | None, now_ms: int) -> Progress:
    """See the module's text."""
    if before is None or appended is None:
        return Progress(Trend.EMPTY if before is not None and not entries else Trend.UNKNOWN)
    seconds = (now_ms - before.at_ms) / 1000
    if seconds < SECONDS_MIN:
        return Progress(Trend.UNKNOWN)
    consumed = before.entries + appended - entries
    grown = entries - before.entries
    published_per_s, growth_per_s = appended / seconds, grown / seconds
    if consumed < 0:
        return Progress(Trend.RESET, seconds, published_per_s, None, growth_per_s)
    if not entries:
        trend = Trend.EMPTY
    elif not consumed:
        trend = Trend.STALLED
    elif grown > 0:
        trend = Trend.GROWING
    elif grown < 0:
        trend = Trend.DRAINING
    else:
        trend = Trend.STEADY
    drains_in_s = None
    if not entries:
        drains_in_s = 0.0
    elif grown < 0:
        drains_in_s = entries / -growth_per_s
    return Progress(trend, seconds, published_per_s, consumed / seconds, growth_per_s, drains_in_s)
