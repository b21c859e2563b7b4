"""Everything in one process: metadata store, bookie, broker and admin REST, wired together.

Ports are bound and the data directory is locked before anything is opened, so that a second start
is told at once which of them is taken. Start-up order is upwards, shutdown the same downwards.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from magnetar.admin.server import AdminServer
from magnetar.bookie.local import LocalBookie
from magnetar.broker.defaults import ensure_defaults
from magnetar.broker.ledger_settings import managed_ledger_settings
from magnetar.broker.service import BrokerService
from magnetar.broker.settings import StandaloneSettings
from magnetar.core.clock import SystemClock
from magnetar.core.log import get_logger
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.embedded import open_embedded
from magnetar.observe.listen import bind

log = get_logger("magnetar.standalone")

BOOKIE_ID: Final = "standalone"


@dataclass(slots=True)
class Standalone:
    """A running standalone."""

    service: BrokerService
    bookie: LocalBookie
    service_url: str
    http_url: str
    _closing: AsyncExitStack

    async def stop(self) -> None:
        """Drains and closes everything; what was receipted is on disk before and after."""
        await self._closing.aclose()


async def start(settings: StandaloneSettings) -> Standalone:
    """Raises OSError for a port in use, or the store's and the bookie's errors; leaves no trace."""
    clock = SystemClock()
    async with AsyncExitStack() as opened:
        binary = bind(settings.host, settings.port)
        opened.callback(binary.close)
        http = bind(settings.host, settings.http_port)
        opened.callback(http.close)
        data_dir = settings.data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        bookie = await LocalBookie.open(data_dir / "bookie", BOOKIE_ID, clock=clock)
        opened.push_async_callback(bookie.close)
        store = await open_embedded(data_dir / "metadata", clock)
        opened.push_async_callback(store.close)
        ledgers = LedgerClient(store, LocalBookies([bookie]), clock, SINGLE)
        opened.push_async_callback(ledgers.close)
        factory = ManagedLedgerFactory(store, ledgers, clock, managed_ledger_settings(settings))
        opened.push_async_callback(factory.close)
        service = BrokerService(settings, store, factory, clock)
        host = settings.advertised_host or settings.host
        service_url = f"pulsar://{host}:{binary.getsockname()[1]}"
        http_url = f"http://{host}:{http.getsockname()[1]}"
        await ensure_defaults(
            service.resources,
            service.cluster,
            service_url=service_url,
            http_url=http_url,
            only_broker=True,
        )
        opened.push_async_callback(service.stop)
        await service.start(binary, service_url=service_url, http_url=http_url, only_broker=True)
        admin = AdminServer()
        opened.push_async_callback(admin.stop)
        # It listens from here on; requests wait for the application, which a thread loads.
        await admin.start(service, settings.host, settings.http_port, http, bookies=[bookie])
        return Standalone(service, bookie, service_url, http_url, opened.pop_all())
