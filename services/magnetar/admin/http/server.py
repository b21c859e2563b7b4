"""The HTTP server of a broker: uvicorn in the broker's own event loop.

`bind` takes the port before anything slow is imported, so that a port in use is reported at once.
`AdminServer.start` begins to listen on it, and from then on the kernel queues requests. Starlette,
the routes and uvicorn take 11 MiB and a quarter of a start's CPU. A thread imports them when the
first connection arrives, or when the process calls `ready`, which waits for them. The broker serves
its clients meanwhile, and the queued requests are answered afterwards.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.broker.listeners import SecurePort
from magnetar.core.errors import ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.observe.health import Probes
from magnetar.observe.listen import bind

if TYPE_CHECKING:
    from magnetar.admin.cluster.routing import ClusterParts
    from magnetar.admin.http.embedded_server import EmbeddedServer
    from magnetar.admin.metrics.bookie_series import BookieWithStats
    from magnetar.admin.metrics.page import MetricsPage
    from magnetar.broker.service import BrokerService

log = get_logger("magnetar.admin")

LISTEN_BACKLOG: Final = 1_024
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 2.0


class AdminServer:
    """Serves the admin REST of a broker. `start`, then `stop`; it cannot be started again."""

    def __init__(self) -> None:
        self.port = 0
        self._tasks = TaskSet("admin")
        self._sockets: list[socket.socket] = []
        self._ready: asyncio.Future[None] | None = None
        self._server: EmbeddedServer | None = None
        self._stopping = False
        self._needed = asyncio.Event()
        self._ended = asyncio.Event()
        self._cluster: ClusterParts | None = None

    async def start(
        self,
        service: "BrokerService",
        host: str,
        port: int | None,
        listener: socket.socket | None = None,
        *,
        secure: SecurePort | None = None,
        bookies: "Sequence[BookieWithStats]" = (),
        probes: Probes | None = None,
        cluster: "ClusterParts | None" = None,
        families: Callable[[], Iterable[str]] = tuple,
    ) -> int:
        """Listens on `host` and `port`, or on the socket that `bind` made; returns the port.

        `secure` is a port with TLS, in addition; without `port`, it is the only one.
        Returns at once: requests wait until the application is loaded. `bookies` are those of this
        process, for its metrics. `probes` report its health; the default covers the broker alone.
        `cluster` is set if the broker is one of several. `families` yields further metrics.
        """
        if listener is None and port is not None:
            listener = bind(host, port)
        sockets = [] if listener is None else [listener]
        if secure is not None:
            sockets.append(secure.socket)
        for bound in sockets:
            bound.listen(LISTEN_BACKLOG)
        self._sockets = sockets
        self.port = sockets[0].getsockname()[1]
        self._ready = asyncio.get_running_loop().create_future()
        self._cluster = cluster
        load = _Load(service, tuple(bookies), probes, cluster, families, secure, self._ready)
        self._tasks.start(self._serve(load, listener), "serve")
        return self.port

    async def ready(self) -> None:
        """Loads the application; returns once requests are answered, or raises what prevents it."""
        assert self._ready is not None, "start() comes first"  # noqa: S101
        self._needed.set()
        async with asyncio.timeout(READY_TIMEOUT_S):
            await asyncio.shield(self._ready)

    async def stop(self) -> None:
        """Lets the requests in flight finish within STOP_TIMEOUT_S, then closes. Idempotent."""
        if self._ready is None:
            return
        self._stopping = True
        self._needed.set()
        if self._server is not None:
            self._server.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._ended.wait()
        await self._tasks.stop()
        if self._cluster is not None:
            await self._cluster.close()
        for listener in self._sockets:
            listener.close()

    async def _serve(self, load: "_Load", listener: socket.socket | None) -> None:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="admin-load")
        try:
            await self._first_connection()
            if self._stopping:
                return
            started = time.monotonic()
            server, page = await loop.run_in_executor(executor, load.run)
            self._server = server
            self._tasks.start(page.keep_windows(), "metrics-windows")
            log.debug("admin REST loaded", took_ms=int((time.monotonic() - started) * 1000))
            if not self._stopping:
                await server.serve([] if listener is None else [listener])
        except BaseException as error:
            if not self._stopping:
                _fail(load.ready, error)
            raise
        finally:
            _fail(load.ready, ServiceNotReady("The admin server was stopped while it loaded"))
            executor.shutdown(wait=False)
            self._ended.set()

    async def _first_connection(self) -> None:
        """Returns when a client connects, `ready` is called, or the server stops."""
        loop = asyncio.get_running_loop()
        for listener in self._sockets:
            loop.add_reader(listener.fileno(), self._needed.set)
        try:
            await self._needed.wait()
        finally:
            for listener in self._sockets:
                loop.remove_reader(listener.fileno())


def _fail(ready: "asyncio.Future[None]", error: BaseException) -> None:
    if not ready.done():
        ready.set_exception(error)
        ready.exception()  # retrieved, so that asyncio does not log it as lost


@dataclass(frozen=True, slots=True)
class _Load:
    """Imports and builds the application from these parts, in a thread."""

    service: "BrokerService"
    bookies: "tuple[BookieWithStats, ...]"
    probes: Probes | None
    cluster: "ClusterParts | None"
    families: Callable[[], Iterable[str]]
    secure: SecurePort | None
    ready: "asyncio.Future[None]"

    def run(self) -> "tuple[EmbeddedServer, MetricsPage]":
        """Imports and builds everything; blocks for half a second, so not for the loop's thread."""
        from magnetar.admin.app import create_app
        from magnetar.admin.http.embedded_server import EmbeddedServer
        from magnetar.admin.metrics.page import MetricsPage
        from magnetar.core.malloc import release_freed_memory

        if self.cluster is None:
            page = MetricsPage(self.service, self.bookies, further=self.families)
        else:
            cluster = self.cluster
            page = MetricsPage(self.service, self.bookies, cluster.balance, self._families)
        app = create_app(self.service, page, self.probes, self.cluster)
        server = EmbeddedServer(app, self.ready, self.secure)
        # Importing leaves 3 MiB free.
        release_freed_memory()
        return server, page

    def _families(self) -> Iterable[str]:
        """The metrics of a broker of a cluster, then those of the process."""
        if self.cluster is not None:
            yield from self.cluster.families()
        yield from self.families()
