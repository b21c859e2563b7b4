"""A rate of messages and of bytes together, and who waits for it, first come first served.

Whoever is refused (`may_go`) lines up with `wait`, and is called once there are tokens; he goes on
with what he has, and lines up again, behind the others, where that was not enough. While anybody
waits nobody else gets past him. One timer serves the whole line: it is due when there are tokens
for about WAKE_EVERY_S at the rate, so that nothing polls and a fast rate does not wake for each
message.

The line is bounded by who can wait: the producers, or subscriptions, of one topic.
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
"""The timer looks again then at the latest: a process may have been stopped meanwhile."""

Waiter = Callable[[], None]
Relative = Callable[[], tuple[float, float]]
"""Messages and bytes per second that come on top of what is configured."""


class RateLimiter:
    """See the module's text."""

    __slots__ = (
        "_base", "_bytes", "_clock", "_line", "_messages", "_relative", "_serving", "_timer",
    )  # fmt: skip

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
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
        """What may go per period; 0 or less is any number. Who waits is served by the new rate."""
        now_s = self._clock.monotonic()
        self._relative = relative
        self._base = (messages, size_bytes, period_s)
        self._messages = _changed(self._messages, messages, period_s, now_s)
        self._bytes = _changed(self._bytes, size_bytes, period_s, now_s)
        self._wake_soon(0.0)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def messages_left(self) -> float:
        """Tokens for messages, as of the last `may_go`."""
        return math.inf if self._messages is None else self._messages.tokens

    def bytes_left(self) -> float:
        """Tokens for bytes, as of the last `may_go`."""
        return math.inf if self._bytes is None else self._bytes.tokens

    @property
    def out_of_messages(self) -> bool:
        """Whether no message may go, as of the last `may_go`."""
        return self._messages is not None and not self._messages.ready

    @property
    def out_of_bytes(self) -> bool:
        """Whether no byte may go, as of the last `may_go`."""
        return self._bytes is not None and not self._bytes.ready

    def may_go(self) -> bool:
        """Whether something may go now, and nobody has waited longer."""
        if self._line and not self._serving:
            return False
        self._refill()
        return not (self.out_of_messages or self.out_of_bytes)

    def take(self, messages: int, size_bytes: int) -> None:
        """Something went; into debt where it was more than there was."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(size_bytes)

    def wait(self, waiter: Waiter) -> None:
        """`waiter` is called, on a later turn, once something may go."""
        self._line.setdefault(waiter)
        if not self._serving:
            self._arm()

    def forget(self, waiter: Waiter) -> None:
        """It waits no longer."""
        self._line.pop(waiter, None)
        if not self._line and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """There is no rate any more: who waits is called soon."""
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
