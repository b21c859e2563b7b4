"""Partitions that are attached only when a message goes to them.

Messages that wait for the same partition to attach are sent in the order in which they came.
"""

import asyncio

from magnetar.client.producer.partition import PartitionProducer


class LazyLanes:
    """Which partitions of a producer are attached, and which are about to be."""

    def __init__(self) -> None:
        self._attached: set[PartitionProducer] = set()
        self._locks: dict[PartitionProducer, asyncio.Lock] = {}
        self._waiting: dict[PartitionProducer, int] = {}

    def is_attached(self, lane: PartitionProducer) -> bool:
        """Whether a partition was attached."""
        return lane in self._attached

    def must_wait(self, lane: PartitionProducer) -> bool:
        """Whether a message has to `attach` first, or to wait for those that do."""
        return lane not in self._attached or bool(self._waiting.get(lane))

    async def attach(self, lane: PartitionProducer) -> None:
        """Attaches a partition, once; if that fails, the next message tries again."""
        self._waiting[lane] = self._waiting.get(lane, 0) + 1
        try:
            async with self._locks.setdefault(lane, asyncio.Lock()):
                if lane not in self._attached:
                    await lane.open()
                    self._attached.add(lane)
        finally:
            self._waiting[lane] -= 1
