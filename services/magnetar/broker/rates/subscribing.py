"""How often one consumer may subscribe to a topic: so many times in a period, then it is refused.

A consumer is its host, name and id, as in Pulsar: one that reconnects in a storm counts against
itself alone. All counts begin anew with each period, so memory is bounded by what subscribes within
one; CONSUMERS_MAX different ones end it early.
"""

from typing import Final

from magnetar.core.errors import NotAllowed

CONSUMERS_MAX: Final = 10_000
TEXT: Final = "Subscribe limited by subscribe rate limit per consumer."

ConsumerKey = tuple[str, str, int]


class SubscribeRate:
    """Counts of one topic."""

    __slots__ = ("_counts", "_period_s", "_since_s", "_times")

    def __init__(self, times: int, period_s: float, now_s: float) -> None:
        """`times` (1 or more) in each period."""
        self._times = times
        self._period_s = period_s
        self._since_s = now_s
        self._counts: dict[ConsumerKey, int] = {}

    def set(self, times: int, period_s: float) -> None:
        """Another rate; what was counted in this period stays counted."""
        self._times, self._period_s = times, period_s

    def check(self, consumer: ConsumerKey, now_s: float) -> None:
        """Counts one more; raises NotAllowed where that is too many."""
        passed_s = now_s - self._since_s
        if not 0 <= passed_s < self._period_s or len(self._counts) >= CONSUMERS_MAX:
            self._counts.clear()
            self._since_s = now_s
        count = self._counts.get(consumer, 0)
        if count >= self._times:
            raise NotAllowed(TEXT)
        self._counts[consumer] = count + 1


def host_of(address: str) -> str:
    """The host of a peer's address, `/127.0.0.1:40712`."""
    return address.lstrip("/").rpartition(":")[0]
