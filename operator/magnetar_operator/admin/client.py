"""The one client of the clusters' admin REST: deadlines, retries, redirects, typed refusals.

Every request of the operator is idempotent. The client therefore retries it up to ATTEMPTS_MAX
times, with back-off and jitter, if the cluster does not answer or answers 5xx. It follows Pulsar's
redirects (307) to the broker that owns a topic, with method and body. At most AT_ONCE_MAX requests
of a client run at the same time.

A request that was sent completes even if its caller is cancelled, so that its connection stays
usable. `close` waits for such requests, at most CLOSE_S_MAX.

If a cluster does not answer, the client fails all requests at once for DOWN_S: a thousand resources
must not each wait for the deadline.

Every attempt uses the credentials that the cluster's Secrets have then, so a renewed token or a
new authority needs no restart. A redirect gets them only if it keeps to TLS.

`AdminClients` owns the connections to all clusters. Bound: CONNECTED_MAX clients with connections.
"""

import asyncio
import random
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final

import httpx
import msgspec

from magnetar.core.backoff import Backoff
from magnetar.core.tasks import TaskSet
from magnetar_operator.admin.access import OPEN, Access, AccessKey, AccessSource, no_access
from magnetar_operator.clock import SYSTEM, Clock

AT_ONCE_MAX: Final = 16
CONNECT_TIMEOUT_S: Final = 3.0
ANSWER_TIMEOUT_S: Final = 30.0
REQUEST_S_MAX: Final = 60.0
"""The deadline of one request with all its attempts."""
ATTEMPTS_MAX: Final = 3
BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 2.0
REDIRECTS_MAX: Final = 5
DOWN_S: Final = 5.0
CLOSE_S_MAX: Final = 5.0
CONNECTED_MAX: Final = 128
"""Clients that keep connections open; idle ones beyond it close theirs."""
REASON_CHARACTERS_MAX: Final = 1_000

_REDIRECT: Final = 307
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_SERVER_ERROR: Final = 500


class AdminError(Exception):
    """A request to the admin REST failed."""


class Unreachable(AdminError):
    """The cluster did not answer, or cannot answer now: retry later."""


class Refused(AdminError):
    """The cluster refused the request, with a reason."""

    def __init__(self, status: int, reason: str, request: str) -> None:
        super().__init__(f"{reason} ({status}, {request})")
        self.status = status
        self.reason = reason


class NotFound(Refused):
    """The target, or what contains it, does not exist."""


class Exists(Refused):
    """The target exists already, or something else conflicts with it (409)."""


class AdminClient:
    """Sends requests to the admin REST of one cluster.

    It opens connections when a request needs them, also after `close`.
    """

    def __init__(
        self,
        url: str,
        monotonic: Callable[[], float] = time.monotonic,
        transport: httpx.AsyncBaseTransport | None = None,
        access: Callable[[], Awaitable[Access]] | None = None,
    ) -> None:
        """`access` returns the credentials; `transport` replaces the connections, for tests."""
        self.url = url.rstrip("/")
        self._access = access
        self._trust = b""
        """The authorities of the open connections."""
        self.requests: Counter[str] = Counter()
        """Requests by method, with followed redirects and repeated attempts."""
        self._monotonic = monotonic
        self._transport = transport
        self._http: httpx.AsyncClient | None = None
        self._outdated: list[httpx.AsyncClient] = []
        self._running: set[asyncio.Task[Any]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)
        self._down_until = float("-inf")
        self._down_reason = ""

    @property
    def connected(self) -> bool:
        """Whether the client may have open connections."""
        return self._http is not None

    async def close(self) -> None:
        """Waits for running requests and closes the connections."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=CLOSE_S_MAX)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()
        while self._outdated:
            await self._outdated.pop().aclose()

    def detach_idle(self) -> httpx.AsyncClient | None:
        """Releases the connections if no request uses them; the caller closes the returned ones."""
        if self._running:
            return None
        http, self._http = self._http, None
        return http

    async def get(self, path: str, **query: str) -> Any:
        """Reads a document; None if the answer has no body. Raises NotFound."""
        return await self.call("GET", path, query=query)

    async def find(self, path: str, **query: str) -> Any:
        """Reads a document; None if it does not exist."""
        try:
            return await self.get(path, **query)
        except NotFound:
            return None

    async def call(
        self, method: str, path: str, body: object = ..., query: Mapping[str, str] | None = None
    ) -> Any:
        """Completes one request. Raises Unreachable or Refused."""
        if self._monotonic() < self._down_until:
            raise Unreachable(self._down_reason)
        content = b"" if body is ... else msgspec.json.encode(body)
        request = self._complete(method, path, content, query or {})
        task = asyncio.get_running_loop().create_task(request, name=f"{method} {self.url}{path}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieves the exception: the caller may have been cancelled

    async def _complete(
        self, method: str, path: str, content: bytes, query: Mapping[str, str]
    ) -> Any:
        request = f"{method} {path}"
        try:
            async with asyncio.timeout(REQUEST_S_MAX), self._slots:
                answer = await self._retry(method, path, content, query)
        except TimeoutError as error:
            raise self._down(f"{self.url} did not answer {request} in time") from error
        return _read(answer, request)

    async def _retry(
        self, method: str, path: str, content: bytes, query: Mapping[str, str]
    ) -> httpx.Response:
        backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S, random)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            is_last = attempt == ATTEMPTS_MAX
            try:
                answer = await self._attempt(method, path, content, query)
            except httpx.HTTPError as error:
                if is_last:
                    text = str(error) or type(error).__name__
                    raise self._down(f"{self.url} cannot be reached: {text}") from error
            else:
                if answer.status_code < _SERVER_ERROR:
                    return answer
                if is_last:
                    text = _reason(answer)
                    raise Unreachable(
                        f"{self.url} failed with {answer.status_code} at {method} {path}: {text}"
                    )
            await asyncio.sleep(backoff.failed_s())
        raise AssertionError("unreachable")

    async def _attempt(
        self, method: str, path: str, content: bytes, query: Mapping[str, str]
    ) -> httpx.Response:
        access = OPEN if self._access is None else await self._access()
        http = await self._connected(access)
        headers = {"content-type": "application/json"} if content else {}
        url, parameters = httpx.URL(f"{self.url}{path}"), dict(query) or None
        for _ in range(REDIRECTS_MAX):
            self.requests[method] += 1
            sent = headers | (access.headers(str(url)) if url.scheme == self._scheme else {})
            answer = await http.request(
                method, url, content=content, headers=sent, params=parameters
            )
            if answer.status_code != _REDIRECT:
                return answer
            # The redirect's address has the query already.
            url, parameters = url.join(answer.headers["location"]), None
        raise httpx.TooManyRedirects(f"more than {REDIRECTS_MAX} redirects", request=answer.request)

    @property
    def _scheme(self) -> str:
        return httpx.URL(self.url).scheme

    async def _connected(self, access: Access) -> httpx.AsyncClient:
        """The connections, opened again if the trusted authorities have changed."""
        if self._http is not None and access.trust != self._trust:
            outdated, self._http = self._http, None
            # Requests in progress keep their connections, and close them when they end.
            self._outdated.append(outdated)
        if self._http is None:
            self._trust = access.trust
            self._http = self._open(access)
        if self._outdated and len(self._running) <= 1:
            for http in self._outdated:
                await http.aclose()
            self._outdated.clear()
        return self._http

    def _open(self, access: Access = OPEN) -> httpx.AsyncClient:
        verify: ssl.SSLContext | bool = True
        if self._scheme == "https":
            try:
                verify = access.context()
            except ssl.SSLError as error:
                raise httpx.ConnectError(f"the trusted authorities are unusable: {error}") from None
        return httpx.AsyncClient(
            verify=verify,
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=AT_ONCE_MAX, keepalive_expiry=30.0),
            trust_env=False,
            transport=self._transport,
        )

    def _down(self, reason: str) -> Unreachable:
        self._down_until, self._down_reason = self._monotonic() + DOWN_S, reason
        return Unreachable(reason)


class Purpose(Enum):
    """The part of the operator that a client works for."""

    CLUSTERS = "clusters"
    CATALOG = "catalog"
    AUTOSCALING = "autoscaling"
    JOBS = "jobs"


class AdminClients:
    """The operator's clients of all clusters' admin REST, and the one owner of their connections.

    Each purpose has its own client per cluster, so that slow requests about topics delay no request
    about ledgers. `close` closes all connections; call it last.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM,
        transport: httpx.AsyncBaseTransport | None = None,
        access: AccessSource = no_access,
    ) -> None:
        """`transport` replaces the connections, for tests."""
        self._clock = clock
        self._transport = transport
        self._access = access
        self._clients: OrderedDict[tuple[str, Purpose, AccessKey | None], AdminClient] = (
            OrderedDict()
        )
        self._tasks = TaskSet("admin clients")

    def at(self, url: str, purpose: Purpose, access_key: AccessKey | None = None) -> AdminClient:
        """The client of a cluster, by the address of its admin REST; created on first use.

        It has the credentials of `access_key`; without it, none.
        """
        key = (url.rstrip("/"), purpose, access_key)
        client = self._clients.get(key)
        if client is None:
            access = None if access_key is None else partial(self._access, access_key)
            client = AdminClient(url, self._clock.monotonic, self._transport, access)
            self._clients[key] = client
        self._clients.move_to_end(key)
        self._limit_connected()
        return client

    def requests(self) -> dict[str, int]:
        """Requests that were sent to all clusters, by method."""
        total: Counter[str] = Counter()
        for client in self._clients.values():
            total.update(client.requests)
        return dict(total)

    async def close(self) -> None:
        """Waits for running requests and closes all connections."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))
        await self._tasks.stop()

    def _limit_connected(self) -> None:
        """Closes the connections of the least recently used idle clients beyond CONNECTED_MAX."""
        connected = [client for client in self._clients.values() if client.connected]
        for client in connected[: max(0, len(connected) - CONNECTED_MAX)]:
            http = client.detach_idle()
            if http is not None:
                self._tasks.start(http.aclose(), f"close {client.url}")


def _read(answer: httpx.Response, request: str) -> Any:
    status = answer.status_code
    if status < 300:
        if not answer.content:
            return None
        try:
            return msgspec.json.decode(answer.content)
        except msgspec.DecodeError as error:
            raise Refused(status, f"the answer is no JSON: {error}", request) from error
    reason = _reason(answer)
    if status == _NOT_FOUND:
        raise NotFound(status, reason, request)
    if status == _CONFLICT:
        raise Exists(status, reason, request)
    raise Refused(status, reason, request)


def _reason(answer: httpx.Response) -> str:
    """The reason in a refusal; Pulsar's form is `{"reason": …}`."""
    try:
        content = msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        content = None
    reason = content.get("reason") if isinstance(content, dict) else None
    text = str(reason or answer.text or answer.reason_phrase)
    return text[:REASON_CHARACTERS_MAX]
