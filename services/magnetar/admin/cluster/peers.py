"""The brokers of a cluster as one: finds who serves what, sends on, and asks many at once.

A request about a topic or a bundle is served by its owner: another broker redirects to it (307),
with `authoritative=true`, as Pulsar does. What is about many of them is asked of each owner by the
broker that took the request, which puts the answers together.

A request that says `authoritative` is never sent on: it is served, for which the bundle is claimed
where nobody owns it, or refused with 503.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from magnetar.admin import bodies
from magnetar.admin.cluster.routing import Peer, Routing
from magnetar.admin.cluster.sending import (
    AUTHORITATIVE,
    LOCAL_HEADER,
    Answer,
    Sender,
    Sent,
    authoritative,
    forwarded,
    query_of,
)
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.names import TopicName

Handler = Callable[[Request], Awaitable[Response]]

TRIES_MAX: Final = 4
RETRY_S: Final = 0.25
FAN_OUT_TIMEOUT_S: Final = 60.0
TEMPORARY: Final = frozenset({307, 502, 503, 504})


class Peers:
    """See the module's text. One per application."""

    def __init__(self, routing: Routing, app: ASGIApp) -> None:
        self.routing = routing
        self._sender = Sender(app)

    async def close(self) -> None:
        await self._sender.close()

    # -- one owner

    async def at_topic_owner(self, name: TopicName, request: Request, handler: Handler) -> Response:
        """Serves a request about a topic, or redirects it."""
        claim = bodies.flag(request, AUTHORITATIVE)
        return await self._at(await self.routing.owner(name, claim=claim), request, handler)

    async def at_bundle_owner(self, bundle: str, request: Request, handler: Handler) -> Response:
        """The same for a bundle, which this broker takes where nobody has it."""
        owner = await self.routing.bundle_owner(bundle, take=True)
        if owner is None:
            raise ServiceNotReady(f"Bundle {bundle} has no owner now, please retry")
        return await self._at(owner, request, handler)

    async def at_bundle_owner_if_any(
        self, bundle: str, request: Request, handler: Handler, nobody: Response
    ) -> Response:
        """The same where a bundle that nobody has needs nothing: `nobody` is the answer then."""
        owner = await self.routing.bundle_owner(bundle, take=False)
        return nobody if owner is None else await self._at(owner, request, handler)

    async def _at(self, owner: Peer, request: Request, handler: Handler) -> Response:
        return await handler(request) if owner.here else self.redirect(owner, request)

    def redirect(self, owner: Peer, request: Request) -> Response:
        """To the owner; 503 for a request that was redirected here already."""
        if bodies.flag(request, AUTHORITATIVE):
            raise ServiceNotReady(
                f"This request was sent here to be served, but {owner.broker_id} serves it now; "
                "please retry"
            )
        url = f"{owner.http_url}{request.scope['path']}?{authoritative(query_of(request))}"
        return Response(status_code=307, headers={"location": url})

    # -- many

    async def _ask(self, find: Callable[[], Awaitable[Peer | None]], sent: Sent) -> Answer | None:
        """Asks the owner, who may change meanwhile: a few times over. None where nobody owns it."""
        for attempt in range(TRIES_MAX):
            last = attempt == TRIES_MAX - 1
            try:
                owner = await find()
                if owner is None:
                    return None
                answer = await self._sender.send(owner, sent)
            except ServiceNotReady:
                if last:
                    raise
            else:
                if last or answer.status not in TEMPORARY:
                    return answer
            await asyncio.sleep(RETRY_S * (attempt + 1))
        raise AssertionError  # the last attempt returns or raises

    async def ask_topic(
        self,
        name: TopicName,
        method: str,
        suffix: str = "",
        *,
        query: str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request about one topic, at its owner; `suffix` is what follows its name."""
        sent = Sent(
            method, topic_path(name) + suffix, authoritative(query), body, headers, str(name)
        )
        answer = await self._ask(lambda: self.routing.owner(name, claim=False), sent)
        assert answer is not None  # noqa: S101 - a topic's owner is chosen where there is none
        return answer

    async def ask_bundle(
        self, bundle: str, method: str, path: str, *, take: bool, query: str = ""
    ) -> Answer | None:
        """One request about one bundle, at its owner; None where nobody has it, without `take`."""
        sent = Sent(method, path, authoritative(query), about=bundle)
        return await self._ask(lambda: self.routing.bundle_owner(bundle, take=take), sent)

    async def same_of_topics(self, request: Request, names: Iterable[TopicName]) -> list[Answer]:
        """This very request, about each of the topics instead, in their order."""
        suffix = topic_suffix(request)
        body = await request.body()
        headers, query = forwarded(request), query_of(request)
        return await together(
            [
                self.ask_topic(
                    name, request.method, suffix, query=query, body=body, headers=headers
                )
                for name in names
            ]
        )

    async def ask_all(self, request: Request, path: str, query: str) -> list[Answer]:
        """A GET of every other broker, about what it holds itself, on behalf of the request."""
        headers = forwarded(request) | {LOCAL_HEADER: "1"}
        query = authoritative(query)
        return await together(
            [
                self._sender.send(peer, Sent("GET", path, query, headers=headers))
                for peer in self.routing.brokers()
                if not peer.here
            ]
        )


def asked_by_peer(request: Request) -> bool:
    """Whether only what this broker holds itself is asked for."""
    return LOCAL_HEADER in request.headers


async def together(asking: Sequence[Awaitable[Answer]]) -> list[Answer]:
    """All answers, in order; the first error, once all others have ended."""
    async with asyncio.timeout(FAN_OUT_TIMEOUT_S):
        found = await asyncio.gather(*asking, return_exceptions=True)
    answers: list[Answer] = []
    for each in found:
        if isinstance(each, MagnetarError):
            raise each
        if isinstance(each, BaseException):
            raise each
        answers.append(each)
    return answers


def topic_path(name: TopicName) -> str:
    return f"/admin/v2/{name.domain}/{name.tenant}/{name.namespace_local}/{name.encoded_local}"


_TOPIC_SEGMENTS: Final = 7
"""`/admin/v2/domain/tenant/namespace/topic`, with what is before the first slash."""


def topic_suffix(request: Request) -> str:
    """What follows the topic's name in the request's path, still encoded."""
    path: str = request.scope["path"]
    rest = path.split("/", _TOPIC_SEGMENTS)[_TOPIC_SEGMENTS:]
    return "/" + rest[0] if rest else ""
