"""Refuses requests that a proxy in front of the broker may read differently, with 400.

A proxy that forwards a request decides by what it read. If the broker reads another length, the end
of one client's body becomes the next request, which the proxy attributes to another client (RFC
9112 section 11.2). If it reads another role or other credentials, a client behind the proxy chooses
its role. So a request has one length, and one value of each header that names the sender; the same
value twice is harmless.
"""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from magnetar.admin.http.answers import reason

OF_THE_SENDER: Final = frozenset(
    {
        b"authorization",
        b"x-original-principal",
        b"x-pulsar-auth-method-name",
        b"x-magnetar-role",
        b"x-magnetar-original-principal",
    }
)
TWO_LENGTHS: Final = "The request has both Content-Length and Transfer-Encoding; send one of them"
OLD_CHUNKS: Final = "A request of HTTP/1.0 has no Transfer-Encoding; send a Content-Length"
TWO_VALUES: Final = "The header {} has two different values; send one of them"


class Unambiguous:
    """ASGI middleware before everything that reads headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (fault := _fault(scope)):
            # What follows on the connection may be the rest of this body.
            await reason(400, fault, {"connection": "close"})(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _fault(scope: Scope) -> str:
    """Returns why the request is ambiguous, "" if it is not."""
    seen: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if seen.setdefault(name, value) != value and name in OF_THE_SENDER:
            return TWO_VALUES.format(name.decode())
    if b"transfer-encoding" in seen:
        if b"content-length" in seen:
            return TWO_LENGTHS
        if scope.get("http_version") == "1.0":
            return OLD_CHUNKS
    return ""
