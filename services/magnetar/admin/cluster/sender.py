"""Requests of a broker to its peers and to itself, bounded in time and number.

A request to this broker goes directly to its application. All requests carry `authoritative=true`:
the receiver serves or refuses them but never passes them on, so they cannot circulate.
httpx is imported with the first request, which a single broker never sends.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.types import ASGIApp

from magnetar.admin.cluster.routing import Peer
from magnetar.core.errors import MetadataError, ServiceNotReady

if TYPE_CHECKING:
    import httpx

REQUEST_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 3.0
ANSWER_BYTES_MAX: Final = 64 << 20
AT_ONCE_MAX: Final = 16
"""Requests of this broker that run at the same time, each on a connection."""

AUTHORITATIVE: Final = "authoritative"
LOCAL_HEADER: Final = "x-magnetar-local"
"""Set if the request covers only the receiver's own data."""
UNDER_HEADER: Final = "x-magnetar-under"
"""A revision and a key: the deletion mark of the namespace or partitioned topic."""

_FORWARDED: Final = ("authorization", "content-type")


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A request to a peer; its path is percent-encoded. The answer carries its `subject`."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    headers: Mapping[str, str] | None = None
    subject: str = ""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The answer of a peer. `subject` is the partition or bundle that the request was about."""

    status: int
    body: bytes
    subject: str = ""

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300


class Sender:
    """Sends requests to brokers, at most AT_ONCE_MAX at the same time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._local: httpx.AsyncClient | None = None
        self._remote: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def close(self) -> None:
        for client in (self._local, self._remote):
            if client is not None:
                await client.aclose()
        self._local = self._remote = None

    async def send(self, peer: Peer, request: PeerRequest) -> PeerAnswer:
        """Sends a request; raises ServiceNotReady if the peer does not answer."""
        import httpx

        client = self._client(local=peer.local)
        raw_path = f"{request.path}?{request.query}".encode()
        url = httpx.URL(peer.http_url).copy_with(raw_path=raw_path)
        try:
            async with self._slots, asyncio.timeout(REQUEST_TIMEOUT_S):
                response = await client.request(
                    request.method, url, content=request.body, headers=dict(request.headers or {})
                )
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise ServiceNotReady(
                f"Broker {peer.broker_id} did not answer {request.method} {request.path}: {error!r}"
            ) from error
        if len(response.content) > ANSWER_BYTES_MAX:
            raise MetadataError(f"The answer of {peer.broker_id} to {request.path} is too large")
        return PeerAnswer(response.status_code, response.content, request.subject)

    def _client(self, *, local: bool) -> "httpx.AsyncClient":
        import httpx

        if local:
            if self._local is None:
                self._local = httpx.AsyncClient(transport=httpx.ASGITransport(self._app))
            return self._local
        if self._remote is None:
            self._remote = httpx.AsyncClient(
                timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                trust_env=False,
            )
        return self._remote


def authoritative(query: str, **more: str) -> str:
    """Returns the query with `authoritative=true` and `more`, which replace its own values."""
    replaced = {AUTHORITATIVE: "true", **more}
    kept = [(name, value) for name, value in parse_qsl(query, True) if name not in replaced]
    return urlencode([*kept, *replaced.items()])


def forwarded(request: Request) -> dict[str, str]:
    """Returns the headers of a client's request that are sent to peers."""
    return {name: request.headers[name] for name in _FORWARDED if name in request.headers}


def query_of(request: Request) -> str:
    """Returns the request's query, still encoded."""
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")
