"""A broker of this process over a bookie and metadata in memory, listening on a free port."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.bookie.memory import MemoryBookie
from magnetar.broker.namespace_policies import default_policies
from magnetar.broker.service import BrokerService
from magnetar.broker.settings import BrokerSettings
from magnetar.core.clock import SystemClock
from magnetar.core.names import NamespaceName
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.memory import MemoryStore

HOST = "127.0.0.1"


@asynccontextmanager
async def running_broker(
    settings: BrokerSettings | None = None,
    store: MemoryStore | None = None,
    bookie: MemoryBookie | None = None,
) -> AsyncIterator[tuple[BrokerService, int]]:
    """The broker and its port."""
    clock = SystemClock()
    store = store or MemoryStore(clock)
    bookie = bookie or MemoryBookie()
    factory = ManagedLedgerFactory(
        store, LedgerClient(store, LocalBookies([bookie]), clock, SINGLE), clock
    )
    service = BrokerService(settings or BrokerSettings(), store, factory, clock)
    tenant = {"adminRoles": [], "allowedClusters": [service.cluster]}
    await service.resources.create_tenant("public", tenant)
    await service.resources.create_namespace(
        NamespaceName("public", "default"), default_policies(service.cluster)
    )
    listener = socket.create_server((HOST, 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    await service.start(listener, service_url=f"pulsar://{HOST}:{port}", http_url=f"http://{HOST}")
    try:
        yield service, port
    finally:
        await service.stop()
        await factory.close()
        await store.close()
