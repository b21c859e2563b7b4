"""The producers of a topic: unique names, access modes, topic epochs and fencing.

- Names are unique in a topic. A producer whose name is taken replaces the holder when it is a
  successor of it (same client, higher epoch) or when the holder's connection is dead; otherwise
  it is refused with ProducerBusy.
- Access modes follow PIP-68. Every producer that gets exclusive access raises the topic's epoch,
  which is stored before the producer may publish; who comes back with a lower epoch was fenced in
  between, and must not publish again.
Texts are those of Pulsar's broker: clients and operators match them.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.core.errors import ProducerBusy, ProducerFenced

WAITING_PRODUCERS_MAX: Final = 10_000

StoreEpoch = Callable[[int], Awaitable[None]]


class ProducerRegistry:
    """Who may publish to one topic now, and who waits for it."""

    __slots__ = ("_by_name", "_epoch", "_exclusive", "_store_epoch", "_topic", "_waiting")

    def __init__(self, topic: str, epoch: int | None, store_epoch: StoreEpoch) -> None:
        self._topic = topic
        self._epoch = epoch
        self._store_epoch = store_epoch
        self._by_name: dict[str, Producer] = {}
        self._exclusive: Producer | None = None
        self._waiting: deque[Producer] = deque()

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Producer]:
        return iter(list(self._by_name.values()))

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def add(self, producer: Producer) -> None:
        """Admits the producer (`ready` set), or queues it (`ready` unset).

        Raises ProducerBusy or ProducerFenced.
        """
        await self._free_name(producer)
        match producer.access_mode:
            case AccessMode.SHARED:
                if self._exclusive is not None or self._waiting:
                    raise ProducerBusy(self._held_by())
                producer.topic_epoch = self._epoch
            case AccessMode.EXCLUSIVE:
                if self._exclusive is not None or self._waiting:
                    raise ProducerFenced(self._held_by())
                if self._by_name:
                    raise ProducerFenced("Topic has existing shared producers")
                await self._make_exclusive(producer)
            case AccessMode.EXCLUSIVE_WITH_FENCING:
                self._check_epoch(producer)
                self._fence_all()
                await self._make_exclusive(producer)
            case AccessMode.WAIT_FOR_EXCLUSIVE:
                if self._exclusive is not None or self._by_name:
                    if len(self._waiting) >= WAITING_PRODUCERS_MAX:
                        raise ProducerBusy(f"{len(self._waiting)} producers wait already")
                    self._waiting.append(producer)
                    return
                await self._make_exclusive(producer)
        self._by_name[producer.name] = producer
        producer.ready = True

    def remove(self, producer: Producer) -> Producer | None:
        """Takes the producer out. Returns the waiting one whose turn it is now, if any.

        The caller passes it to `promote`.
        """
        producer.closed = True
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        elif producer in self._waiting:
            self._waiting.remove(producer)
        if self._exclusive is producer:
            self._exclusive = None
        if self._exclusive is None and not self._by_name and self._waiting:
            return self._waiting[0]
        return None

    async def promote(self, producer: Producer) -> None:
        """Gives exclusive access to the first that waits."""
        if not self._waiting or self._waiting[0] is not producer or self._exclusive is not None:
            return
        self._waiting.popleft()
        try:
            await self._make_exclusive(producer)
        except ProducerFenced as error:
            producer.closed = True
            producer.sink.producer_refused(producer, error)
            return
        if producer.closed:
            self._exclusive = None
            return
        self._by_name[producer.name] = producer
        producer.ready = True
        producer.sink.producer_ready(producer)

    def close_all(self) -> None:
        """Sends every producer away, to come back wherever the topic is served then."""
        for producer in [*self._by_name.values(), *self._waiting]:
            producer.closed = True
            producer.sink.close_producer(producer)
        self._by_name.clear()
        self._waiting.clear()
        self._exclusive = None

    async def _free_name(self, producer: Producer) -> None:
        holder = self._by_name.get(producer.name)
        if holder is None or holder is producer:
            return
        if not producer.succeeds(holder):
            alive = holder.sink is producer.sink or await holder.sink.is_alive()
            if alive and self._by_name.get(producer.name) is not None:
                raise ProducerBusy(
                    f"Producer with name '{producer.name}' is already connected to topic "
                    f"'{self._topic}'"
                )
        if (next_in_line := self.remove(holder)) is not None:
            await self.promote(next_in_line)

    def _fence_all(self) -> None:
        fenced = ProducerFenced("Fenced out by a producer with ExclusiveWithFencing access mode")
        for waiting in self._waiting:
            waiting.closed = True
            waiting.sink.producer_refused(waiting, fenced)
        self._waiting.clear()
        for producer in self._by_name.values():
            producer.closed = True
            producer.sink.close_producer(producer)
        self._by_name.clear()
        self._exclusive = None

    async def _make_exclusive(self, producer: Producer) -> None:
        self._check_epoch(producer)
        self._exclusive = producer
        epoch = producer.topic_epoch
        if epoch is None:
            epoch = 0 if self._epoch is None else self._epoch + 1
        if epoch != self._epoch:
            try:
                await self._store_epoch(epoch)
            except BaseException:
                self._exclusive = None
                raise
            self._epoch = epoch
        producer.topic_epoch = epoch

    def _check_epoch(self, producer: Producer) -> None:
        current = -1 if self._epoch is None else self._epoch
        if producer.topic_epoch is not None and producer.topic_epoch < current:
            raise ProducerFenced(
                f"Topic epoch has already moved. Current epoch: {current}, "
                f"Producer epoch: {producer.topic_epoch}"
            )

    def _held_by(self) -> str:
        name = self._exclusive.name if self._exclusive else self._waiting[0].name
        return f"Topic has an existing exclusive producer: {name}"
