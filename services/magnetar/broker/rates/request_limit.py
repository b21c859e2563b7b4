"""Limits the rate of requests of each address, and of each role: over HTTP, or of commands.

The limit of an address holds before anything is known of the sender, so that guesses at passwords
and signatures to verify are limited as well; that of a role holds for all of its addresses. An
IPv6 address counts as its /64 network. A request that another broker passes on was counted where
it arrived, and is not counted again.

Bounds: SENDERS_MAX token buckets, of which the least recently used is forgotten, and its sender
starts with a full bucket again: half a second's requests.
"""

import time
from collections.abc import Callable
from typing import Final

from magnetar.broker.rates.token_bucket import TokenBucket
from magnetar.core.addresses import network_of
from magnetar.settings.connections import ConnectionSettings

SENDERS_MAX: Final = 16_384
PERIOD_S: Final = 1.0

_Sender = tuple[str, str]


class RequestLimit:
    """The token buckets of a broker's senders."""

    def __init__(self, per_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self._buckets: dict[_Sender, TokenBucket] = {}
        self.refused = {"address": 0, "role": 0}
        """Requests refused since the start, by which of the limits they exceeded."""

    def admits_address(self, address: str) -> bool:
        """Whether the address may send a request now, which then counts."""
        return self._admits("address", network_of(address))

    def admits_role(self, role: str) -> bool:
        """Whether the role may send a request now, which then counts."""
        return self._admits("role", role)

    def give_back(self, address: str) -> None:
        """Undoes the count of a request of the address: another broker passed it on."""
        bucket = self._buckets.get(("address", network_of(address)))
        if bucket is not None:
            bucket.take(-1)

    def _admits(self, of: str, name: str) -> bool:
        now_s = self._now_s()
        bucket = self._buckets.pop((of, name), None)
        if bucket is None:
            bucket = TokenBucket(self._per_s, PERIOD_S, now_s)
            if len(self._buckets) >= SENDERS_MAX:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[of, name] = bucket  # the most recently used is the last
        bucket.refill(now_s)
        if not bucket.ready:
            self.refused[of] += 1
            return False
        bucket.take(1)
        return True


def limits_of(settings: ConnectionSettings) -> tuple[RequestLimit | None, RequestLimit | None]:
    """Returns the limit of HTTP requests and that of commands; None: there is none."""
    http = RequestLimit(settings.http_requests_per_s) if settings.http_requests_limited else None
    rate = settings.requests_per_s_max
    return http, RequestLimit(rate) if rate else None
