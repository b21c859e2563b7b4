"""A broker of this process over a bookie and metadata in memory, listening on a free port."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.support.memory_bookie import MemoryBookie

from magnetar.broker.assemble import assemble, describe_broker
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.ownership.records import BrokerRecord, Urls
from magnetar.broker.security.broker_security import BrokerSecurity
from magnetar.broker.service import BrokerService
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.names import NamespaceName
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataStore
from magnetar.settings.broker import BrokerSettings

HOST = "127.0.0.1"

RECORD = BrokerRecord(
    "127.0.0.1:8080",
    1,
    HOST,
    6650,
    Urls(f"pulsar://{HOST}:6650", f"http://{HOST}:8080"),
)
"""Of a broker that no other reaches."""


@asynccontextmanager
async def running_broker(
    settings: BrokerSettings | None = None,
    store: MemoryStore | None = None,
    bookie: MemoryBookie | None = None,
    secure: Callable[[MetadataStore, Clock], BrokerSecurity] | None = None,
) -> AsyncIterator[tuple[BrokerService, int]]:
    """The broker and its port."""
    clock = SystemClock()
    store = store or MemoryStore(clock)
    bookie = bookie or MemoryBookie()
    ledgers = LedgerClient(store, LocalBookies([bookie]), clock, SINGLE)
    listener = socket.create_server((HOST, 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    record = await describe_broker(
        store, clock, listener, service_url=f"pulsar://{HOST}:{port}", http_url=f"http://{HOST}"
    )
    security = None if secure is None else secure(store, clock)
    service = assemble(
        settings or BrokerSettings(), store, ledgers, clock, record, security=security
    )
    tenant = {"adminRoles": [], "allowedClusters": [service.cluster]}
    await service.resources.create_tenant("public", tenant)
    await service.resources.create_namespace(
        NamespaceName("public", "default"), default_policies(service.cluster)
    )
    await service.start(listener)
    try:
        yield service, port
    finally:
        await service.stop()
        await service.ledgers.close()
        await store.close()
