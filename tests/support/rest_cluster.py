"""Brokers of a cluster in one process: metadata and a bookie in memory, real sockets, real REST."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import msgspec
from tests.support.memory_bookie import MemoryBookie

from magnetar.admin.cluster.routing import ClusterParts, OwnershipRouting
from magnetar.admin.http.server import AdminServer
from magnetar.broker.assemble import assemble, describe_broker
from magnetar.broker.balance.rules import PlacementRules
from magnetar.broker.balance.service import Balance, LocalBroker, Reports
from magnetar.broker.catalog.defaults import ensure_defaults
from magnetar.broker.ownership.ownership import ClusterOwnership
from magnetar.broker.service import BrokerService
from magnetar.cluster.broker_balance import BrokerWork
from magnetar.core.clock import SystemClock
from magnetar.core.names import TopicName
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import MetadataSession
from magnetar.observe.listen import bind
from magnetar.settings.balance import BalanceSettings
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

SETTINGS = compose(
    BrokerSettings,
    cluster_name="c1",
    force_delete_namespace=True,
    force_delete_tenant=True,
    delete_inactive_topics=False,
)
TTL_S = 60.0
"""No lease runs out here, however busy the machine is."""
NO_BODY = object()


@dataclass(slots=True)
class Member:
    """One broker with its REST."""

    service: BrokerService
    balance: Balance
    admin: AdminServer
    http: httpx.AsyncClient

    @property
    def ownership(self) -> ClusterOwnership:
        assert self.service.cluster_ownership is not None
        return self.service.cluster_ownership

    async def call(
        self, method: str, path: str, body: object = NO_BODY, *, follow: bool = True
    ) -> httpx.Response:
        """`~` at the start stands for /admin/v2; redirects are followed as pulsar-admin does."""
        url = "/admin/v2" + path[1:] if path.startswith("~") else path
        content, headers = b"", {}
        if body is not NO_BODY:
            content = msgspec.json.encode(body)
            headers = {"content-type": "application/json"}
        return await self.http.request(
            method, url, content=content, headers=headers, follow_redirects=follow
        )

    async def done(self, method: str, path: str, body: object = NO_BODY) -> httpx.Response:
        """A call that must succeed."""
        response = await self.call(method, path, body)
        assert response.status_code < 300, (
            f"{method} {path}: {response.status_code} {response.text}"
        )
        return response

    async def stop(self) -> None:
        await self.http.aclose()
        await self.balance.stop()
        await self.admin.stop()
        await self.service.stop()
        await self.service.ledgers.close()


@dataclass(slots=True)
class RestCluster:
    """`start`, then `stop`."""

    clock: SystemClock = field(default_factory=SystemClock)
    store: MemoryStore = field(default_factory=MemoryStore)
    bookie: MemoryBookie = field(default_factory=MemoryBookie)
    members: list[Member] = field(default_factory=list)
    settings: BrokerSettings = SETTINGS

    async def start(self, brokers: int) -> None:
        for _ in range(brokers):
            await self.add()

    async def add(self) -> Member:
        binary, http = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
        service_url = f"pulsar://127.0.0.1:{binary.getsockname()[1]}"
        broker_id = f"127.0.0.1:{http.getsockname()[1]}"
        http_url = f"http://{broker_id}"
        session = MetadataSession(self.store, TTL_S, self.clock, broker_id)
        ledgers = LedgerClient(self.store, LocalBookies([self.bookie]), self.clock, SINGLE)
        record = await describe_broker(
            self.store, self.clock, binary, service_url=service_url, http_url=http_url
        )
        rules = PlacementRules(self.store)
        service = assemble(
            *(self.settings, self.store, ledgers, self.clock, record), session=session, rules=rules
        )
        await ensure_defaults(
            service.resources, "c1", service_url=service_url, http_url=http_url, only_broker=False
        )
        assert service.cluster_ownership is not None
        work = BrokerWork(service, service.cluster_ownership)
        balance = Balance(
            BalanceSettings(),
            self.store,
            session,
            self.clock,
            LocalBroker(
                broker_id=broker_id,
                http_url=http_url,
                serving=work,
                owner=work,
                living=work.living,
                allowed=work.allowed,
            ),
            Reports(self.store),
        )
        await service.start(binary)
        balance.start()
        admin = AdminServer()
        await admin.start(
            service, "127.0.0.1", 0, http,
            cluster=ClusterParts(OwnershipRouting(service.cluster_ownership), balance),
        )  # fmt: skip
        await admin.ready()
        client = httpx.AsyncClient(base_url=http_url, timeout=20, trust_env=False)
        member = Member(service, balance, admin, client)
        self.members.append(member)
        return member

    def owner(self, name: TopicName) -> Member:
        """Who serves the topic."""
        found = [member for member in self.members if member.ownership.owns(name)]
        assert len(found) == 1, f"{name} is served by {len(found)} brokers"
        return found[0]

    def others(self, member: Member) -> Sequence[Member]:
        return [each for each in self.members if each is not member]

    async def stop(self) -> None:
        for member in self.members:
            await member.stop()
        await self.store.close()
