"""The HTTP server of a broker: uvicorn in the broker's own event loop.

`bind` takes the port before anything slow is imported, so that a port in use is told at once, and
`AdminServer.start` begins to listen on it: the kernel queues requests from then on. Starlette, the
routes and uvicorn are imported by a thread meanwhile, beside the broker that serves its first
clients; queued requests are answered when that is done. `ready()` waits for it.

uvicorn's own signal handlers, logging and tick of ten times a second are left out: the process has
one place for signals, and an idle broker should sleep.
"""

import asyncio
import contextlib
import gc
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.observe.health import Probes
from magnetar.observe.listen import bind

if TYPE_CHECKING:
    from magnetar.admin.cluster.routing import InCluster
    from magnetar.admin.embedded_server import EmbeddedServer
    from magnetar.admin.metrics.bookie_series import BookieWithStats
    from magnetar.admin.metrics.page import MetricsPage
    from magnetar.broker.service import BrokerService

log = get_logger("magnetar.admin")

LISTEN_BACKLOG: Final = 1_024
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 2.0


class AdminServer:
    """See the module's text. `start`, then `stop`; never started again."""

    def __init__(self) -> None:
        self.port = 0
        self._tasks = TaskSet("admin")
        self._listener: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._stopping: asyncio.Event | None = None
        self._served = asyncio.Event()
        self._cluster: InCluster | None = None

    async def start(
        self,
        service: "BrokerService",
        host: str,
        port: int,
        listener: socket.socket | None = None,
        *,
        bookies: "Sequence[BookieWithStats]" = (),
        probes: Probes | None = None,
        cluster: "InCluster | None" = None,
    ) -> int:
        """Listens on `host` and `port`, or on the socket that `bind` made; returns the port.

        Returns at once: requests wait until the application is loaded. `bookies` are those of this
        process, for its metrics; `probes` are what it tells of its health; `cluster` is there where
        it is one of several brokers.
        """
        self._listener = bind(host, port) if listener is None else listener
        self._listener.listen(LISTEN_BACKLOG)
        self.port = self._listener.getsockname()[1]
        self._ready = asyncio.get_running_loop().create_future()
        self._stopping = asyncio.Event()
        self._cluster = cluster
        self._tasks.start(
            self._serve(
                _Load(service, tuple(bookies), probes, cluster, self._stopping, self._ready),
                self._listener,
            ),
            "serve",
        )
        return self.port

    async def ready(self) -> None:
        """Returns once requests are being answered; raises what kept that from happening."""
        assert self._ready is not None, "start() comes first"  # noqa: S101
        async with asyncio.timeout(READY_TIMEOUT_S):
            await asyncio.shield(self._ready)

    async def stop(self) -> None:
        """Lets requests under way finish, within STOP_TIMEOUT_S, then closes. Idempotent."""
        if self._stopping is None:
            return
        self._stopping.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._served.wait()
        await self._tasks.stop()
        if self._cluster is not None:
            await self._cluster.close()
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, load: "_Load", listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="admin-load")
        try:
            started = time.monotonic()
            server, page = await loop.run_in_executor(executor, load.run)
            self._tasks.start(page.keep_windows(), "metrics-windows")
            log.debug("admin REST loaded", took_ms=int((time.monotonic() - started) * 1000))
            await server.serve([listener])
        except BaseException as error:
            if not load.ready.done():
                load.ready.set_exception(error)
                load.ready.exception()  # retrieved, also where nobody waits
            raise
        finally:
            executor.shutdown(wait=False)
            self._served.set()


@dataclass(frozen=True, slots=True)
class _Load:
    """What the application is made of."""

    service: "BrokerService"
    bookies: "tuple[BookieWithStats, ...]"
    probes: Probes | None
    cluster: "InCluster | None"
    stopping: asyncio.Event
    ready: "asyncio.Future[None]"

    def run(self) -> "tuple[EmbeddedServer, MetricsPage]":
        """Imports and builds everything; runs in a thread of its own."""
        from magnetar.admin.app import create_app
        from magnetar.admin.embedded_server import EmbeddedServer
        from magnetar.admin.metrics.page import MetricsPage
        from magnetar.bookie.malloc import release_freed_memory

        if self.cluster is None:
            page = MetricsPage(self.service, self.bookies)
        else:
            cluster = self.cluster
            page = MetricsPage(self.service, self.bookies, cluster.balance, cluster.families)
        app = create_app(self.service, page, self.probes, self.cluster)
        server = EmbeddedServer(app, self.stopping, self.ready)
        # What was imported stays: the collector need not look through it, which would hold up the
        # loop. What importing left free goes back: 3 MiB.
        gc.freeze()
        release_freed_memory()
        return server, page
