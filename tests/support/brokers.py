"""Several brokers of this process over one metadata store and one bookie, each with its session.

`kill` ends a broker as kill -9 does: its sockets are closed, and it says nothing to the store.
`pause` keeps it from hearing of anything: its lease is not renewed, its clock stands, its watches
are silent; but what clients send it is still handled, as by a process that goes on after a pause
and has not looked around yet.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tests.support.lease_wrapper import LeaseWrapper
from tests.support.memory_bookie import MemoryBookie
from tests.support.raw_client import RawClient

from magnetar.broker.assemble import assemble, describe_broker
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.ownership import ClusterOwnership
from magnetar.broker.ownership.records import Urls
from magnetar.broker.service import BrokerService
from magnetar.core.clock import SystemClock
from magnetar.core.errors import ServerError
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.metadata.leases import LocalLease
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import (
    Lease,
    MetadataStore,
    MetadataUnavailable,
    Operation,
    Record,
    Watch,
    WatchEvent,
)
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

T = TypeVar("T")

HOST = "127.0.0.1"
WITHIN_S = 20.0
TTL_S = 8.0
"""So long that a machine that stops for some seconds costs nobody its lease. Four times in it the
lease is renewed: so soon does a broker hear that it was lost."""
NAMESPACE = NamespaceName("public", "default")
TOPIC = "persistent://public/default/t"


class StoppableClock:
    """The system's, which stands while its process is paused."""

    def __init__(self, running: asyncio.Event) -> None:
        self._running = running
        self._system = SystemClock()
        self._last_s = self._system.monotonic()

    def now_ms(self) -> int:
        return self._system.now_ms()

    def monotonic(self) -> float:
        if self._running.is_set():
            self._last_s = self._system.monotonic()
        return self._last_s


class View:
    """One process's way to the store; while `running` is clear it learns nothing from it."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.running = asyncio.Event()
        self.running.set()
        self.leases: list[ViewLease] = []
        self.unanswered: list[bool] = []
        """What comes of the next writes, none of which is answered: whether they land."""
        self.cut_off_by: bool | None = None
        """Set: by the next write, which lands or not, the store is out of reach from then on."""
        self.cut_off = False
        self.renewing = True
        """Whether renewals get through."""

    async def get(self, key: str) -> Record | None:
        self._reach()
        return await self.store.get(key)

    async def list(self, prefix: str) -> list[Record]:
        return await self.store.list(prefix)

    async def children(self, prefix: str) -> Sequence[str]:
        return await self.store.children(prefix)

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        return await self._write(
            lambda: self.store.put(key, value, expected=expected, lease_id=lease_id)
        )

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        return await self._write(lambda: self.store.delete(key, expected=expected))

    async def transact(self, operations: Sequence[Operation]) -> int:
        return await self._write(lambda: self.store.transact(operations))

    def _reach(self) -> None:
        if self.cut_off:
            raise MetadataUnavailable("the store cannot be reached")

    async def _write(self, doing: Callable[[], Awaitable[T]]) -> T:
        self._reach()
        if self.cut_off_by is not None:
            landing, self.cut_off_by, self.cut_off = self.cut_off_by, None, True
            if landing:
                await doing()
            self._reach()
        if not self.unanswered:
            return await doing()
        if self.unanswered.pop(0):
            await doing()
        raise MetadataUnavailable("no answer came")

    async def revision(self) -> int:
        return await self.store.revision()

    async def grant_lease(self, ttl_s: float) -> Lease:
        lease = ViewLease(await self.store.grant_lease(ttl_s), self)
        self.leases.append(lease)
        return lease

    async def revoke_lease(self, lease_id: int) -> None:
        await self.store.revoke_lease(lease_id)

    def watch(self, prefix: str, *, from_revision: int | None = None) -> Watch:
        return ViewWatch(self.store.watch(prefix, from_revision=from_revision), self)

    async def close(self) -> None:
        """The store is everybody's."""


class ViewLease(LeaseWrapper):
    """A lease that is valid as long as its holder is paused, as the holder's clock has stopped."""

    def __init__(self, lease: Lease, view: View) -> None:
        super().__init__(lease)
        self._view = view

    @property
    def valid(self) -> bool:
        return not self._view.running.is_set() or self._lease.valid

    async def keep_alive(self) -> None:
        await self._view.running.wait()
        if not self._view.renewing:
            raise MetadataUnavailable("the store cannot be reached")
        await super().keep_alive()

    def keep(self, seconds: float) -> None:
        """The store keeps it for so much longer."""
        assert isinstance(self._lease, LocalLease)
        self._lease.deadline += seconds


class ViewWatch:
    """A watch whose events wait while its process is paused."""

    def __init__(self, watch: Watch, view: View) -> None:
        self._watch = watch
        self._view = view

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self

    async def __anext__(self) -> WatchEvent:
        event = await anext(self._watch)
        await self._view.running.wait()
        return event

    def close(self) -> None:
        self._watch.close()


class Rest:
    """Hears of the session's state."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def suspended(self) -> None:
        self.begun.set()

    async def established(self, *, renewed: bool) -> None:
        self.begun.clear()


@dataclass
class Node:
    """A broker."""

    service: BrokerService
    port: int
    view: View
    session: MetadataSession
    rest: Rest
    alive: bool = True

    @property
    def broker_id(self) -> str:
        return self.service.broker_id

    @property
    def url(self) -> str:
        return self.service.service_url

    @property
    def ownership(self) -> ClusterOwnership:
        assert self.service.cluster_ownership is not None
        return self.service.cluster_ownership

    async def client(self) -> RawClient:
        return await RawClient.connect(HOST, self.port)

    async def sees(self, count: int) -> None:
        """Returns once it knows of so many brokers."""
        news = asyncio.Event()
        brokers = self.ownership.brokers
        brokers.add_listener(lambda _: news.set())
        while len(brokers.living()) != count:
            news.clear()
            await news.wait()

    async def suspended(self) -> None:
        """Returns once it rests."""
        await asyncio.wait_for(self.rest.begun.wait(), WITHIN_S)

    def pause(self) -> None:
        self.view.running.clear()

    def go_on(self) -> None:
        """It has its turn again after a pause, and hears of what happened."""
        self.view.running.set()

    async def expire(self) -> None:
        """Its lease runs out, as far as everybody else is concerned."""
        await self.view.store.revoke_lease(self.view.leases[-1].id)

    async def kill(self) -> None:
        """See the module's text."""
        self.alive = False
        service = self.service
        for server in service._servers:
            server.close()
        for session in list(service.sessions):
            session.link.close()
        if self.session._watchdog is not None:
            self.session._watchdog.cancel()
        await self.session._tasks.stop()
        await self.ownership.stop()
        await service.ledgers.abandon()
        await service.tasks.stop()

    async def stop(self) -> None:
        if self.alive:
            self.alive = False
            self.view.running.set()
            await self.service.stop()
            await self.service.ledgers.close()


CONNECT, REDIRECT, FAILED = (
    pb.CommandLookupTopicResponse.Connect,
    pb.CommandLookupTopicResponse.Redirect,
    pb.CommandLookupTopicResponse.Failed,
)


@dataclass
class Cluster:
    """What its brokers share."""

    store: MetadataStore
    bookie: MemoryBookie = field(default_factory=MemoryBookie)
    nodes: list[Node] = field(default_factory=list)
    ttl_s: float = TTL_S

    async def broker(
        self,
        settings: BrokerSettings | None = None,
        listeners: Mapping[str, Urls] | None = None,
        port: int = 0,
    ) -> Node:
        """Starts another one."""
        view = View(self.store)
        clock = StoppableClock(view.running)
        ledgers = LedgerClient(view, LocalBookies([self.bookie]), clock, SINGLE)
        session = MetadataSession(view, self.ttl_s, clock, f"broker {len(self.nodes)}")
        rest = Rest()
        session.add_listener(rest)
        listener = socket.create_server((HOST, port))
        listener.setblocking(False)
        port = listener.getsockname()[1]
        record = await describe_broker(
            view,
            clock,
            listener,
            service_url=f"pulsar://{HOST}:{port}",
            http_url=f"http://{HOST}:{port}",
            listeners=listeners,
        )
        settings = settings or compose(BrokerSettings, shutdown_timeout_ms=5_000)
        service = assemble(settings, view, ledgers, clock, record, session=session)
        await service.start(listener)
        node = Node(service, port, view, session, rest)
        self.nodes.append(node)
        return node

    async def everybody_sees(self, count: int) -> None:
        """Returns once every living broker knows of so many."""
        async with asyncio.timeout(WITHIN_S):
            for node in self.nodes:
                if node.alive:
                    await node.sees(count)


@asynccontextmanager
async def running_cluster(
    brokers: int = 2,
    *,
    store: MetadataStore | None = None,
    bundles: int = 4,
    ttl_s: float = TTL_S,
    settings: BrokerSettings | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster with a tenant and a namespace."""
    cluster = Cluster(store or MemoryStore(SystemClock()), ttl_s=ttl_s)
    try:
        for index in range(brokers):
            node = await cluster.broker(settings)
            if not index:
                resources, name = node.service.resources, node.service.cluster
                tenant = {"adminRoles": [], "allowedClusters": [name]}
                await resources.create_tenant("public", tenant)
                await resources.create_namespace(NAMESPACE, default_policies(name, bundles))
        await cluster.everybody_sees(brokers)
        yield cluster
    finally:
        for node in cluster.nodes:
            await node.stop()
        await cluster.store.close()


async def ask(
    client: RawClient, topic: str = TOPIC, *, authoritative: bool = False, listener: str = ""
) -> pb.CommandLookupTopicResponse:
    command = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
    if listener:
        command.advertised_listener_name = listener
    answer: pb.CommandLookupTopicResponse = await client.request(CommandType.LOOKUP, command)
    return answer


async def answered(
    client: RawClient, topic: str = TOPIC, *, authoritative: bool = False
) -> pb.CommandLookupTopicResponse:
    """Asks as a client does: again, while the broker has no lease to answer under."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            answer = await ask(client, topic, authoritative=authoritative)
            if answer.response != FAILED or int(answer.error) != ServerError.SERVICE_NOT_READY:
                return answer
            await asyncio.sleep(0.01)


async def find(cluster: Cluster, topic: str = TOPIC, *, by: Node | None = None) -> Node:
    """Follows look-ups as a client does, to the broker that serves the topic."""
    node = by or next(node for node in cluster.nodes if node.alive)
    authoritative = False
    for _ in range(20):
        client = await node.client()
        answer = await answered(client, topic, authoritative=authoritative)
        await client.close()
        assert answer.response != FAILED, answer.message
        node = next(n for n in cluster.nodes if n.alive and n.url == answer.brokerServiceUrl)
        if answer.response == CONNECT:
            return node
        authoritative = answer.authoritative
    raise AssertionError("redirected round and round")


def bundle_of(node: Node, topic: str = TOPIC) -> Bundle:
    bundle = node.ownership.bundle_of(parse_topic(topic))
    assert bundle is not None
    return bundle


def other(cluster: Cluster, node: Node) -> Node:
    return next(one for one in cluster.nodes if one is not node and one.alive)
