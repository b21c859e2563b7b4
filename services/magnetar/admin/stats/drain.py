"""`GET …/magnetar/drain`: the time that subscriptions need to drain their backlogs.

An autoscaler needs to know whether more brokers would help. They would not if a backlog grows
because its consumers are slow and have no permits left. The *wanted* backlog is therefore that of
subscriptions with a consumer that waits for messages (`documents.backlog.time_to_drain_s`).

The event loop runs other tasks after every TOPICS_PER_TURN topics, so a broker with a hundred
thousand topics serves its clients meanwhile. A subscription without a backlog costs a comparison.
"""

import asyncio
import heapq
from collections.abc import Iterable
from typing import Final

from magnetar.broker.subscription.api import Subscription
from magnetar.broker.topic.api import Topic
from magnetar.documents.backlog import WORST_SHOWN_MAX, BrokerDrain, SubscriptionDrain

TOPICS_PER_TURN: Final = 512


async def drain_of(broker: str, topics: Iterable[Topic]) -> BrokerDrain:
    """Sums the current backlogs of the topics' subscriptions."""
    total = BrokerDrain([broker])
    worst: list[SubscriptionDrain] = []
    for topic in topics:
        total.topics += 1
        if total.topics % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
        for name, subscription in list(topic.subscriptions.items()):
            if not subscription.backlog:
                continue
            drain = _drain(topic, name, subscription)
            _add(total, drain)
            if len(worst) < WORST_SHOWN_MAX:
                heapq.heappush(worst, drain)
            else:
                heapq.heappushpop(worst, drain)
    total.worst = sorted(worst, reverse=True)
    return total.timed()


def _drain(topic: Topic, name: str, subscription: Subscription) -> SubscriptionDrain:
    consumers = subscription.consumers
    return SubscriptionDrain(
        backlog_bytes=subscription.backlog_bytes,
        backlog_entries=subscription.backlog or 0,
        topic=topic.full_name,
        subscription=name,
        bytes_per_second_in=topic.counters.bytes_rate_in,
        bytes_per_second_out=sum(consumer.rates.throughput for consumer in consumers),
        wanted=any(consumer.permits > 0 and not consumer.blocked for consumer in consumers),
    )


def _add(total: BrokerDrain, drain: SubscriptionDrain) -> None:
    total.subscriptions_behind += 1
    total.backlog_entries += drain.backlog_entries
    total.backlog_bytes += drain.backlog_bytes
    if drain.wanted:
        total.wanted_bytes += drain.backlog_bytes
        total.wanted_bytes_per_second_in += drain.bytes_per_second_in
        total.wanted_bytes_per_second_out += drain.bytes_per_second_out
