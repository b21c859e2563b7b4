"""The producers of a topic: unique names, access modes, topic epochs and fencing.

- Names are unique in a topic. A producer whose name is taken replaces the holder if it is the
  holder's successor (same client, higher epoch) or if the holder's connection is dead; otherwise it
  is refused with ProducerBusy.
- Access modes follow PIP-68. Every producer that gets exclusive access raises the topic's epoch,
  which is stored before the producer may publish. A producer that returns with a lower epoch was
  fenced meanwhile and must not publish again.
- While an epoch is being stored, its producer holds the access but may not publish yet. If it is
  fenced or disconnected meanwhile, it is refused.
- When an exclusive access ends, the first waiting producer gets it, or the next one if that fails:
  no producer waits for a free topic. A task of the topic does that, because the task of the
  producer that left may be cancelled at any time.

Texts are Pulsar's: clients and operators match them.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.core.errors import MagnetarError, ProducerBusy, ProducerFenced, ServiceNotReady
from magnetar.core.tasks import TaskSet

WAITING_PRODUCERS_MAX: Final = 10_000

FENCED_TEXT: Final = "Fenced out by a producer with ExclusiveWithFencing access mode"

StoreEpoch = Callable[[int], Awaitable[None]]


class ProducerRegistry:
    """The producers of a topic, and those that wait for exclusive access."""

    __slots__ = (
        "_by_name",
        "_closings",
        "_epoch",
        "_exclusive",
        "_store_epoch",
        "_stored_epoch",
        "_suspended",
        "_tasks",
        "_topic",
        "_waiting",
    )

    def __init__(
        self, topic: str, epoch: int | None, store_epoch: StoreEpoch, tasks: TaskSet
    ) -> None:
        self._topic = topic
        self._tasks = tasks
        # The highest assigned epoch, and the highest durable one.
        self._epoch = epoch
        self._stored_epoch = epoch
        self._store_epoch = store_epoch
        self._by_name: dict[str, Producer] = {}
        self._exclusive: Producer | None = None
        self._waiting: list[Producer] = []
        self._closings = 0
        self._suspended = False

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Producer]:
        return iter(list(self._by_name.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def names(self) -> set[str]:
        """The names of the attached producers and of those that wait for exclusive access."""
        return {*self._by_name, *(producer.name for producer in self._waiting)}

    @property
    def waiting_count(self) -> int:
        """How many producers wait for exclusive access."""
        return len(self._waiting)

    @property
    def waiting(self) -> list[Producer]:
        """The producers that wait for exclusive access, in order."""
        return list(self._waiting)

    @property
    def exclusive(self) -> str:
        """The producer with exclusive access; empty if none has it."""
        return "" if self._exclusive is None else self._exclusive.name

    async def add(self, producer: Producer) -> None:
        """Admits the producer (sets `ready` or `suspended`), or queues it (sets neither).

        Raises ProducerBusy, ProducerFenced, ServiceNotReady, or what storing the epoch raises.
        """
        if producer.access_mode is not AccessMode.EXCLUSIVE_WITH_FENCING:
            await self._free_name(producer)
        match producer.access_mode:
            case AccessMode.SHARED:
                if self._exclusive is not None or self._waiting:
                    raise ProducerBusy(self._held_by())
                producer.topic_epoch = self._epoch
                self._admit(producer)
                return
            case AccessMode.EXCLUSIVE:
                if self._exclusive is not None or self._waiting:
                    raise ProducerFenced(self._held_by())
                if self._by_name:
                    raise ProducerFenced("Topic has existing shared producers")
            case AccessMode.EXCLUSIVE_WITH_FENCING:
                self._check_epoch(producer)
                self._fence_all()
            case AccessMode.WAIT_FOR_EXCLUSIVE:
                if self._exclusive is not None or self._by_name or self._waiting:
                    if len(self._waiting) >= WAITING_PRODUCERS_MAX:
                        raise ProducerBusy(f"{len(self._waiting)} producers wait already")
                    self._waiting.append(producer)
                    return
        try:
            await self._make_exclusive(producer)
        except BaseException:
            # Other producers may wait by now: they queued while the epoch was being stored.
            self._promote_soon()
            raise
        self._admit(producer)

    def remove(self, producer: Producer) -> None:
        """Removes the producer; if that frees the topic, the first waiting one gets access."""
        producer.close()
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        elif producer in self._waiting:
            self._waiting.remove(producer)
        if self._exclusive is producer:
            self._exclusive = None
        self._promote_soon()

    def _promote_soon(self) -> None:
        if self._next_in_line() is not None:
            self._tasks.start(self._promote(), "promote-producer")

    async def _promote(self) -> None:
        """Gives exclusive access to the first waiting producer, or to the next one if that fails.

        If another such task runs already, this one has nothing to do.
        """
        while (first := self._next_in_line()) is not None:
            self._waiting.pop(0)
            try:
                await self._make_exclusive(first)
            except MagnetarError as error:
                if not first.closed:
                    first.close()
                    first.sink.producer_refused(first, error)
                continue
            self._admit(first)
            first.sink.producer_ready(first)

    def suspend(self) -> None:
        """Suspends all producers, and those that are admitted later, without notifying clients."""
        self._suspended = True
        for producer in self._by_name.values():
            if producer.ready:
                producer.ready, producer.suspended, producer.missed = False, True, False

    def resume(self) -> None:
        """Ends `suspend`. Disconnects producers with missed messages, which clients then resend."""
        self._suspended = False
        for producer in [producer for producer in self._by_name.values() if producer.suspended]:
            producer.suspended = False
            if producer.missed:
                self.remove(producer)
                producer.sink.close_producer(producer)
            else:
                producer.ready = True
        self._promote_soon()

    def disconnect(self, condition: Callable[[Producer], bool]) -> None:
        """Disconnects the matching producers; they may get the reason when they reconnect."""
        for producer in list(filter(condition, self._by_name.values())):
            self.remove(producer)
            producer.sink.close_producer(producer)

    def close_all(self, destination: BrokerRecord | None = None) -> None:
        """Disconnects every producer; clients look the topic up again or use `destination`."""
        self._closings += 1
        for producer in [*self._by_name.values(), *self._waiting]:
            producer.close()
            producer.sink.close_producer(producer, destination)
        self._by_name.clear()
        self._waiting.clear()
        self._exclusive = None

    def _next_in_line(self) -> Producer | None:
        """Returns the first waiting producer if the topic is free and not suspended."""
        free = self._exclusive is None and not self._by_name and not self._suspended
        return self._waiting[0] if free and self._waiting else None

    def _admit(self, producer: Producer) -> None:
        self._by_name[producer.name] = producer
        producer.ready, producer.suspended = not self._suspended, self._suspended

    async def _free_name(self, producer: Producer) -> None:
        # Other producers may claim the name meanwhile, so the holder is checked after each wait.
        while (holder := self._by_name.get(producer.name)) is not None:
            if not producer.succeeds(holder):
                alive = holder.sink is producer.sink or await holder.sink.is_alive()
                if self._by_name.get(producer.name) is not holder:
                    continue
                if alive:
                    if producer.access_mode is AccessMode.EXCLUSIVE:
                        return  # `add` refuses it: the topic is taken, whatever the name
                    raise ProducerBusy(
                        f"Producer with name '{producer.name}' is already connected to topic "
                        f"'{self._topic}'"
                    )
            self.remove(holder)

    def _fence_all(self) -> None:
        for waiting in self._waiting:
            waiting.close()
            waiting.sink.producer_refused(waiting, ProducerFenced(FENCED_TEXT))
        self._waiting.clear()
        for producer in self._by_name.values():
            producer.close()
            producer.sink.close_producer(producer)
        self._by_name.clear()
        self._exclusive = None

    async def _make_exclusive(self, producer: Producer) -> None:
        """Increments and stores the epoch; raises if the producer lost the access meanwhile."""
        self._check_epoch(producer)
        self._exclusive = producer
        closings = self._closings
        epoch = producer.topic_epoch
        if epoch is None:
            epoch = 0 if self._epoch is None else self._epoch + 1
        self._epoch = epoch
        if epoch != self._stored_epoch:
            try:
                await self._store_epoch(epoch)
            except BaseException:
                if self._exclusive is producer:
                    self._exclusive = None
                raise
            self._stored_epoch = max(
                epoch, -1 if self._stored_epoch is None else self._stored_epoch
            )
        if self._exclusive is not producer:
            if self._closings != closings:
                raise ServiceNotReady(f"Topic {self._topic} was unloaded meanwhile, please retry")
            raise ProducerFenced(FENCED_TEXT)
        producer.topic_epoch = epoch

    @property
    def epoch(self) -> int | None:
        """The epoch of the last exclusive access, from 0; None before the first."""
        return self._epoch

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
