"""Chooses the active consumer of a Failover subscription. Pure: no IO.

Only consumers of the highest priority (lowest level) are candidates, sorted by name. Partition N
takes candidate N modulo their number; a topic that is no partition is hashed onto a ring of their
names.
Source: Pulsar's `AbstractDispatcherSingleActiveConsumer`.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from magnetar.broker.subscription.consumer import Consumer
from magnetar.core.hashing import murmur3_32
from magnetar.core.names import parse_topic

RING_POINTS: Final = 100


def choose_active(topic: str, consumers: Iterable[Consumer]) -> Consumer:
    """Returns the active consumer; there must be at least one consumer."""
    ordered = sorted(consumers, key=lambda consumer: (consumer.spec.priority_level, consumer.name))
    best = ordered[0].spec.priority_level
    peers = [consumer for consumer in ordered if consumer.spec.priority_level == best]
    index = parse_topic(topic).partition_index
    if index >= 0:
        return peers[index % len(peers)]
    ring = sorted(
        {
            murmur3_32(f"{peer.name}{point}".encode()): number
            for number, peer in enumerate(peers)
            for point in range(RING_POINTS)
        }.items()
    )
    at = bisect_left(ring, (murmur3_32(topic.encode()), -1))
    return peers[ring[at % len(ring)][1]]
