"""Producers come, go, fence and wait while epochs are stored and pings are under way, in any order.

At every moment: one exclusive producer at most, and nobody beside it; no name twice; who publishes
is who the registry names; an exclusive producer's epoch is durable and above all earlier ones;
those that wait are served in the order in which they came. Once nothing is under way any more:
every producer has its answer, and nobody waits at a topic that nobody holds.
"""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.broker.producer_doubles import RecordingSink, new_producer

from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.core.errors import (
    MagnetarError,
    MetadataError,
    ProducerBusy,
    ProducerFenced,
    ServiceNotReady,
)
from magnetar.core.tasks import TaskSet

NAMES = ("", "", "a", "b")
TURNS = 20


class ProducersMachine(RuleBasedStateMachine):
    """The registry, the store of its epochs, and three connections."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.tasks = TaskSet("test")
        self.registry = ProducerRegistry("t", None, self._store, self.tasks)
        self.sinks = [RecordingSink() for _ in range(3)]
        self.stores: list[tuple[int, asyncio.Future[None]]] = []
        self.durable: list[int] = []
        self.adding: dict[asyncio.Task[None], Producer] = {}
        self.line: list[Producer] = []
        self.waited_before: dict[Producer, list[Producer]] = {}
        self.admitted_epochs: list[int] = []
        self.known: set[Producer] = set()
        self.all: list[Producer] = []

    async def _store(self, epoch: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stores.append((epoch, future))
        await future
        self.durable.append(epoch)

    def teardown(self) -> None:
        try:
            while any(sink.pings for sink in self.sinks) or self.stores:
                if self.stores:
                    self.store_ends(True)
                for number, sink in enumerate(self.sinks):
                    if sink.pings:
                        self.ping_ends(number, False)
            assert not self.adding, "an add has no answer"
            assert not len(self.tasks), "a promotion did not end"
            if not len(self.registry):
                assert self.registry.waiting_count == 0, "somebody waits at a free topic"
        finally:
            for task in self.adding:
                task.cancel()
            self._run()
            self.loop.run_until_complete(self.tasks.stop())
            self.loop.close()

    # -- what happens

    @rule(
        mode=st.sampled_from(AccessMode),
        name=st.sampled_from(NAMES),
        sink=st.integers(0, 2),
        producer_id=st.integers(0, 1),
        epoch=st.integers(0, 2),
        former=st.integers(0, 5),
    )
    def comes(
        self, mode: AccessMode, name: str, sink: int, producer_id: int, epoch: int, former: int
    ) -> None:
        epochs = self.admitted_epochs
        own = epochs[-former] if 0 < former <= len(epochs) and mode != AccessMode.SHARED else None
        producer = new_producer(
            self.sinks[sink],
            name,
            mode,
            producer_id=producer_id if name else None,
            epoch=epoch,
            topic_epoch=own,
        )
        self._add(producer)

    @precondition(lambda self: self.known)
    @rule(pick=st.integers(0, 1_000))
    def leaves(self, pick: int) -> None:
        known = sorted(self.known, key=self.all.index)
        self._remove(known[pick % len(known)])

    @precondition(lambda self: self.known)
    @rule(pick=st.integers(0, 1_000), mode=st.sampled_from(AccessMode))
    def leaves_and_another_comes_at_once(self, pick: int, mode: AccessMode) -> None:
        """Before the turn of the one that waits has come."""
        known = sorted(self.known, key=self.all.index)
        leaving = known[pick % len(known)]
        self.known.discard(leaving)
        self._add(new_producer(self.sinks[0], mode=mode), instead_of=leaving)

    @precondition(lambda self: self.adding)
    @rule(pick=st.integers(0, 1_000))
    def gives_up(self, pick: int) -> None:
        """The client closed it, or its connection ended, before it had its answer."""
        task, producer = list(self.adding.items())[pick % len(self.adding)]
        task.cancel()
        self._run()
        self._remove(producer)

    @precondition(lambda self: self.stores)
    @rule(success=st.booleans())
    def store_ends(self, success: bool) -> None:
        _, future = self.stores.pop(0)
        if not future.done():
            if success:
                future.set_result(None)
            else:
                future.set_exception(MetadataError("no"))
        self._run()

    @rule(sink=st.integers(0, 2), alive=st.booleans())
    def ping_ends(self, sink: int, alive: bool) -> None:
        pings, self.sinks[sink].pings = self.sinks[sink].pings, []
        for ping in pings:
            if not ping.done():
                ping.set_result(alive)
        if pings and not alive:  # its connection is closed, with all that it had
            self._remove(*[each for each in self.known if each.sink is self.sinks[sink]])
        self._run()

    @rule()
    def topic_fails(self) -> None:
        self.registry.close_all()

    # -- what must hold

    @invariant()
    def one_exclusive_or_many_shared(self) -> None:
        live = [producer for producer in self.all if producer.ready and not producer.closed]
        assert set(live) == set(self.registry)
        assert len({producer.name for producer in live}) == len(live)
        if any(producer.access_mode is not AccessMode.SHARED for producer in live):
            assert len(live) == 1
            assert live[0].topic_epoch in self.durable

    # -- how it is run

    def _add(self, producer: Producer, instead_of: Producer | None = None) -> None:
        async def add() -> None:
            if instead_of is not None:
                self.registry.remove(instead_of)
            await self.registry.add(producer)

        self.all.append(producer)
        self.waited_before[producer] = self._waiting()
        self.adding[self.loop.create_task(add())] = producer
        self._run()

    def _remove(self, *producers: Producer) -> None:
        async def remove() -> None:
            for producer in producers:
                self.known.discard(producer)
                self.registry.remove(producer)

        self.loop.run_until_complete(remove())
        self._run()

    def _run(self) -> None:
        for _ in range(TURNS):
            self.loop.run_until_complete(asyncio.sleep(0))
            self._notice()

    def _notice(self) -> None:
        for task in [task for task in self.adding if task.done()]:
            producer = self.adding.pop(task)
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                self.known.add(producer)
                if not producer.ready:
                    self.line.append(producer)
                elif producer.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE:
                    passed = [p for p in self._waiting() if p in self.waited_before[producer]]
                    assert not passed, "one that waits was passed"
                self._admitted(producer)
            else:
                allowed = ProducerBusy | ProducerFenced | ServiceNotReady | MetadataError
                assert isinstance(error, allowed), error
                assert not producer.ready
        for sink in self.sinks:
            for producer in sink.ready:
                before = self.line[: self.line.index(producer)]
                passed = [p for p in before if not p.ready and not p.closed]
                assert not passed, "those that wait were not served in order"
                self._admitted(producer)
            for told, error in sink.refused:
                assert isinstance(error, MagnetarError)
                self.known.discard(told)
            sink.ready.clear()
            sink.refused.clear()

    def _waiting(self) -> list[Producer]:
        return [producer for producer in self.line if not producer.ready and not producer.closed]

    def _admitted(self, producer: Producer) -> None:
        if producer.ready and producer.access_mode is not AccessMode.SHARED:
            assert producer.topic_epoch is not None
            assert producer.topic_epoch >= max(self.admitted_epochs, default=0)
            self.admitted_epochs.append(producer.topic_epoch)


TestProducers = ProducersMachine.TestCase
TestProducers.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
