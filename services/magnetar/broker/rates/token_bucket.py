"""A token bucket: limits a rate smoothly, with a bounded burst.

Tokens accumulate at `per_period / period_s` per second, up to `burst`: the tokens of half a period,
so that within any five seconds a rate per second is exceeded by at most a tenth. A sender may send
while there is a whole token, and then takes its full weight, into debt if necessary. So an entry is
never divided, and an entry larger than the burst passes and is paid for afterwards. Over any window
of a clock that only advances:

    taken <= rate * window + burst + the largest weight taken

A waiter is never starved, because debts are paid at the rate. The caller passes the time. If the
clock goes back, no tokens are lost, and none accumulate until it advances again. If it jumps ahead,
at most one burst accumulates.
"""

from typing import Final

BURST_PERIODS: Final = 0.5
BURST_TOKENS_MIN: Final = 1.0
WHOLE: Final = 1.0 - 1e-6
"""A token, minus the possible error of adding fractions."""


class TokenBucket:
    """Counts tokens; `now_s` is always a monotonic clock's time."""

    __slots__ = ("_at_s", "burst", "rate", "tokens")

    def __init__(self, per_period: float, period_s: float, now_s: float) -> None:
        """Starts with a full bucket."""
        self._at_s = now_s
        self.rate = per_period / period_s
        """Tokens per second."""
        self.burst = max(BURST_TOKENS_MIN, per_period * BURST_PERIODS)
        self.tokens = self.burst

    def set_rate(self, per_period: float, period_s: float, now_s: float) -> None:
        """Changes the rate. Paying a debt takes no longer than at the former rate."""
        self.refill(now_s)
        rate = per_period / period_s
        burst = max(BURST_TOKENS_MIN, per_period * BURST_PERIODS)
        if self.tokens < 0 and rate < self.rate:
            self.tokens *= rate / self.rate
        self.rate, self.burst = rate, burst
        self.tokens = min(self.tokens, burst)

    def refill(self, now_s: float) -> float:
        """Adds the accumulated tokens; returns the count, negative if in debt."""
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        if elapsed_s > 0:
            self.tokens = min(self.burst, self.tokens + elapsed_s * self.rate)
        return self.tokens

    @property
    def ready(self) -> bool:
        """Whether there is a whole token, as of the last `refill`."""
        return self.tokens >= WHOLE

    def take(self, tokens: float) -> None:
        """Takes tokens, into debt if necessary."""
        self.tokens -= tokens

    def wait_s(self, tokens: float) -> float:
        """Returns the time until there are this many tokens, or a full bucket if that is less."""
        return max(0.0, min(tokens, self.burst) - self.tokens) / self.rate
