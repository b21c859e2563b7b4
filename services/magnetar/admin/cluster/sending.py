"""Requests of a broker to its peers, and to itself: bounded in time, in number, and in tries.

A request to this very broker goes to its application directly. All of them say `authoritative`:
they are served where they arrive, or refused, but never sent on, so that they cannot go in circles.
httpx is imported when the first request is sent; a broker alone never does.
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
CONNECTIONS_MAX: Final = 64
ANSWER_BYTES_MAX: Final = 64 << 20
AT_ONCE_MAX: Final = 16
"""Requests of one fan-out that are under way together."""

AUTHORITATIVE: Final = "authoritative"
LOCAL_HEADER: Final = "x-magnetar-local"
"""Says that only what this very broker holds is asked for."""
UNDER_HEADER: Final = "x-magnetar-under"
"""A revision and a key: the mark of what is being deleted, with the topic that is named."""

_FORWARDED: Final = ("authorization", "content-type")


@dataclass(frozen=True, slots=True)
class Sent:
    """A request; its path is still percent-encoded. `about` comes back with the answer."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    headers: Mapping[str, str] | None = None
    about: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer said. `about` is what it was asked about: a partition, a bundle."""

    status: int
    body: bytes
    about: str = ""

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300


class Sender:
    """See the module's text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._local: httpx.AsyncClient | None = None
        self._remote: httpx.AsyncClient | None = None
        self._turn = asyncio.Semaphore(AT_ONCE_MAX)

    async def close(self) -> None:
        for client in (self._local, self._remote):
            if client is not None:
                await client.aclose()
        self._local = self._remote = None

    async def send(self, peer: Peer, sent: Sent) -> Answer:
        """Raises ServiceNotReady where the peer does not answer."""
        import httpx

        client = self._client(here=peer.here)
        raw_path = f"{sent.path}?{sent.query}".encode()
        url = httpx.URL(peer.http_url).copy_with(raw_path=raw_path)
        try:
            async with self._turn, asyncio.timeout(REQUEST_TIMEOUT_S):
                response = await client.request(
                    sent.method, url, content=sent.body, headers=dict(sent.headers or {})
                )
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise ServiceNotReady(
                f"Broker {peer.broker_id} did not answer {sent.method} {sent.path}: {error!r}"
            ) from error
        if len(response.content) > ANSWER_BYTES_MAX:
            raise MetadataError(f"The answer of {peer.broker_id} to {sent.path} is too large")
        return Answer(response.status_code, response.content, sent.about)

    def _client(self, *, here: bool) -> "httpx.AsyncClient":
        import httpx

        if here:
            if self._local is None:
                self._local = httpx.AsyncClient(transport=httpx.ASGITransport(self._app))
            return self._local
        if self._remote is None:
            self._remote = httpx.AsyncClient(
                timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
                trust_env=False,
            )
        return self._remote


def authoritative(query: str, **more: str) -> str:
    """The query with `authoritative=true`, and what else is named, in place of what it had."""
    given = {AUTHORITATIVE: "true", **more}
    kept = [(name, value) for name, value in parse_qsl(query, True) if name not in given]
    return urlencode([*kept, *given.items()])


def forwarded(request: Request) -> dict[str, str]:
    """The headers that go with a request that is sent on."""
    return {name: request.headers[name] for name in _FORWARDED if name in request.headers}


def query_of(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")
