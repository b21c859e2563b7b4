"""Refuses the requests of an address that sends too many, before anything is done for them."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from magnetar.admin.http.answers import reason
from magnetar.broker.rates.request_limit import RequestLimit
from magnetar.core.errors import TooManyRequests

PROBES: Final = frozenset({b"/healthz", b"/readyz"})
"""Paths without a limit: a flood must not make Kubernetes restart the broker."""
READS: Final = frozenset({"GET", "HEAD"})
TOO_MANY: Final = "Too many requests of this {} (httpRequestsMaxPerSecond), please retry"
RETRY_AFTER_S: Final = 1


class Limited:
    """ASGI middleware around the application, for the requests that arrive on the HTTP ports."""

    def __init__(self, app: ASGIApp, limit: RequestLimit) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_probe(scope):
            client = scope.get("client")
            if not self._limit.admits_address(client[0] if client else ""):
                headers = {"retry-after": str(RETRY_AFTER_S), "connection": "close"}
                await reason(429, TOO_MANY.format("address"), headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_probe(scope: Scope) -> bool:
    """Whether the router will answer a probe: another spelling or method needs credentials."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw in PROBES and scope["method"] in READS


def demand_rate(limit: RequestLimit | None, role: str) -> None:
    """Raises TooManyRequests if the role sends too many requests."""
    if limit is not None and not limit.admits_role(role):
        raise TooManyRequests(TOO_MANY.format("role"))
