"""How long subscriptions need for what they have not read: `GET …/magnetar/drain`.

What an autoscaler wants to know is whether more brokers would help. A backlog that grows because
its consumers are slow is no matter of brokers: its consumers have no permits left. So what counts
as *wanted* is the backlog of subscriptions of which a consumer waits for messages. Its time to
drain is bytes over (bytes per second out - in), TIME_TO_DRAIN_S_MAX where it does not shrink.

Topics are looked at TOPICS_PER_TURN at a time, so that a broker with a hundred thousand of them
serves its clients meanwhile; subscriptions without a backlog cost a comparison.
"""

import asyncio
import heapq
from collections.abc import Iterable
from typing import Final

import msgspec

from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topics import Topic

TOPICS_PER_TURN: Final = 512
WORST_SHOWN_MAX: Final = 20
TIME_TO_DRAIN_S_MAX: Final = 86_400.0
"""A day: as good as never."""


class SubscriptionDrain(msgspec.Struct, rename="camel", order=True, gc=False):
    """One subscription with a backlog. Ordered by the bytes of it."""

    backlog_bytes: int
    backlog_entries: int
    topic: str
    subscription: str
    bytes_per_second_in: float
    bytes_per_second_out: float
    wanted: bool
    """Whether a consumer has permits: it waits for the broker, not the broker for it."""


class BrokerDrain(msgspec.Struct, rename="camel"):
    """Sums over the subscriptions of a broker, or of all, and those with the largest backlogs."""

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
        """Both brokers' together."""
        both = BrokerDrain(
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
        return both.timed()

    def timed(self) -> "BrokerDrain":
        """With the time that its sums say."""
        self.time_to_drain_seconds = time_to_drain_s(
            self.wanted_bytes, self.wanted_bytes_per_second_in, self.wanted_bytes_per_second_out
        )
        return self


def time_to_drain_s(backlog_bytes: float, rate_in: float, rate_out: float) -> float:
    """Seconds until nothing is left, at these rates in bytes per second."""
    if backlog_bytes <= 0:
        return 0.0
    net = rate_out - rate_in
    return min(backlog_bytes / net, TIME_TO_DRAIN_S_MAX) if net > 0 else TIME_TO_DRAIN_S_MAX


async def drain_of(broker: str, topics: Iterable[Topic]) -> BrokerDrain:
    """What the topics' subscriptions have before them, as of now."""
    found = BrokerDrain([broker])
    worst: list[SubscriptionDrain] = []
    for topic in topics:
        found.topics += 1
        if found.topics % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
        if not isinstance(topic, PersistentTopic):
            continue
        for name, subscription in list(topic.subscriptions.items()):
            if not subscription.cursor.backlog:
                continue
            one = _drain(topic, name, subscription)
            _add(found, one)
            if len(worst) < WORST_SHOWN_MAX:
                heapq.heappush(worst, one)
            else:
                heapq.heappushpop(worst, one)
    found.worst = sorted(worst, reverse=True)
    return found.timed()


def _drain(
    topic: PersistentTopic, name: str, subscription: PersistentSubscription
) -> SubscriptionDrain:
    consumers = subscription.consumers
    return SubscriptionDrain(
        backlog_bytes=subscription.cursor.backlog_bytes_estimate,
        backlog_entries=subscription.cursor.backlog,
        topic=topic.full_name,
        subscription=name,
        bytes_per_second_in=topic.counters.bytes_rate_in,
        bytes_per_second_out=sum(one.rates.throughput for one in consumers),
        wanted=any(one.permits > 0 and not one.blocked for one in consumers),
    )


def _add(found: BrokerDrain, one: SubscriptionDrain) -> None:
    found.subscriptions_behind += 1
    found.backlog_entries += one.backlog_entries
    found.backlog_bytes += one.backlog_bytes
    if one.wanted:
        found.wanted_bytes += one.backlog_bytes
        found.wanted_bytes_per_second_in += one.bytes_per_second_in
        found.wanted_bytes_per_second_out += one.bytes_per_second_out
