"""Failover: which consumer is the active one. Pure.

Among those of the highest priority (lowest level), sorted by name: partition N takes number N
modulo their count; a topic that is no partition is hashed onto a ring of their names.
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
    """The active one of at least one consumer."""
    ordered = sorted(consumers, key=lambda each: (each.spec.priority_level, each.name))
    best = ordered[0].spec.priority_level
    peers = [each for each in ordered if each.spec.priority_level == best]
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
