"""Computes the growth of a backlog between two runs, and the time to drain it. Pure.

Between the earlier run and this one, `appended` entries were added, counted from the log's earlier
end; those that are not in the backlog now were consumed. After a first run, for a new subscription,
or if the earlier end was trimmed, growth is unknown: nothing is guessed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from magnetar.core.ids import Position
from magnetar.managed_ledger.index import LedgerIndex

SECONDS_MIN: Final = 1.0
"""The minimal time between two runs for meaningful rates."""


class Trend(StrEnum):
    """The direction of a backlog."""

    UNKNOWN = "unknown"
    EMPTY = "empty"
    GROWING = "growing"
    STALLED = "stalled"
    """A backlog of which nothing was consumed."""
    STEADY = "steady"
    DRAINING = "draining"
    RESET = "reset"
    """More entries are unread than were added: the subscription was reset to the past."""


@dataclass(frozen=True, slots=True)
class Before:
    """A subscription in the earlier run. `end` is the end of the log."""

    at_ms: int
    entries: int
    end: Position


@dataclass(frozen=True, slots=True)
class Progress:
    """Rates in entries per second; None if unknown, and `drains_in_s` also if it never drains."""

    trend: Trend
    seconds: float | None = None
    published_per_s: float | None = None
    consumed_per_s: float | None = None
    growth_per_s: float | None = None
    drains_in_s: float | None = None


def appended_since(index: LedgerIndex, trimmed_to: Position, end: Position) -> int | None:
    """Entries added after `end`; None if some of them were trimmed.

    `trimmed_to` is the greatest position of a trimmed ledger.
    """
    if end < trimmed_to or end > index.last_confirmed:
        return None
    return index.rank_end - index.rank(*end)


def progress(before: Before | None, entries: int, appended: int | None, now_ms: int) -> Progress:
    """The progress of a subscription since the earlier run."""
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
