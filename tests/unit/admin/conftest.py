"""A broker over a bookie and metadata in memory, and its admin REST without sockets."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest

from magnetar.admin.app import create_app
from magnetar.admin.metrics.page import MetricsPage
from magnetar.bookie.memory import MemoryBookie
from magnetar.broker.namespace_policies import default_policies
from magnetar.broker.service import BrokerService
from magnetar.broker.settings import BrokerSettings
from magnetar.core.clock import SystemClock
from magnetar.core.ids import Position
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.memory import MemoryStore

BROKER = "127.0.0.1:8080"


@dataclass(slots=True)
class Admin:
    """The broker and a client of its REST."""

    service: BrokerService
    page: MetricsPage
    http: httpx.AsyncClient
    published: list[Position] = field(default_factory=list)

    async def call(
        self, method: str, path: str, body: object = None, **more: object
    ) -> httpx.Response:
        """`~` stands for /admin/v2."""
        url = path.replace("~", "/admin/v2", 1)
        if body is None:
            return await self.http.request(method, url, **more)  # type: ignore[arg-type]
        return await self.http.request(method, url, json=body, **more)  # type: ignore[arg-type]


async def start_service(settings: BrokerSettings | None = None) -> BrokerService:
    clock = SystemClock()
    store = MemoryStore(clock)
    ledgers = LedgerClient(store, {"memory": MemoryBookie()}, clock)
    factory = ManagedLedgerFactory(store, ledgers, clock)
    service = BrokerService(settings or BrokerSettings(), store, factory, clock)
    service.service_url, service.http_url = "pulsar://127.0.0.1:6650", f"http://{BROKER}"
    service.broker_id = BROKER
    await service.resources.create_cluster(
        "standalone", {"serviceUrl": service.http_url, "brokerServiceUrl": service.service_url}
    )
    for tenant in ("public", "t1"):
        info = {"adminRoles": [], "allowedClusters": ["standalone"]}
        await service.resources.create_tenant(tenant, info)
    for name in ("public/default", "t1/n1"):
        await service.resources.create_namespace(
            NamespaceName.parse(name), default_policies("standalone")
        )
    return service


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    service = await start_service()
    page = MetricsPage(service)
    transport = httpx.ASGITransport(create_app(service, page))
    async with httpx.AsyncClient(transport=transport, base_url=service.http_url) as http:
        yield Admin(service, page, http)
    await service.stop()
    await service.ledgers.close()
    await service.store.close()


def topic_name(local: str) -> TopicName:
    return parse_topic(f"persistent://t1/n1/{local}")
