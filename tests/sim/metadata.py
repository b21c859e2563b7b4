"""The metadata store in the simulation: a MemoryStore on a separate host, and clients of it.

A client's calls travel over the simulated network, so they are delayed, cut off and lost. What was
lost on the way back was done all the same: the caller gets MetadataUnavailable and cannot know. A
request that met a cut may still arrive, seconds after its caller gave up. Leases are kept by the
store's clock; whether one is `valid` is decided by the client's own, from before it asked.

Watches poll from the revision that they have got to, so that an answer lost costs nothing; a store
that compacts tells them Compacted, as one that fell behind.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Self, TypeVar

from tests.sim.clocks import SimClock
from tests.sim.etcd_leases import grant_etcd_lease
from tests.sim.loop import PROCESS, Process, SimLoop
from tests.sim.network import Network
from tests.sim.store_watch import StoreWatch

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.metadata.etcd.client import EtcdClient
from magnetar.metadata.etcd.leases import EtcdLease
from magnetar.metadata.leases import LocalLease
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.operations import leases_named
from magnetar.metadata.store import (
    Compacted,
    InvalidOperation,
    LeaseLost,
    MetadataUnavailable,
    Operation,
    Put,
    Record,
    StoreClosed,
    WatchEvent,
)

REQUEST_TIMEOUT_S: Final = 2.0
POLL_S: Final = 5.0
POLL_RETRY_S: Final = 0.1
LATE_CHANCE: Final = 0.3
LATE_S: Final = (0.3, 4.0)
HOST: Final = "metadata"

T = TypeVar("T")
Work = Callable[[MemoryStore], Awaitable[Any]]


@dataclass(slots=True)
class Writes:
    """How writes fare, beside what the network does; reads and keep-alives are not concerned.

    An etcd with slow disks behaves so: it answers requests that need no fsync immediately.
    """

    lost_chance: float = 0.0
    """That the request never arrives."""
    lost_answer_chance: float = 0.0
    """That the answer never comes."""
    slow_chance: float = 0.0
    slow_s: float = 0.0
    """The approximate delay of a slow answer; the write takes effect immediately."""
    late_chance: float = 0.0
    late_s: float = 0.0
    """How late a late write lands, at most."""

    @staticmethod
    def happens(chance: float, rng: Random) -> bool:
        """Draws nothing if it cannot happen, so that other runs do not change."""
        return chance > 0.0 and rng.random() < chance


GOOD: Final = Writes()


class MetadataServer:
    """The store's own process. Its state outlives restarts: it was synced."""

    def __init__(self, loop: SimLoop, network: Network) -> None:
        self.loop, self.network = loop, network
        self.process = Process(loop, HOST, HOST)
        self.store = MemoryStore(SimClock(loop))
        self.down = False
        self.lost_answer_chance = 0.0
        self.writes = Writes()
        self.answers_lost = 0
        self.calls = 0
        self.on_call: Callable[[str, str], None] | None = None
        self.late_from: dict[str, float] = {}
        """Hosts whose writes are delayed, by seconds."""
        self.late_to: dict[str, float] = {}
        """Hosts to which answers are delayed, by about this number of seconds."""
        self.etcd_leases = False
        """Whether clients' leases are those of the product's etcd client (`etcd_leases.py`)."""
        self.clients: list[MetadataClient] = []
        self.watching = StoreWatch(self.store, self.clients)

    # -- faults ----------------------------------------------------------------------------

    def go_down(self) -> None:
        """Stops answering, and ends no lease, until `come_up`."""
        self.down = True
        self.process.pause()

    def come_up(self) -> None:
        """As a new leader does: every lease has its whole time again."""
        self.down = False
        now = self.store._leases.clock.monotonic()
        for lease in self.store._leases._leases.values():
            lease.deadline = max(lease.deadline, now + lease.ttl_s)
        self.process.resume()

    def compact(self) -> None:
        """Forgets all events so far."""
        hub = self.store._hub
        hub._kept.clear()
        hub._kept_bytes = 0
        hub._gone = self.store._revision

    # -- requests --------------------------------------------------------------------------

    def request(
        self, source: Process, work: Work, reply: Callable[..., None], *, writes: bool
    ) -> None:
        """A request is here."""
        if self.down:
            return
        self.calls += 1
        serving = self._serve(source, work, reply, writes)
        if isinstance(work, Poll):
            self.process.start(serving, "serve")
        else:
            self.process.take_turns(serving)

    async def _serve(
        self, source: Process, work: Work, reply: Callable[..., None], writes: bool
    ) -> None:
        result, error = None, None
        try:
            result = await work(self.store)
        except (MagnetarError, ValueError) as failed:
            error = failed
        rng, fare = self.loop.rng, self.writes if writes else GOOD
        if rng.random() < self.lost_answer_chance or fare.happens(fare.lost_answer_chance, rng):
            self.answers_lost += 1
            return
        when = self.loop.now
        if fare.happens(fare.slow_chance, rng):
            when += fare.slow_s * rng.uniform(0.5, 1.5)
        if (late_s := self.late_to.get(source.host)) is not None:
            when += late_s * rng.uniform(0.7, 1.0)
        if self.network.passes(HOST, source.host):
            when += self.network.latency(HOST, source.host)
            self.loop.at(when, source.post, reply, result, error)

    async def poll(self, prefix: str, first: int) -> tuple[list[WatchEvent], int]:
        """Events from a revision on, once there are some, and the revision to go on from."""
        watch = self.store.watch(prefix, from_revision=first)
        try:
            events = []
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    events.append(await anext(watch))
            events += watch._queue  # type: ignore[attr-defined]  # a LocalWatch
            return events, self.store._revision + 1
        finally:
            watch.close()


class Poll:
    """The one work that waits for more than turns."""

    __slots__ = ("_first", "_prefix", "_server")

    def __init__(self, server: MetadataServer, prefix: str, first: int) -> None:
        self._server, self._prefix, self._first = server, prefix, first

    def __call__(self, _: MemoryStore) -> Awaitable[tuple[list[WatchEvent], int]]:
        return self._server.poll(self._prefix, self._first)


class SimLease:
    """See `store.Lease`."""

    def __init__(self, client: "MetadataClient", id_: int, ttl_s: float, deadline: float) -> None:
        self._client = client
        self.id, self.ttl_s, self.deadline = id_, ttl_s, deadline
        self.lost = False

    @property
    def valid(self) -> bool:
        client = self._client
        return not (self.lost or client.closed) and client.clock.monotonic() < self.deadline

    async def keep_alive(self) -> None:
        asked = self._client.clock.monotonic()

        async def renew(store: MemoryStore) -> None:
            await _lease_of(store, self.id).keep_alive()

        try:
            await self._client.call(renew)
        except LeaseLost:
            self.lost = True
            raise
        self.deadline = asked + self.ttl_s

    async def revoke(self) -> None:
        async def revoke(store: MemoryStore) -> None:
            with suppress(LeaseLost):
                await _lease_of(store, self.id).revoke()

        self.lost = True
        await self._client.call(revoke)


def _lease_of(store: MemoryStore, lease_id: int) -> LocalLease:
    store._check_open()
    store._leases.require(lease_id)
    return store._leases._leases[lease_id]


class SimWatch:
    """See `store.Watch`."""

    def __init__(self, client: "MetadataClient", prefix: str, first: int | None) -> None:
        self._client = client
        self._prefix = prefix
        self._first = first
        self._events: deque[WatchEvent] = deque()
        self._end: BaseException | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._start: asyncio.Future[int] | None = None
        if first is None:
            # Asked for now, and before whatever the caller writes next.
            self._start = client.send(lambda store: store.revision())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._events:
            if self._end is not None:
                raise self._end
            await self._poll()
        return self._events.popleft()

    async def _poll(self) -> None:
        client = self._client
        try:
            if self._first is None:
                self._first = await self._started() + 1
                return
            self._answer = client.send(Poll(client.server, self._prefix, self._first))
            found = await client.answer(self._answer, POLL_S + REQUEST_TIMEOUT_S)
            if found is None:
                return
            events, self._first = found
            self._events.extend(events)
        except MetadataUnavailable:
            if self._first is not None:
                await asyncio.sleep(POLL_RETRY_S)
        except (Compacted, StoreClosed, InvalidOperation, StopAsyncIteration) as error:
            self._end = self._end or error

    async def _started(self) -> int:
        """The revision at which the watch was requested."""
        start = self._answer = self._start
        if start is None:
            raise Compacted("where the watch was to start is not known")
        try:
            revision = await self._client.answer(asyncio.shield(start), REQUEST_TIMEOUT_S)
        except MetadataUnavailable:
            self._start = None
            raise
        if revision is None:
            raise StopAsyncIteration
        return revision

    def close(self) -> None:
        self._events.clear()
        self.end(StopAsyncIteration())

    def end(self, reason: BaseException) -> None:
        if self._end is None:
            self._end = reason
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)


class MetadataClient:
    """See `store.MetadataStore`. One for each process."""

    def __init__(self, server: MetadataServer, clock: Clock) -> None:
        self.server, self.clock = server, clock
        self._process = PROCESS.get()
        self._arrived = 0.0
        self.closed = False
        self._watches: list[SimWatch] = []
        self._leases: dict[int, SimLease | EtcdLease] = {}
        self.etcd: EtcdClient | None = None
        server.clients.append(self)

    @property
    def process(self) -> Process:
        return self._process

    @property
    def leases(self) -> Mapping[int, "SimLease | EtcdLease"]:
        """By id, also those that have ended."""
        return self._leases

    # -- how calls travel ------------------------------------------------------------------

    def send(self, work: Work, *, writes: bool = False) -> "asyncio.Future[Any]":
        """Sends a request; requests of one client arrive in order where nothing is cut or late."""
        loop, network = self.server.loop, self.server.network
        future: asyncio.Future[Any] = loop.create_future()
        departs = max(loop.now, self._process.busy_until)
        arrives = departs + network.latency(self._process.host, HOST)
        fare = self.server.writes if writes else GOOD
        if fare.happens(fare.lost_chance, loop.rng):
            return future
        if fare.happens(fare.late_chance, loop.rng):
            # Sent alone: later messages may overtake it.
            arrives += loop.rng.uniform(0.0, fare.late_s)
        else:
            self._arrived = arrives = max(arrives, self._arrived + 1e-7)
        if writes:
            arrives += self.server.late_from.get(self._process.host, 0.0)
        loop.at(arrives, self._arrive, work, future, 0, writes)
        return future

    def _arrive(self, work: Work, future: "asyncio.Future[Any]", tries: int, writes: bool) -> None:
        loop = self.server.loop
        if not tries and not self._process.alive:
            return
        if not self.server.network.passes(self._process.host, HOST):
            if tries < 3 and loop.rng.random() < LATE_CHANCE:
                when = loop.now + loop.rng.uniform(*LATE_S)
                loop.at(when, self._arrive, work, future, tries + 1, writes)
            return

        def reply(result: object, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.server.request(self._process, work, reply, writes=writes)

    async def answer(self, future: "asyncio.Future[T]", timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise MetadataUnavailable("the metadata store did not answer in time") from None

    async def call(self, work: Callable[[MemoryStore], Awaitable[T]], *, writes: bool = False) -> T:
        self._check_open()
        result: T = await self.answer(self.send(work, writes=writes), REQUEST_TIMEOUT_S)
        self._check_open()
        return result

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed("the metadata store is closed")

    # -- MetadataStore ---------------------------------------------------------------------

    async def get(self, key: str) -> Record | None:
        return await self.call(lambda store: store.get(key))

    async def list(self, prefix: str) -> list[Record]:
        return await self.call(lambda store: store.list(prefix))

    async def children(self, prefix: str) -> Sequence[str]:
        return await self.call(lambda store: store.children(prefix))

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        return await self.transact([Put(key, bytes(value), expected, lease_id)])

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        return await self.call(lambda store: store.delete(key, expected=expected), writes=True)

    async def transact(self, operations: Sequence[Operation]) -> int:
        operations = tuple(operations)
        try:
            return await self.call(lambda store: store.transact(operations), writes=True)
        except LeaseLost:
            for lease_id in leases_named(operations):
                if lease_id in self._leases:
                    self._leases[lease_id].lost = True
            raise

    async def revision(self) -> int:
        return await self.call(lambda store: store.revision())

    async def grant_lease(self, ttl_s: float) -> "SimLease | EtcdLease":
        if self.server.etcd_leases:
            lease_of_etcd = await grant_etcd_lease(self, ttl_s)
            self._leases[lease_of_etcd.id] = lease_of_etcd
            return lease_of_etcd
        asked = self.clock.monotonic()
        lease = await self.call(lambda store: store.grant_lease(ttl_s))
        held = self._leases[lease.id] = SimLease(self, lease.id, ttl_s, asked + ttl_s)
        return held

    def lease_ids(self) -> Sequence[int]:
        """Those of this client that it takes to be good."""
        return [lease.id for lease in self._leases.values() if lease.valid]

    async def revoke_lease(self, lease_id: int) -> None:
        await self.call(lambda store: store.revoke_lease(lease_id))

    def watch(self, prefix: str, *, from_revision: int | None = None) -> SimWatch:
        self._check_open()
        if from_revision is not None and from_revision < 1:
            raise InvalidOperation(f"no revision is {from_revision}")
        watch = SimWatch(self, prefix, from_revision)
        self._watches.append(watch)
        return watch

    async def close(self) -> None:
        self.closed = True
        for watch in self._watches:
            watch.end(StoreClosed("the metadata store is closed"))
        self._watches.clear()
