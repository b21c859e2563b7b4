"""How fast a subscription's dispatcher may hand over: the topic's rate and the subscription's own.

A dispatcher without rates has no throttle, and pays one look at that in each turn. One with them
asks how many entries it may hand over (`entries_max`), and says what it did (`took`). Rates count
messages and bytes; how many of these an entry has is estimated from the last ones, the very first
goes alone, and what was taken in excess is paid for before anything goes again; it is what
ENTRIES_AT_ONCE_MAX entries hold at most. Where nothing may go the dispatcher is woken
when there are tokens, in turn with the topic's other subscriptions.

Where `tailing` is off, a subscription that is less than BACKLOG_ENTRIES_MIN behind is neither
throttled nor counted (Pulsar: dispatchThrottlingOnNonBacklogConsumerEnabled=false).
"""

from collections.abc import Callable
from typing import Final

from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.managed_ledger.cursor import Cursor

BACKLOG_ENTRIES_MIN: Final = 1_000
"""Pulsar: managedLedgerCursorBackloggedThreshold."""
ENTRIES_AT_ONCE_MAX: Final = 50
AVERAGE_WEIGHT: Final = 0.5
"""Of the newest turn in the estimate."""


class ThrottledEvents:
    """How often a subscription had to wait, by what (PIP-406)."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def count(self, limiter: RateLimiter) -> None:
        """It waits for this limiter's tokens now."""
        self.messages += limiter.out_of_messages
        self.bytes += limiter.out_of_bytes


class DispatchThrottle:
    """See the module's text. One for each subscription that was ever throttled."""

    __slots__ = (
        "_bytes_per_entry", "_cursor", "_messages_per_entry", "_wake",
        "by_subscription", "by_topic", "own", "tailing", "topic",
    )  # fmt: skip

    def __init__(self, cursor: Cursor, wake: Callable[[], None], *, tailing: bool) -> None:
        self._cursor = cursor
        self._wake = wake
        self._messages_per_entry = 0.0
        self._bytes_per_entry = 0.0
        self.tailing = tailing
        self.topic: RateLimiter | None = None
        self.own: RateLimiter | None = None
        self.by_topic = ThrottledEvents()
        self.by_subscription = ThrottledEvents()

    @property
    def needed(self) -> bool:
        return self.topic is not None or self.own is not None

    def entries_max(self, most: int) -> int:
        """How many of `most` entries may be handed over now; 0: `wake` is called later."""
        if self._is_free():
            return most
        most = min(most, ENTRIES_AT_ONCE_MAX) if self._bytes_per_entry else 1
        for limiter, events in ((self.own, self.by_subscription), (self.topic, self.by_topic)):
            if limiter is None:
                continue
            if not limiter.may_go():
                if self._cursor.backlog:
                    events.count(limiter)
                    limiter.wait(self._wake)
                return 0
            if most > 1:
                by_messages = limiter.messages_left() / self._messages_per_entry
                by_bytes = limiter.bytes_left() / self._bytes_per_entry
                most = max(1, int(min(most, by_messages, by_bytes)))
        return most

    def took(self, entries: int, messages: int, size_bytes: int) -> None:
        """So much was handed over."""
        self._messages_per_entry = _average(self._messages_per_entry, messages / entries)
        self._bytes_per_entry = _average(self._bytes_per_entry, size_bytes / entries)
        if self._is_free():
            return
        for limiter in (self.own, self.topic):
            if limiter is not None:
                limiter.take(messages, size_bytes)

    def fill_stats(self, stats: SubscriptionStats) -> None:
        """Adds how often the subscription had to wait."""
        stats.dispatch_throttled_msg_events_by_subscription_limit = self.by_subscription.messages
        stats.dispatch_throttled_bytes_events_by_subscription_limit = self.by_subscription.bytes
        stats.dispatch_throttled_msg_events_by_topic_limit = self.by_topic.messages
        stats.dispatch_throttled_bytes_events_by_topic_limit = self.by_topic.bytes

    def close(self) -> None:
        """Leaves the line of every limiter and drops the callback into the subscription."""
        for limiter in (self.own, self.topic):
            if limiter is not None:
                limiter.forget(self._wake)
        self._wake = _closed

    def _is_free(self) -> bool:
        return not self.tailing and self._cursor.backlog < BACKLOG_ENTRIES_MIN


def _average(before: float, now: float) -> float:
    if not before:
        return max(1.0, now)
    return max(1.0, before + (now - before) * AVERAGE_WEIGHT)


def _closed() -> None:
    """Stands for `wake` once the subscription is closed."""
