"""Throttles a subscription's dispatcher by its own rate, the topic's, and those of many topics.

A dispatcher without rates has no throttle, and pays one check for that per turn. One with rates
queries how many entries it may dispatch (`entries_max`) and reports dispatched entries (`took`).
Rates count messages and bytes. Their number per entry is estimated from the last entries; the very
first entry is dispatched alone. An excess is a debt that is paid before the next dispatch; it is at
most the content of ENTRIES_AT_ONCE_MAX entries. A dispatcher without tokens is woken when new ones
accumulate, in turn with the topic's other subscriptions.

If `tailing` is off, a subscription with a backlog below BACKLOG_ENTRIES_MIN is neither throttled
nor counted (Pulsar: dispatchThrottlingOnNonBacklogConsumerEnabled=false).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.broker.rates.chain import Limiters, blocking, take
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
        "_bytes_per_entry", "_cursor", "_limiters", "_messages_per_entry", "_shared", "_wake",
        "by_broker", "by_subscription", "by_topic", "own", "tailing", "topic",
    )  # fmt: skip

    def __init__(self, cursor: Cursor, wake: Callable[[], None], *, tailing: bool) -> None:
        self._cursor = cursor
        self._wake = wake
        self._messages_per_entry = 0.0
        self._bytes_per_entry = 0.0
        self.tailing = tailing
        self.topic: RateLimiter | None = None
        self.own: RateLimiter | None = None
        self._shared: Limiters = ()
        self._limiters: Limiters = ()
        self.by_broker = ThrottledEvents()
        """Waits for the limiters that topics share."""
        self.by_topic = ThrottledEvents()
        self.by_subscription = ThrottledEvents()

    @property
    def needed(self) -> bool:
        """Whether any rate applies."""
        return bool(self._limiters)

    @property
    def limiters(self) -> Limiters:
        """The limiters in force, from the narrowest to the widest."""
        return self._limiters

    def set_limiters(
        self, own: RateLimiter | None, topic: RateLimiter | None, shared: Limiters = ()
    ) -> None:
        """Replaces the limiters; a dispatcher that waits for one that is gone is woken."""
        before = self._limiters
        self.own, self.topic, self._shared = own, topic, shared
        first = (limiter for limiter in (own, topic) if limiter is not None)
        self._limiters = (*first, *shared)
        gone = [limiter for limiter in before if limiter not in self._limiters]
        for limiter in gone:
            limiter.forget(self._wake)
        if gone:
            asyncio.get_running_loop().call_soon(self._woken)

    def _woken(self) -> None:
        self._wake()

    def entries_max(self, most: int) -> int:
        """Returns how many of `most` entries may be dispatched now; after 0, `wake` is called."""
        if self.is_free:
            return most
        most = min(most, ENTRIES_AT_ONCE_MAX) if self._bytes_per_entry else 1
        limiters = self._limiters
        blocker = blocking(limiters)
        if blocker is not None:
            if self._cursor.backlog:
                self._events(blocker).count(blocker)
                blocker.wait(self._wake)
            return 0
        for limiter in limiters:
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
        take(self._limiters, messages, size_bytes)

    def fill_stats(self, stats: SubscriptionStats) -> None:
        """Adds how often the subscription had to wait."""
        stats.dispatch_throttled_msg_events_by_subscription_limit = self.by_subscription.messages
        stats.dispatch_throttled_bytes_events_by_subscription_limit = self.by_subscription.bytes
        stats.dispatch_throttled_msg_events_by_topic_limit = self.by_topic.messages
        stats.dispatch_throttled_bytes_events_by_topic_limit = self.by_topic.bytes
        stats.dispatch_throttled_msg_events_by_broker_limit = self.by_broker.messages
        stats.dispatch_throttled_bytes_events_by_broker_limit = self.by_broker.bytes

    def close(self) -> None:
        """Leaves the queues of all limiters and drops the callback into the subscription."""
        for limiter in self._limiters:
            limiter.forget(self._wake)
        self._wake = _closed

    def _events(self, limiter: RateLimiter) -> ThrottledEvents:
        if limiter is self.own:
            return self.by_subscription
        return self.by_topic if limiter is self.topic else self.by_broker

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
