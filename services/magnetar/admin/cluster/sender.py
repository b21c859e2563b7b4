"""Requests of a broker to its peers and to itself, bounded in time and number.

A request to this broker goes directly to its application. All requests carry `authoritative=true`:
the receiver serves or refuses them but never passes them on, so they cannot circulate.
httpx is imported with the first request, which a single broker never sends.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.types import ASGIApp

from magnetar.admin.cluster.routing import Peer
from magnetar.admin.rights.caller import CALLER, headers_of
from magnetar.core.errors import AuthorizationError, MetadataError, ServiceNotReady
from magnetar.core.tasks import TaskSet
from magnetar.security.credentials import Credentials
from magnetar.security.credentials.plugins import CredentialsUnavailable
from magnetar.security.tls.reload import ClientTls

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

_FORWARDED: Final = ("content-type",)


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

    def __init__(
        self, app: ASGIApp, credentials: Credentials | None = None, tls: ClientTls | None = None
    ) -> None:
        """`credentials` are this broker's own; with `tls`, requests to brokers are encrypted."""
        self._app = app
        self._credentials = credentials
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        """The TLS context of `_remote`: changed certificates need another client."""
        self._former: httpx.AsyncClient | None = None
        """The client before that: a request may still use it."""
        self._tasks = TaskSet("admin sender")
        self._local: httpx.AsyncClient | None = None
        self._remote: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def close(self) -> None:
        await self._tasks.stop()
        for client in (self._local, self._remote, self._former):
            if client is not None:
                await client.aclose()
        self._local = self._remote = self._former = None

    async def send(self, peer: Peer, request: PeerRequest) -> PeerAnswer:
        """Sends a request; raises ServiceNotReady if the peer does not answer."""
        import httpx

        client = self._client(local=peer.local)
        headers = dict(request.headers or {})
        if self._credentials is not None and not peer.local:
            headers |= await self._own_headers(self._credentials)
        raw_path = f"{request.path}?{request.query}".encode()
        url = httpx.URL(self._address(peer)).copy_with(raw_path=raw_path)
        try:
            async with self._slots, asyncio.timeout(REQUEST_TIMEOUT_S):
                response = await client.request(
                    request.method, url, content=request.body, headers=headers
                )
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise ServiceNotReady(
                f"Broker {peer.broker_id} did not answer {request.method} {request.path}: {error!r}"
            ) from error
        if len(response.content) > ANSWER_BYTES_MAX:
            raise MetadataError(f"The answer of {peer.broker_id} to {request.path} is too large")
        return PeerAnswer(response.status_code, response.content, request.subject)

    async def _own_headers(self, credentials: Credentials) -> dict[str, str]:
        """Returns this broker's credentials, and the principal that the request is sent for."""
        caller = CALLER.get()
        if caller is None:
            raise AuthorizationError("A request to other brokers needs a role that it is sent for")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await credentials.headers() | headers_of(caller)
        except (CredentialsUnavailable, TimeoutError) as error:
            text = str(error) or f"no answer within {REQUEST_TIMEOUT_S:g} s"
            raise ServiceNotReady(f"This broker has no credentials now: {text}") from error

    def _address(self, peer: Peer) -> str:
        """Returns the peer's address; raises ServiceNotReady if it has none of the right kind."""
        address = peer.url(secure=self._tls is not None)
        if peer.local:
            return address
        if self._tls is not None and not address.startswith("https:"):
            raise ServiceNotReady(
                f"Broker {peer.broker_id} has no admin port with TLS (http_port_tls), which "
                "broker_client_tls requires"
            )
        if self._tls is None and address.startswith("https:"):
            raise ServiceNotReady(
                f"Broker {peer.broker_id} has an admin port with TLS only: set broker_client_tls "
                "(brokerClientTlsEnabled)"
            )
        return address

    def _client(self, *, local: bool) -> "httpx.AsyncClient":
        import httpx

        if local:
            if self._local is None:
                self._local = httpx.AsyncClient(transport=httpx.ASGITransport(self._app))
            return self._local
        context = None if self._tls is None else self._tls.context
        if self._remote is not None and context is not self._context:
            # Requests under way end long before the certificates change again.
            if self._former is not None:
                self._tasks.start(self._former.aclose(), "close connections")
            self._former, self._remote = self._remote, None
        if self._remote is None:
            self._context = context
            self._remote = httpx.AsyncClient(
                verify=True if context is None else context,
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
