"""A rate of messages and bytes together, with a queue of waiters, served in their order.

A sender that is refused (`may_go`) joins the queue by `wait`, and is called once tokens accumulate.
If they do not suffice, it joins the queue again at the end. While the queue is not empty, no other
sender may overtake it. One timer serves the whole queue: it fires when the tokens for about
WAKE_EVERY_S have accumulated, so nothing polls, and a high rate does not cause a wake-up per
message.

The queue is bounded by its possible members: the producers or the subscriptions of one topic, or of
all topics that share the limiter (`chain`).
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from magnetar.broker.rates.token_bucket import TokenBucket
from magnetar.core.clock import Clock

WAKE_EVERY_S: Final = 0.01
WAKE_DELAY_S_MIN: Final = 0.001
WAKE_DELAY_S_MAX: Final = 60.0
"""The timer fires after this time at the latest, in case the process was stopped meanwhile."""

Waiter = Callable[[], None]
Relative = Callable[[], tuple[float, float]]
"""Returns messages and bytes per second to add to the configured rates."""


class RateLimiter:
    """Limits messages and bytes per period, and wakes its waiters in their order."""

    __slots__ = (
        "_base", "_bytes", "_clock", "_line", "_messages", "_relative", "_serving", "_timer",
        "source",
    )  # fmt: skip

    def __init__(self, clock: Clock, source: str = "") -> None:
        self._clock = clock
        self.source = source
        """What sets the limit, for people: a policy, a setting or a resource group."""
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._base = (0.0, 0.0, 1.0)
        self._relative: Relative | None = None
        self._line: dict[Waiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._serving = False

    def set(
        self, messages: float, size_bytes: float, period_s: float, relative: Relative | None = None
    ) -> None:
        """Sets the limits per period, also for waiters; 0 or less means no limit."""
        now_s = self._clock.monotonic()
        self._relative = relative
        self._base = (messages, size_bytes, period_s)
        self._messages = _changed(self._messages, messages, period_s, now_s)
        self._bytes = _changed(self._bytes, size_bytes, period_s, now_s)
        self._wake_soon(0.0)

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._line)

    @property
    def serving(self) -> bool:
        """Whether the limiter calls its waiters just now."""
        return self._serving

    @property
    def limits(self) -> tuple[float, float]:
        """The messages and bytes per period; 0 or less means no limit."""
        return self._base[:2]

    def messages_left(self) -> float:
        """Returns the tokens for messages, as of the last `may_go`."""
        return math.inf if self._messages is None else self._messages.tokens

    def bytes_left(self) -> float:
        """Returns the tokens for bytes, as of the last `may_go`."""
        return math.inf if self._bytes is None else self._bytes.tokens

    @property
    def out_of_messages(self) -> bool:
        """Whether there is no token for a message, as of the last `may_go`."""
        return self._messages is not None and not self._messages.ready

    @property
    def out_of_bytes(self) -> bool:
        """Whether there is no token for a byte, as of the last `may_go`."""
        return self._bytes is not None and not self._bytes.ready

    def may_go(self) -> bool:
        """Whether a sender may send now: there are tokens, and no other sender waits."""
        if self._line and not self._serving:
            return False
        return self.has_tokens()

    def has_tokens(self) -> bool:
        """Whether there are tokens now, even if others wait for them."""
        self._refill()
        return not (self.out_of_messages or self.out_of_bytes)

    def take(self, messages: int, size_bytes: int) -> None:
        """Takes tokens for sent messages, into debt if necessary."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(size_bytes)

    def wait(self, waiter: Waiter) -> None:
        """Queues `waiter`; it is called on a later turn of the loop, once tokens have
        accumulated."""
        self._line.setdefault(waiter)
        if not self._serving:
            self._arm()

    def forget(self, waiter: Waiter) -> None:
        """Removes `waiter` from the queue."""
        self._line.pop(waiter, None)
        if not self._line and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Removes the limits: all waiters are called soon."""
        self._messages = self._bytes = None
        self._wake_soon(0.0)

    def _refill(self) -> None:
        now_s = self._clock.monotonic()
        if self._relative is not None:
            extra_messages, extra_bytes = self._relative()
            messages, size_bytes, period_s = self._base
            if self._messages is not None:
                self._messages.set_rate(messages + extra_messages * period_s, period_s, now_s)
            if self._bytes is not None:
                self._bytes.set_rate(size_bytes + extra_bytes * period_s, period_s, now_s)
            return
        if self._messages is not None:
            self._messages.refill(now_s)
        if self._bytes is not None:
            self._bytes.refill(now_s)

    def _arm(self) -> None:
        if self._line and self._timer is None:
            self._refill()
            delay_s = max(_wait_s(self._messages), _wait_s(self._bytes), WAKE_DELAY_S_MIN)
            self._wake_soon(min(delay_s, WAKE_DELAY_S_MAX))

    def _wake_soon(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._line:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._serving = True
        try:
            for waiter in list(self._line):
                if not self.may_go():
                    break
                if waiter in self._line:
                    del self._line[waiter]
                    waiter()
        finally:
            self._serving = False
        self._arm()


def _changed(
    bucket: TokenBucket | None, per_period: float, period_s: float, now_s: float
) -> TokenBucket | None:
    if per_period <= 0:
        return None
    if bucket is None:
        return TokenBucket(per_period, period_s, now_s)
    bucket.set_rate(per_period, period_s, now_s)
    return bucket


def _wait_s(bucket: TokenBucket | None) -> float:
    if bucket is None:
        return 0.0
    return bucket.wait_s(max(1.0, bucket.rate * WAKE_EVERY_S))
