"""A token bucket: what may go through per period, smoothly, with a bounded burst.

Tokens come at `per_period / period_s` a second, up to `burst`: what half a period brings, so that
no five seconds see more than a tenth above a rate per second. Something may go while there is a
whole token, and then takes what it weighs, into debt where that is more: an entry is never cut in
two, and one that is larger than the burst passes and is paid for afterwards. So over any window of
a clock that only grows

    taken <= rate * window + burst + the largest thing taken

and whoever waits gets through, since debts are paid at the rate. The clock is handed in as a
number: where it goes back nothing is lost, and nothing comes until it moves on again; where it
jumps ahead no more comes than one burst.
"""

from typing import Final

BURST_PERIODS: Final = 0.5
BURST_TOKENS_MIN: Final = 1.0
WHOLE: Final = 1.0 - 1e-6
"""A token, less what adding fractions may have lost."""


class TokenBucket:
    """See the module's text. `now_s` is a monotonic clock's."""

    __slots__ = ("_at_s", "burst", "rate", "tokens")

    def __init__(self, per_period: float, period_s: float, now_s: float) -> None:
        """Begins full."""
        self._at_s = now_s
        self.rate = per_period / period_s
        """Tokens per second."""
        self.burst = max(BURST_TOKENS_MIN, per_period * BURST_PERIODS)
        self.tokens = self.burst

    def set_rate(self, per_period: float, period_s: float, now_s: float) -> None:
        """From now on. A debt takes no longer to pay than it would have at the rate before."""
        self.refill(now_s)
        rate = per_period / period_s
        burst = max(BURST_TOKENS_MIN, per_period * BURST_PERIODS)
        if self.tokens < 0 and rate < self.rate:
            self.tokens *= rate / self.rate
        self.rate, self.burst = rate, burst
        self.tokens = min(self.tokens, burst)

    def refill(self, now_s: float) -> float:
        """Adds what has come; the tokens there are now, negative in debt."""
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        if elapsed_s > 0:
            self.tokens = min(self.burst, self.tokens + elapsed_s * self.rate)
        return self.tokens

    @property
    def ready(self) -> bool:
        """Whether something may go, as of the last `refill`."""
        return self.tokens >= WHOLE

    def take(self, tokens: float) -> None:
        """Something that weighs so much goes."""
        self.tokens -= tokens

    def wait_s(self, tokens: float) -> float:
        """How long until there are so many (or the burst, where that is less)."""
        return max(0.0, min(tokens, self.burst) - self.tokens) / self.rate
