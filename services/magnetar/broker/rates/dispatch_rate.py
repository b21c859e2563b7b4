"""Throttles a subscription's dispatcher by the topic's rate and the subscription's own.

A dispatcher without rates has no throttle, and pays one check for that per turn. One with rates
queries how many entries it may dispatch (`entries_max`) and reports dispatched entries (`took`).
Rates count messages and bytes. Their number per entry is estimated from the last entries; the very
first entry is dispatched alone. An excess is a debt that is paid before the next dispatch; it is at
most the content of ENTRIES_AT_ONCE_MAX entries. A dispatcher without tokens is woken when new ones
accumulate, in turn with the topic's other subscriptions.

If `tailing` is off, a subscription with a backlog below BACKLOG_ENTRIES_MIN is neither throttled
nor counted (Pulsar: dispatchThrottlingOnNonBacklogConsumerEnabled=false).
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
"""The newest turn's weight in the estimate."""


class ThrottledEvents:
    """Counts how often a subscription had to wait for each kind of token (PIP-406)."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def count(self, limiter: RateLimiter) -> None:
        """Counts a wait for this limiter's tokens."""
        self.messages += limiter.out_of_messages
        self.bytes += limiter.out_of_bytes


class DispatchThrottle:
    """Limits one subscription's dispatch; exists for each subscription that was ever throttled."""

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
        """Whether any rate applies."""
        return self.topic is not None or self.own is not None

    def entries_max(self, most: int) -> int:
        """Returns how many of `most` entries may be dispatched now; after 0, `wake` is called."""
        if self.is_free:
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
        """Takes tokens for dispatched entries."""
        self._messages_per_entry = _average(self._messages_per_entry, messages / entries)
        self._bytes_per_entry = _average(self._bytes_per_entry, size_bytes / entries)
        if self.is_free:
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
        """Leaves the queues of all limiters and drops the callback into the subscription."""
        for limiter in (self.own, self.topic):
            if limiter is not None:
                limiter.forget(self._wake)
        self._wake = _closed

    @property
    def is_free(self) -> bool:
        """Whether the subscription keeps up and is therefore not throttled."""
        return not self.tailing and self._cursor.backlog < BACKLOG_ENTRIES_MIN


def _average(before: float, now: float) -> float:
    if not before:
        return max(1.0, now)
    return max(1.0, before + (now - before) * AVERAGE_WEIGHT)


def _closed() -> None:
    """Replaces `wake` once the subscription is closed."""
