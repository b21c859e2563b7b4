"""The standalone: metadata store, bookie, broker and admin REST in one process.

`start` binds the ports before it opens anything, and its caller has locked the data directory, so
that a second start fails at once and names the conflict. Components start from the lowest layer up
and stop in the reverse order.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from magnetar.admin.http.server import AdminServer
from magnetar.bookie.local import LocalBookie
from magnetar.broker.assemble import assemble, describe_broker
from magnetar.broker.catalog.defaults import ensure_defaults
from magnetar.broker.cold.offloader import Offloader
from magnetar.broker.listeners import bind_all
from magnetar.broker.security.opener import open_security
from magnetar.broker.service import BrokerService
from magnetar.core.clock import SystemClock
from magnetar.core.log import get_logger
from magnetar.core.malloc import release_freed_memory
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.metadata.embedded import open_embedded
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar.security.tls.process import ProcessTls
from magnetar.settings.standalone import StandaloneSettings

log = get_logger("magnetar.standalone.server")

BOOKIE_ID: Final = "standalone"
ARTIFACTS: Final = "compacted"
"""The folder of compacted topics in the data directory, unless a policy names a store."""


@dataclass(slots=True)
class Standalone:
    """A running standalone."""

    service: BrokerService
    bookie: LocalBookie
    service_url: str
    http_url: str
    _closing: AsyncExitStack

    async def stop(self) -> None:
        """Drains and closes all components. Receipted messages are on disk already."""
        await self._closing.aclose()


async def start(settings: StandaloneSettings) -> Standalone:
    """Starts all components, or closes those that it opened and raises.

    Raises OSError if a port is in use, and the errors of the store and the bookie.
    """
    clock = SystemClock()
    async with AsyncExitStack() as closing:
        tls = ProcessTls()
        closing.push_async_callback(tls.stop)
        listeners = bind_all(
            settings.host,
            port=settings.port,
            http_port=settings.http_port,
            port_tls=settings.broker_tls.port_tls,
            http_port_tls=settings.broker_tls.http_port_tls,
            tls=tls.server_if(settings.broker_tls.server_config(settings.tls)),
        )
        closing.callback(listeners.close)
        data_dir = settings.data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        bookie = await LocalBookie.open(data_dir / "bookie", BOOKIE_ID, clock=clock)
        closing.push_async_callback(bookie.close)
        store = await open_embedded(data_dir / "metadata", clock)
        closing.push_async_callback(store.close)
        ledgers = LedgerClient(store, LocalBookies([bookie]), clock, SINGLE)
        closing.push_async_callback(ledgers.close)
        urls = listeners.urls(settings.advertised_host or settings.host)
        record = await describe_broker(
            store,
            clock,
            listeners.reached,
            service_url=urls.service_url,
            http_url=urls.http_url,
            service_url_tls=urls.service_url_tls,
            http_url_tls=urls.http_url_tls,
        )
        security = open_security(settings.security, settings.audit, store, clock)
        service = assemble(
            settings, store, ledgers, clock, record, only_broker=True, security=security
        )
        service.offloader = Offloader.alone(
            service.offloading, ledgers.context, service.open_topics
        )
        service.compactor.artifacts = StoreSpec(FILESYSTEM, str(data_dir.resolve() / ARTIFACTS))
        closing.push_async_callback(service.ledgers.close)
        await ensure_defaults(
            *(service.resources, service.cluster),
            service_url=urls.service_url,
            http_url=urls.http_url,
            service_url_tls=urls.service_url_tls,
            http_url_tls=urls.http_url_tls,
            only_broker=True,
            bundles=settings.topics.default_namespace_bundles,
        )
        closing.push_async_callback(service.stop)
        await service.start(listeners.binary, listeners.binary_tls)
        admin = AdminServer()
        closing.push_async_callback(admin.stop)
        # The port listens from now on; the first connection loads the application.
        await admin.start(
            service,
            settings.host,
            settings.http_port,
            listeners.http,
            secure=listeners.http_tls,
            bookies=[bookie],
            families=tls.families,
        )
        release_freed_memory()
        return Standalone(service, bookie, service.service_url, service.http_url, closing.pop_all())
