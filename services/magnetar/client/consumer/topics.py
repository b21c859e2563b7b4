"""The topics of a consumer: their partitions, which may grow, and those of a pattern.

A source is the consumer of one topic or partition. Sources are added and removed while the user
receives; all put their messages into one queue.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from magnetar.client.consumer.partition import PartitionConsumer
from magnetar.client.consumer.subscription import Shared, StartPosition
from magnetar.client.context import Context
from magnetar.client.errors import ClientError, InvalidConfiguration
from magnetar.core.log import get_logger
from magnetar.core.names import parse_topic

log = get_logger("magnetar.client.consumer")

OPENING_MAX: Final = 64
"""Subscriptions that a consumer opens at a time."""


class Topics:
    """The sources of one consumer."""

    def __init__(self, context: Context, shared: Shared, start: StartPosition) -> None:
        self._context = context
        self._shared = shared
        self._start = start
        self.sources: dict[str, PartitionConsumer] = {}
        """By the name of the topic or partition."""
        self.partitions: dict[str, int] = {}
        """The number of partitions of each topic; 0 for one without."""
        self._growth: asyncio.Task[Any] | None = None
        self._changes = asyncio.Lock()
        """Held while sources are added: a topic that two tasks find is attached to once."""

    async def add(self, topics: Iterable[str]) -> None:
        """Attaches to topics and all their partitions; to none of them if one fails."""
        async with self._changes:
            await self._add(topics)

    async def _add(self, topics: Iterable[str]) -> None:
        added = [topic for topic in topics if topic not in self.partitions]
        wanted: list[tuple[str, int]] = []
        counts = {}
        for topic in added:
            counts[topic] = count = await self._context.lookup.partitions(
                topic, create=self._shared.options.create_topic
            )
            wanted += _sources_of(topic, 0, count)
        await self._open(wanted)
        self.partitions |= counts
        if self._growth is None and self._shared.options.update_partitions_s:
            self._growth = self._context.tasks.start(self._watch(), "partitions of a consumer")

    async def remove(self, topics: Iterable[str]) -> None:
        """Closes the consumers of topics."""
        closing = []
        for topic in topics:
            count = self.partitions.pop(topic, None)
            if count is not None:
                names = [name for name, _ in _sources_of(topic, 0, count)]
                closing += [self.sources.pop(name) for name in names if name in self.sources]
        await _close_all(closing)

    async def _open(self, wanted: list[tuple[str, int]]) -> None:
        options = self._shared.options
        total = len(self.sources) + len(wanted)
        queue_size = options.receiver_queue_size
        if total > 1:
            if not queue_size:
                raise InvalidConfiguration(
                    "receiver_queue_size=0 needs a single topic without partitions"
                )
            queue_size = max(min(queue_size, options.receiver_queue_total // total), 1)
        sources = [
            PartitionConsumer(
                self._context,
                self._shared,
                name,
                partition,
                queue_size,
                StartPosition(
                    self._start.message_id,
                    inclusive=self._start.inclusive,
                    rollback_s=self._start.rollback_s,
                ),
            )
            for name, partition in wanted
        ]
        slots = asyncio.Semaphore(OPENING_MAX)

        async def open_one(source: PartitionConsumer) -> None:
            async with slots:
                await source.open()

        try:
            async with asyncio.TaskGroup() as group:
                for source in sources:
                    group.create_task(open_one(source), name=f"subscribe to {source.topic}")
        except BaseExceptionGroup as failures:
            await _close_all(sources)
            raise failures.exceptions[0] from None
        except BaseException:
            # Some may be attached: the broker would send them messages that no call takes.
            _give_up(sources)
            raise
        for source in sources:
            self.sources[source.topic] = source

    async def _watch(self) -> None:
        while not self._shared.closed:
            await asyncio.sleep(self._shared.options.update_partitions_s)
            for topic, known in list(self.partitions.items()):
                try:
                    count = await self._context.lookup.partitions(topic, create=False)
                    if count > known > 0:
                        async with self._changes:
                            if self.partitions.get(topic) != known:
                                continue  # removed meanwhile
                            await self._open(_sources_of(topic, known, count))
                            self.partitions[topic] = count
                        log.info("topic has more partitions", topic=topic, partitions=count)
                except ClientError as error:
                    log.info("partitions not checked", topic=topic, error=str(error))

    def source_of(self, topic: str, partition: int) -> PartitionConsumer:
        """Returns the source of a message id; raises InvalidConfiguration."""
        sources = self.sources
        if topic in sources:
            return sources[topic]
        if not topic and len(sources) == 1:
            return next(iter(sources.values()))
        if not topic and len(self.partitions) == 1:
            (base,) = self.partitions
            name = str(parse_topic(base).partition(partition)) if partition >= 0 else base
            if name in sources:
                return sources[name]
        raise InvalidConfiguration(
            f"The id of topic {topic or 'unknown'} belongs to no topic of this consumer: "
            "acknowledge the message, or give its id a topic"
        )

    async def close(self) -> None:
        """Closes all sources."""
        if self._growth is not None:
            self._growth.cancel()
        await _close_all(list(self.sources.values()))

    def give_up(self) -> None:
        """Closes the sources that `close` has not closed, because it was cancelled."""
        _give_up(self.sources.values())


async def _close_all(sources: list[PartitionConsumer]) -> None:
    try:
        await asyncio.gather(*(source.close() for source in sources))
    except BaseException:
        _give_up(sources)
        raise


def _give_up(sources: Iterable[PartitionConsumer]) -> None:
    for source in sources:
        source.give_up()


def _sources_of(topic: str, first: int, count: int) -> list[tuple[str, int]]:
    if not count:
        return [(topic, parse_topic(topic).partition_index)]
    name = parse_topic(topic)
    return [(str(name.partition(index)), index) for index in range(first, count)]
