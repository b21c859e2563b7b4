"""The brokers of a cluster: finds owners, redirects to them, and requests many of them at once.

The owner of a topic or bundle serves requests about it. Another broker redirects to the owner (307)
with `authoritative=true`, as Pulsar does. For a request about several topics or bundles, the broker
that received it sends a request to each owner and merges the answers.

A broker never passes on a request with `authoritative=true`. It serves the request, for which it
claims a bundle without an owner, or it refuses the request with 503.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from magnetar.admin.cluster.routing import Peer, Routing
from magnetar.admin.cluster.sender import (
    AUTHORITATIVE,
    LOCAL_HEADER,
    PeerAnswer,
    PeerRequest,
    Sender,
    authoritative,
    forwarded,
    query_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.routes import Handler
from magnetar.core.backoff import backoff_s
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName
from magnetar.security.credentials import Credentials
from magnetar.security.tls.reload import ClientTls

TRIES_MAX: Final = 4
RETRY_S: Final = 0.25
RETRY_S_MAX: Final = 1.0
FAN_OUT_TIMEOUT_S: Final = 60.0
TEMPORARY: Final = frozenset({307, 502, 503, 504})


class Peers:
    """Reaches the brokers of a cluster for the requests of one application."""

    def __init__(
        self,
        routing: Routing,
        app: ASGIApp,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """With `tls`, requests to other brokers are encrypted."""
        self.routing = routing
        self._sender = Sender(app, credentials, tls)

    async def close(self) -> None:
        await self._sender.close()

    async def at_topic_owner(self, name: TopicName, request: Request, handler: Handler) -> Response:
        """Serves a request about a topic, or redirects it to the owner."""
        claim = bodies.flag(request, AUTHORITATIVE)
        return await self._at(await self.routing.owner(name, claim=claim), request, handler)

    async def at_bundle_owner(self, bundle: str, request: Request, handler: Handler) -> Response:
        """Serves a request about a bundle, or redirects it; claims a bundle without an owner."""
        owner = await self.routing.bundle_owner(bundle, claim=True)
        if owner is None:
            raise ServiceNotReady(f"Bundle {bundle} has no owner now, please retry")
        return await self._at(owner, request, handler)

    async def at_bundle_owner_if_any(
        self, bundle: str, request: Request, handler: Handler, unowned: Response
    ) -> Response:
        """Serves a request about a bundle, or redirects it; `unowned` answers without an owner."""
        owner = await self.routing.bundle_owner(bundle, claim=False)
        return unowned if owner is None else await self._at(owner, request, handler)

    async def _at(self, owner: Peer, request: Request, handler: Handler) -> Response:
        return await handler(request) if owner.local else self.redirect(owner, request)

    def redirect(self, owner: Peer, request: Request) -> Response:
        """Redirects to the owner; raises 503 if the request was redirected here already."""
        if bodies.flag(request, AUTHORITATIVE):
            raise ServiceNotReady(
                f"This request was sent here to be served, but {owner.broker_id} serves it now; "
                "please retry"
            )
        # A client that came by TLS stays on it, as in Pulsar.
        address = owner.url(secure=request.url.scheme == "https")
        url = f"{address}{request.scope['path']}?{authoritative(query_of(request))}"
        return Response(status_code=307, headers={"location": url})

    async def _send_to_owner(
        self, find: Callable[[], Awaitable[Peer | None]], request: PeerRequest
    ) -> PeerAnswer | None:
        """Sends a request to the owner; None if there is no owner.

        The owner may change meanwhile, so temporary failures are retried up to TRIES_MAX times.
        """
        for attempt in range(TRIES_MAX):
            last = attempt == TRIES_MAX - 1
            try:
                owner = await find()
                if owner is None:
                    return None
                answer = await self._sender.send(owner, request)
            except ServiceNotReady:
                if last:
                    raise
            else:
                if last or answer.status not in TEMPORARY:
                    return answer
            await asyncio.sleep(backoff_s(attempt + 1, RETRY_S, RETRY_S_MAX, random))
        raise AssertionError  # the last attempt returns or raises

    async def request_topic(
        self,
        name: TopicName,
        method: str,
        suffix: str = "",
        *,
        query: str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> PeerAnswer:
        """Sends a request about a topic to its owner; `suffix` follows the topic's name."""
        request = PeerRequest(
            method, topic_path(name) + suffix, authoritative(query), body, headers, str(name)
        )
        answer = await self._send_to_owner(lambda: self.routing.owner(name, claim=False), request)
        assert answer is not None  # noqa: S101 - an owner is chosen for a topic without one
        return answer

    async def request_owner(self, name: TopicName, path: str) -> PeerAnswer:
        """Sends a GET of a path that is about a topic to the topic's owner."""
        request = PeerRequest("GET", path, authoritative(""), subject=str(name))
        answer = await self._send_to_owner(lambda: self.routing.owner(name, claim=False), request)
        assert answer is not None  # noqa: S101 - an owner is chosen for a topic without one
        return answer

    async def request_bundle(
        self, bundle: str, method: str, path: str, *, claim: bool, query: str = ""
    ) -> PeerAnswer | None:
        """Sends a request about a bundle to its owner; None without `claim` if it has none."""
        request = PeerRequest(method, path, authoritative(query), subject=bundle)
        return await self._send_to_owner(
            lambda: self.routing.bundle_owner(bundle, claim=claim), request
        )

    async def repeat_for_topics(
        self, request: Request, names: Iterable[TopicName]
    ) -> list[PeerAnswer]:
        """Repeats a request for each of the topics; returns the answers in the same order."""
        suffix = topic_suffix(request)
        body = await request.body()
        headers, query = forwarded(request), query_of(request)
        return await gather_answers(
            [
                self.request_topic(
                    name, request.method, suffix, query=query, body=body, headers=headers
                )
                for name in names
            ]
        )

    async def request_brokers(self, request: Request, path: str, query: str) -> list[PeerAnswer]:
        """Sends a GET to every other broker, which answers about its own data only."""
        headers = forwarded(request) | {LOCAL_HEADER: "1"}
        query = authoritative(query)
        return await gather_answers(
            [
                self._sender.send(peer, PeerRequest("GET", path, query, headers=headers))
                for peer in self.routing.brokers()
                if not peer.local
            ]
        )


def is_from_peer(request: Request) -> bool:
    """Whether a peer sent the request, which then covers only this broker's own data."""
    return LOCAL_HEADER in request.headers


async def gather_answers(requests: Sequence[Awaitable[PeerAnswer]]) -> list[PeerAnswer]:
    """Returns all answers in order, or raises the first error; every request ends before that."""
    async with asyncio.timeout(FAN_OUT_TIMEOUT_S):
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
    answers: list[PeerAnswer] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        answers.append(outcome)
    return answers


def topic_path(name: TopicName) -> str:
    """Returns the topic's path in the admin REST."""
    return f"/admin/v2/{name.domain}/{name.tenant}/{name.namespace_local}/{name.encoded_local}"


_TOPIC_SEGMENTS: Final = 7
"""Segments of `/admin/v2/domain/tenant/namespace/topic`, with the empty one before it."""


def topic_suffix(request: Request) -> str:
    """Returns the rest of the request's path after the topic's name, still encoded."""
    path: str = request.scope["path"]
    rest = path.split("/", _TOPIC_SEGMENTS)[_TOPIC_SEGMENTS:]
    return "/" + rest[0] if rest else ""
