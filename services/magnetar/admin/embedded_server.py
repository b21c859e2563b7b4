"""uvicorn as a guest in a loop that is not its own: no signal handlers, no logging, no busy tick.

Importing this module imports uvicorn; `server.py` does so in a thread.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Final

from starlette.types import ASGIApp

from magnetar.admin.http_connection import HttpConnection
from magnetar.admin.lean_uvicorn import Config, Server

CONNECTIONS_MAX: Final = 1_024
KEEP_ALIVE_S: Final = 60
"""Longer than the idle pools of Pulsar's Java client, so that it closes first."""
GRACE_S: Final = 1
CLOCK_TICK_S: Final = 1.0
"""How often the Date header is renewed, and connections are held to their deadlines."""


class EmbeddedServer(Server):
    """Serves until `stopping` is set; `ready` is done once it does."""

    def __init__(
        self, app: ASGIApp, stopping: asyncio.Event, ready: "asyncio.Future[None]"
    ) -> None:
        config = Config(
            app,
            # Not httptools: an offer of HTTP/2, which Java's client makes, loses it the body.
            http=HttpConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        config.load()
        super().__init__(config)
        self._stopping = stopping
        self._ready = ready

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        # "Started server process" says nothing that this process has not said itself.
        logger = logging.getLogger("uvicorn.error")
        level = logger.level
        logger.setLevel(logging.WARNING)
        try:
            await super().serve(sockets)
        finally:
            logger.setLevel(level)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process has its own place for signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        await self.on_tick(0)
        if not self._ready.done():
            self._ready.set_result(None)

    async def main_loop(self) -> None:
        while not self._stopping.is_set():
            await self.on_tick(0)
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, HttpConnection):
                    connection.look(now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOCK_TICK_S):
                    await self._stopping.wait()
