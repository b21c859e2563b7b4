"""Limits how often a consumer may subscribe to a topic in a period.

As in Pulsar, a consumer is its host, name and id, so a client that reconnects in a storm exhausts
only its own limit. All counts restart with each period, so memory is bounded by the consumers of
one period; CONSUMERS_MAX different consumers end the period early.
"""

from typing import Final

from magnetar.core.errors import NotAllowed

CONSUMERS_MAX: Final = 10_000
TEXT: Final = "Subscribe limited by subscribe rate limit per consumer."

ConsumerKey = tuple[str, str, int]


class SubscribeRate:
    """Counts the subscribe requests of one topic, by consumer."""

    __slots__ = ("_counts", "_period_s", "_since_s", "_times")

    def __init__(self, times: int, period_s: float, now_s: float) -> None:
        """Allows `times` (1 or more) in each period."""
        self._times = times
        self._period_s = period_s
        self._since_s = now_s
        self._counts: dict[ConsumerKey, int] = {}

    def set(self, times: int, period_s: float) -> None:
        """Changes the limit; the counts of the current period stay."""
        self._times, self._period_s = times, period_s

    def check(self, consumer: ConsumerKey, now_s: float) -> None:
        """Counts a request; raises NotAllowed if it exceeds the limit."""
        passed_s = now_s - self._since_s
        if not 0 <= passed_s < self._period_s or len(self._counts) >= CONSUMERS_MAX:
            self._counts.clear()
            self._since_s = now_s
        count = self._counts.get(consumer, 0)
        if count >= self._times:
            raise NotAllowed(TEXT)
        self._counts[consumer] = count + 1


def host_of(address: str) -> str:
    """Returns the host of a peer's address, `/127.0.0.1:40712`."""
    return address.lstrip("/").rpartition(":")[0]
