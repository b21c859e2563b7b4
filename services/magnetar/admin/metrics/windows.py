"""Counts of the last whole minute, computed from counters that only grow.

Pulsar's latency and size buckets are such counts (dashboards divide them by 60), and so are the
rates of the cache. `MinuteWindows.turn` ends a minute; until the next turn, that minute is shown.
Before the first turn, all counts so far are shown. Topics without traffic cost nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.counters import (
    ENTRY_SIZE_BOUNDS_BYTES,
    WRITE_LATENCY_BOUNDS_MS,
    TopicCounters,
)

WINDOW_S: Final = 60.0

LATENCIES: Final = len(WRITE_LATENCY_BOUNDS_MS) + 1
SIZES: Final = len(ENTRY_SIZE_BOUNDS_BYTES) + 1
NO_TRAFFIC: Final = (0,) * (LATENCIES + SIZES + 3)

Counts = tuple[float, ...]


def counts_of(counters: TopicCounters) -> Counts:
    """Returns latency buckets, size buckets, entries, bytes and the total latency in ms."""
    if not counters.entries_in or not counters.write_latency_counts:
        return NO_TRAFFIC
    return (
        *counters.write_latency_counts,
        *counters.entry_size_counts,
        counters.entries_in,
        counters.bytes_in,
        counters.write_latency_total_ms,
    )


def difference(now: Sequence[float], before: Sequence[float]) -> Counts:
    """Returns the increase of every count."""
    return tuple(a - b for a, b in zip(now, before, strict=True))


class MinuteWindows:
    """The counts of every topic over the last whole minute."""

    def __init__(self) -> None:
        self._at_turn: dict[str, Counts] = {}
        self._last: dict[str, Counts] = {}
        self._turned = False

    def turn(self, topics: Iterable[Topic]) -> None:
        """Ends the current minute."""
        at_turn: dict[str, Counts] = {}
        last: dict[str, Counts] = {}
        for topic in topics:
            now = counts_of(topic.counters)
            if now is NO_TRAFFIC:
                continue
            at_turn[topic.full_name] = now
            before = self._at_turn.get(topic.full_name)
            # The topic was opened again, which resets its counters.
            if before is None or before[-2] > now[-2]:
                before = NO_TRAFFIC
            if now != before:
                last[topic.full_name] = difference(now, before)
        self._at_turn, self._last, self._turned = at_turn, last, True

    def of(self, topic: Topic) -> Counts:
        """Returns the topic's counts of the last whole minute."""
        if not self._turned:
            return counts_of(topic.counters)
        return self._last.get(topic.full_name, NO_TRAFFIC)


class Rate:
    """The rate per second of a counter over the last whole minute."""

    __slots__ = ("_at_turn", "per_second")

    def __init__(self) -> None:
        self._at_turn = 0
        self.per_second = 0.0

    def turn(self, value: int) -> None:
        """Ends the current minute with the counter's value."""
        self.per_second = (value - self._at_turn) / WINDOW_S
        self._at_turn = value
