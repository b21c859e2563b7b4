"""The principal of a request, and how a broker forwards it to other brokers.

A forwarded request acts for the client that sent it, never for the broker that forwards it.
Requests to this broker itself carry the principal in the ASGI scope, which no client can set.
Requests to others carry the broker's own credentials and the principal in two headers. The receiver
accepts these headers from super users only, and then decides by the principal alone: a forwarded
request gets no right of a broker (CVE-2023-30428).
"""

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from magnetar.admin.rights.texts import refusal
from magnetar.broker.security.authorizer import Authorizer
from magnetar.broker.security.needs import Need, SuperUserNeed, TopicNeed, TopicOperation
from magnetar.broker.security.principal import Principal
from magnetar.broker.security.rules import SubscriptionPrefixRequired
from magnetar.core.errors import AuthorizationError
from magnetar.core.names import TopicName

ROLE_HEADER: Final = "x-magnetar-role"
ORIGINAL_HEADER: Final = "x-magnetar-original-principal"
SCOPE_KEY: Final = "magnetar.caller"
_SETTING: Final = "/admin/v2/brokers/configuration/"
"""Pulsar's tools append the name and the value of a setting, which may be a secret."""

CALLER: Final[ContextVar[Principal | None]] = ContextVar("caller", default=None)
"""The principal on whose behalf the current task runs; None while authentication is off."""


def headers_of(principal: Principal) -> dict[str, str]:
    """Returns the headers by which another broker learns the principal."""
    headers = {ROLE_HEADER: quote(principal.role, safe="")}
    if principal.original is not None:
        headers[ORIGINAL_HEADER] = quote(principal.original, safe="")
    return headers


def principal_in(headers: Mapping[str, str]) -> Principal | None:
    """Returns the principal that another broker names; None if the headers are absent."""
    role = headers.get(ROLE_HEADER)
    if not role:
        return None
    original = headers.get(ORIGINAL_HEADER)
    return Principal(unquote(role), None if original is None else unquote(original))


def audited_action(scope: Scope) -> str:
    """Returns the request for the audit log: without its query, or the value of a setting."""
    path: str = scope["path"]
    if path.startswith(_SETTING):
        name = path.removeprefix(_SETTING).partition("/")[0]
        path = f"{_SETTING}{name}"
    return f"{scope['method']} {path}"


def on_behalf_of_caller(app: ASGIApp) -> ASGIApp:
    """Returns the application for requests of this broker to itself, for the current principal."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        caller = CALLER.get()
        if caller is not None:
            scope = {**scope, SCOPE_KEY: caller}
        await app(scope, receive, send)

    return call


async def demand(
    authorizer: Authorizer,
    principal: Principal,
    needs: Iterable[Need],
    address: str,
    action: str,
) -> None:
    """Raises AuthorizationError, with Pulsar's text, for the first need that is not permitted."""
    for need in needs:
        try:
            if await authorizer.allowed(principal, need):
                continue
            error = refusal(principal, need)
        except SubscriptionPrefixRequired as required:
            error = required
        authorizer.denials.record(principal, need, address, action, error.http_status)
        raise error


class CallerRights:
    """The rights of a request's principal, for work that continues after the request."""

    def __init__(
        self,
        authorizer: Authorizer,
        principal: Principal,
        request: Request,
        source: Need,
    ) -> None:
        """`source` is the need of what is read."""
        self._authorizer = authorizer
        self._principal = principal
        self._address = request.client.host if request.client else ""
        self._action = audited_action(request.scope)
        self._source = source

    async def check_source(self) -> None:
        """Raises AuthorizationError if the principal may no longer read."""
        await self._demand(self._source)

    async def check_target(self, target: TopicName) -> None:
        """Raises AuthorizationError if the principal may not produce to a topic."""
        await self._demand(TopicNeed(target, TopicOperation.PRODUCE))

    async def produce(self, target: TopicName) -> bool:
        """Whether the principal may produce to a topic."""
        return await self._authorizer.allowed(
            self._principal, TopicNeed(target, TopicOperation.PRODUCE)
        )

    async def _demand(self, need: Need) -> None:
        await demand(self._authorizer, self._principal, (need,), self._address, self._action)


def rights_of_caller(request: Request, source: TopicName, subscription: str) -> CallerRights | None:
    """Returns the rights of the request's principal on a subscription; None without authorization.

    The guard has checked that it may consume.
    """
    authorizer: Authorizer | None = request.app.state.authorizer
    if authorizer is None:
        return None
    principal = CALLER.get()
    if principal is None:
        raise AuthorizationError("Authentication required", http_status=401)
    need = TopicNeed(source, TopicOperation.CONSUME, subscription)
    return CallerRights(authorizer, principal, request, need)


async def require_owner(request: Request, owner: str | None) -> None:
    """Raises AuthorizationError unless the request's principal is this role or a super user.

    A client behind a proxy is its own role, not that of the proxy.
    """
    principal = CALLER.get()
    if owner is None or principal is None or (principal.original or principal.role) != owner:
        await require(request, SuperUserNeed())


async def require(request: Request, need: Need) -> None:
    """Raises AuthorizationError if the request's principal lacks a right that its body names.

    The guard admits such requests of any role.
    """
    authorizer: Authorizer | None = request.app.state.authorizer
    if authorizer is None:
        return
    principal = CALLER.get()
    if principal is None:
        raise AuthorizationError("Authentication required", http_status=401)
    address = request.client.host if request.client else ""
    action = audited_action(request.scope)
    await demand(authorizer, principal, (need,), address, action)
