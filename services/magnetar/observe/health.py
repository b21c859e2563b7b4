"""A tiny HTTP server for probes and scrapes: /healthz, /readyz, /metrics and /status.

For processes without a REST server (bookie, autorecovery), so that they stay small. It serves one
request per connection, GET and HEAD only, from callables that must not block:

- /healthz   200: the event loop runs;
- /readyz    200, or 503 with the reason as text;
- /metrics   Prometheus' text format;
- /status    a JSON document about the process.

A broker with authentication serves only some of them until its admin REST is up (`public`); any
other request then gets the same 401 as from the admin REST.

Bounds: REQUEST_BYTES_MAX per request head, REQUEST_TIMEOUT_S from the connection to the end of the
answer, CONNECTIONS_MAX at once. The server closes connections that exceed them; beyond
CONNECTIONS_MAX it closes the oldest one, so that idle connections cannot keep out the probes.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from magnetar.observe.metrics import CONTENT_TYPE as METRICS_TYPE

REQUEST_BYTES_MAX: Final = 16 << 10
REQUEST_TIMEOUT_S: Final = 10.0
CONNECTIONS_MAX: Final = 64
LISTEN_BACKLOG: Final = 64
TEXT_TYPE: Final = "text/plain; charset=utf-8"
JSON_TYPE: Final = "application/json"

Wrap = Callable[[Callable[[], asyncio.BaseProtocol]], Callable[[], asyncio.BaseProtocol]]
"""Takes and returns a factory of protocols."""

READS: Final = ("GET", "HEAD")
_UNAUTHENTICATED: Final = b'{"reason":"Authentication required"}'

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Probes:
    """The probes of a process. Neither callable may block."""

    not_ready: Callable[[], str]
    """Returns why the process is not ready; empty if it is."""
    status: Callable[[], Mapping[str, object]]
    """The document of /status."""
    ready: Callable[[], str] = lambda: "ok"
    """The body of /readyz while the process is ready."""


class HealthServer:
    """Serves the probes and metrics of one process over HTTP. `start`, then `stop`."""

    def __init__(
        self,
        probes: Probes,
        metrics: Callable[[], Iterable[str]],
        public: frozenset[str] | None = None,
    ) -> None:
        """`metrics` yields families, formatted by `observe.metrics`.

        `public` are the paths that need no credentials; None: all, and unknown ones get 404.
        """
        self._public = public
        self._probes = probes
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, None] = {}
        """The open connections, the oldest first."""

    async def start(self, listener: socket.socket, wrap: Wrap | None = None) -> int:
        """Serves on the bound socket; returns its port. `wrap` puts the connections into TLS."""

        def connection() -> asyncio.BaseProtocol:
            return _Connection(self._answer, self._connections, self._public)

        self._server = await asyncio.get_running_loop().create_server(
            connection if wrap is None else wrap(connection),
            sock=listener,
            backlog=LISTEN_BACKLOG,
        )
        port: int = listener.getsockname()[1]
        return port

    async def stop(self) -> None:
        """Closes the server and its connections. Idempotent."""
        if self._server is not None:
            self._server.close()
            for connection in list(self._connections):
                connection.abort()

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        """Returns status, content type and body."""
        match path:
            case "/healthz":
                return 200, TEXT_TYPE, b"ok\n"
            case "/readyz":
                reason = self._probes.not_ready()
                return (503, TEXT_TYPE, f"{reason}\n".encode()) if reason else (
                    200, TEXT_TYPE, f"{self._probes.ready()}\n".encode(),
                )  # fmt: skip
            case "/metrics":
                return 200, METRICS_TYPE, "".join(self._metrics()).encode()
            case "/status":
                return 200, JSON_TYPE, msgspec.json.encode(self._probes.status()) + b"\n"
            case "/":
                return 200, TEXT_TYPE, b"/healthz\n/readyz\n/metrics\n/status\n"
        return 404, TEXT_TYPE, b"only /healthz, /readyz, /metrics and /status are here\n"


class _Connection(asyncio.Protocol):
    """A connection: one request and its answer."""

    def __init__(
        self,
        answer: Callable[[str], tuple[int, str, bytes]],
        connections: "dict[_Connection, None]",
        public: frozenset[str] | None,
    ) -> None:
        self._answer = answer
        self._public = public
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._head = b""
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.abort()
        self._connections[self] = None
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(REQUEST_TIMEOUT_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._connections.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def abort(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._respond(*self._request())
        elif len(self._head) > REQUEST_BYTES_MAX:
            self._respond(False, 431, TEXT_TYPE, b"the request's head is too large\n")

    def _request(self) -> tuple[bool, int, str, bytes]:
        """Returns whether the method is HEAD, then the answer."""
        parts = self._head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return False, 400, TEXT_TYPE, b"not a request of HTTP/1\n"
        method, target = parts[0], parts[1]
        path = target.partition("?")[0]
        if self._public is not None and (path not in self._public or method not in READS):
            return method == "HEAD", 401, JSON_TYPE, _UNAUTHENTICATED
        if method not in READS:
            return False, 405, TEXT_TYPE, b"GET and HEAD only\n"
        try:
            return method == "HEAD", *self._answer(path)
        except Exception as error:  # noqa: BLE001 - a failing probe answers, too
            return False, 500, TEXT_TYPE, f"{type(error).__name__}\n".encode()

    def _respond(self, head_only: bool, status: int, kind: str, body: bytes) -> None:
        assert self._transport is not None  # noqa: S101
        self._answered = True
        challenge = "WWW-Authenticate: Bearer\r\n" if status == 401 else ""
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n{challenge}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() if head_only else head.encode() + body)
        self._transport.close()
