"""Backlogs of subscriptions, under `/admin/v2/magnetar`: the brokers' view, and the job's analysis.

`BrokerDrain` is the answer of `GET …/drain`: current values. `BacklogRecord` is the answer of
`GET …/analytics/backlog/{tenant}/{namespace}` and the record in the metadata store: the values of
the last run of `magnetar job backlog`. The record may be absent, old, or name deleted topics;
`at_ms` gives its age. None means unknown. A missing field was not written by that version of the
job; unknown fields are ignored.

Bounds: a record names at most WORST subscriptions and findings, a `BrokerDrain` WORST_SHOWN_MAX
subscriptions.
"""

import heapq
from typing import Final

import msgspec

WORST: Final = 20
"""The number of subscriptions, and of findings, that a record names."""
WORST_SHOWN_MAX: Final = 20
TIME_TO_DRAIN_S_MAX: Final = 86_400.0
"""A day, which stands for never."""


class SubscriptionDrain(msgspec.Struct, rename="camel", order=True, gc=False):
    """A subscription with a backlog; the order is by the backlog's bytes."""

    backlog_bytes: int
    backlog_entries: int
    topic: str
    subscription: str
    bytes_per_second_in: float
    bytes_per_second_out: float
    wanted: bool
    """Whether a consumer has permits, and so waits for the broker."""


class BrokerDrain(msgspec.Struct, rename="camel"):
    """Sums over the subscriptions of one or all brokers, and the largest backlogs."""

    brokers: list[str]
    topics: int = 0
    subscriptions_behind: int = 0
    backlog_entries: int = 0
    backlog_bytes: int = 0
    wanted_bytes: int = 0
    wanted_bytes_per_second_in: float = 0.0
    wanted_bytes_per_second_out: float = 0.0
    time_to_drain_seconds: float = 0.0
    worst: list[SubscriptionDrain] = []

    def plus(self, other: "BrokerDrain") -> "BrokerDrain":
        """Adds the sums of other brokers."""
        total = BrokerDrain(
            self.brokers + other.brokers,
            self.topics + other.topics,
            self.subscriptions_behind + other.subscriptions_behind,
            self.backlog_entries + other.backlog_entries,
            self.backlog_bytes + other.backlog_bytes,
            self.wanted_bytes + other.wanted_bytes,
            self.wanted_bytes_per_second_in + other.wanted_bytes_per_second_in,
            self.wanted_bytes_per_second_out + other.wanted_bytes_per_second_out,
            worst=heapq.nlargest(WORST_SHOWN_MAX, [*self.worst, *other.worst]),
        )
        return total.timed()

    def timed(self) -> "BrokerDrain":
        """Sets the time to drain from the sums, and returns itself."""
        self.time_to_drain_seconds = time_to_drain_s(
            self.wanted_bytes, self.wanted_bytes_per_second_in, self.wanted_bytes_per_second_out
        )
        return self


def time_to_drain_s(backlog_bytes: float, rate_in: float, rate_out: float) -> float:
    """Returns the seconds until the backlog is empty, at these rates in bytes per second.

    That is the backlog divided by (out - in), or TIME_TO_DRAIN_S_MAX if it does not shrink.
    """
    if backlog_bytes <= 0:
        return 0.0
    net = rate_out - rate_in
    return min(backlog_bytes / net, TIME_TO_DRAIN_S_MAX) if net > 0 else TIME_TO_DRAIN_S_MAX


class Behind(msgspec.Struct, frozen=True, rename="camel"):
    """A subscription with a backlog, or with an unreadable state."""

    topic: str
    """The full name; of a partition, with its index."""
    subscription: str
    entries: int | None = None
    bytes: int | None = None
    age_seconds: float | None = None
    trend: str = "unknown"
    growth_per_second: float | None = None
    drains_in_seconds: float | None = None


class Noticed(msgspec.Struct, frozen=True, rename="camel"):
    """A finding that needs attention; `docs/run/backlog.md` lists the kinds."""

    severity: str
    kind: str
    topic: str
    subscription: str = ""


class BacklogRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The backlog of one namespace at one time."""

    at_ms: int
    """When the values were measured."""
    version: int = 1
    topics: int = 0
    subscriptions: int = 0
    behind: int | None = None
    """Subscriptions with a backlog or an unreadable state; `worst` names the first of them."""
    growing: int | None = None
    stalled: int | None = None
    unreadable: int | None = None
    expiring: int | None = None
    """Subscriptions whose messages outlive the TTL unread, or will."""
    held_bytes: int | None = None
    """Bytes on bookies, kept for subscriptions that consumed nothing since the previous run."""
    unknown: int | None = None
    """Subscriptions behind with an unknown trend, as in a first run."""
    backlog_entries: int = 0
    backlog_messages: int | None = None
    backlog_bytes: int = 0
    oldest_age_seconds: float | None = None
    drains_in_seconds: float | None = None
    """Until the slowest subscription has caught up; None also if one never will."""
    bytes_on_bookies: int = 0
    worst: list[Behind] = []
    findings: list[Noticed] = []
