"""uvicorn inside the broker's event loop: no signal handlers, no start-up messages, few wake-ups.

The options of `uvicorn.Config` do most of it. Two methods are overridden, because uvicorn has no
option for what they change: with its signal handlers, uvicorn would take SIGTERM from the broker;
and its loop, which wakes up ten times a second, triples the CPU time of an idle broker (from 0.07
to 0.2 % of a core).

Importing this module imports uvicorn, so `server.py` imports it in a thread.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

from starlette.types import ASGIApp

from magnetar.admin.http import quiet_log
from magnetar.admin.http.connection import CONNECTIONS_MAX, HttpConnection
from magnetar.admin.http.lean_uvicorn import Config
from magnetar.admin.http.lean_uvicorn import Server as UvicornServer
from magnetar.broker.listeners import SecurePort
from magnetar.security.tls.transport import server_factory

KEEP_ALIVE_S: Final = 60
"""Longer than the idle pools of Pulsar's Java client, so that the client closes first."""
GRACE_S: Final = 1
TICK_S: Final = 1.0
"""How often the Date header is renewed and the connections' deadlines are checked."""
EVERY_TICK: Final = 0


class EmbeddedServer(UvicornServer):
    """Serves the application until `stop`; sets `ready` once it accepts requests."""

    def __init__(
        self, app: ASGIApp, ready: "asyncio.Future[None]", secure: SecurePort | None = None
    ) -> None:
        super().__init__(
            Config(
                app,
                # Not httptools: it loses the body of a request that offers HTTP/2, as those of
                # Java's client do.
                http=HttpConnection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                # Only requests that are being served count: see `connection`.
                limit_concurrency=CONNECTIONS_MAX + 1,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
                callback_notify=self._check,
                timeout_notify=EVERY_TICK,
            )
        )
        self.config.load()
        quiet_log.install()
        self._ready = ready
        self._secure = secure
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Makes `serve` finish the requests in flight, and return."""
        self.should_exit = True
        self._stopped.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the process, which handles them for all of its parts."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves the plain sockets as uvicorn does, and the secure one through our TLS.

        uvicorn's own TLS would keep the certificates of the start for ever, and stall the loop when
        many clients connect at once.
        """
        await super().startup(sockets)
        if self._secure is None:
            return
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            server_factory(self._secure.tls, self._connection),
            sock=self._secure.socket,
            backlog=self.config.backlog,
        )
        self.servers.append(server)

    def _connection(self) -> HttpConnection:
        return HttpConnection(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
        )

    async def main_loop(self) -> None:
        """Ticks every TICK_S, until `stop`."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._stopped.wait()

    async def _check(self) -> None:
        """Closes the connections that missed a deadline. The first call follows start-up."""
        if not self._ready.done():
            self._ready.set_result(None)
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.check_deadlines(now)
