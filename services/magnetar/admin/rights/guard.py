"""Admits requests to the admin REST: authentication, then authorization, then the handler.

The guard decides before a body is read or an object is looked up, so that a refusal reveals nothing
about either. It refuses a request without valid credentials even if no route serves its path.
Routes that need no credentials are those that the table of rights marks as public.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from magnetar.admin.cluster.sender import LOCAL_HEADER, UNDER_HEADER
from magnetar.admin.http.answers import reason
from magnetar.admin.http.connection import PEER_CERTIFICATE
from magnetar.admin.http.limited import demand_rate
from magnetar.admin.http.routes import RouteMatch, RouteTable
from magnetar.admin.rights.audit_trail import note
from magnetar.admin.rights.caller import (
    CALLER,
    SCOPE_KEY,
    audited_action,
    demand,
    principal_in,
)
from magnetar.admin.rights.right import AnyRole, Public, Right
from magnetar.admin.rights.table import METRICS, RIGHTS
from magnetar.broker.rates.request_limit import RequestLimit
from magnetar.broker.security.broker_security import BrokerSecurity
from magnetar.broker.security.principal import Principal
from magnetar.core.addresses import network_of
from magnetar.core.errors import AuthorizationError, ServiceNotReady, TooManyRequests
from magnetar.core.log import get_logger
from magnetar.observe.audit import AuditRecord
from magnetar.security.api import (
    AuthenticationFailed,
    Identity,
    Peer,
    ProviderUnavailable,
)

ORIGINAL_PRINCIPAL: Final = "x-original-principal"
AUTHENTICATION_TIMEOUT_S: Final = 30.0
"""Longer than the timeouts of an identity provider: 10 s to connect and 10 s to answer."""
READS: Final = "GET"
CHECK_AGAIN_AFTER_S: Final = 1.0
"""If a body takes longer, the request is checked again before the handler gets its end."""
_CHALLENGE: Final = {"www-authenticate": "Bearer"}
_FORWARDER: Final = "magnetar.forwarder"
_OF_BROKERS: Final = frozenset({LOCAL_HEADER.encode(), UNDER_HEADER.encode()})
"""Headers that only other brokers may send."""

log = get_logger("magnetar.admin")


class Unauthenticated(Exception):
    """The request has no valid credentials."""


class GuardedTable(RouteTable):
    """A table of routes behind a guard."""

    def __init__(
        self, table: RouteTable, security: BrokerSecurity, limit: RequestLimit | None = None
    ) -> None:
        """`limit` is that of requests, None without one."""
        super().__init__(table.table)
        self._security = security
        self._limit = limit

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().app(scope, receive, send)
            return
        match = self.find(scope)
        try:
            caller = await self._admit(scope, match)
        except Unauthenticated:
            response = reason(401, "Authentication required", dict(_CHALLENGE))
            await response(scope, receive, send)
            return
        CALLER.set(caller)
        if caller is not None and match is not None and SCOPE_KEY not in scope:
            receive = self._checking_again(scope, match, caller, receive)
        await self.serve(match, scope, receive, send)

    def _checking_again(
        self, scope: Scope, match: RouteMatch, caller: Principal, receive: Receive
    ) -> Receive:
        """Returns `receive`, which checks credentials and rights again after a slow body.

        A handler acts when the body is complete, and the client chooses that moment.
        """
        loop = asyncio.get_running_loop()
        admitted_at = loop.time()

        async def receive_and_check() -> Message:
            message = await receive()
            complete = message["type"] == "http.request" and not message.get("more_body", False)
            if complete and loop.time() - admitted_at > CHECK_AGAIN_AFTER_S:
                try:
                    await self._identity(scope, Request(scope).headers)
                except Unauthenticated:
                    raise AuthorizationError("Authentication required", http_status=401) from None
                await self._demand(scope, match, caller)
            return message

        return receive_and_check

    async def _admit(self, scope: Scope, match: RouteMatch | None) -> Principal | None:
        """Returns the principal of an admitted request; None if it needs no credentials.

        Raises Unauthenticated, AuthorizationError, PreconditionFailed and ServiceNotReady.
        """
        right = self._right(match)
        if isinstance(right, Public):
            return None
        principal = await self._principal(scope)
        if right is None or match is None:
            return principal
        await self._demand(scope, match, principal)
        if SCOPE_KEY not in scope and (scope["method"] != READS or self._security.audit_reads):
            self._audit_admitted(scope, principal, scope.get(_FORWARDER, ""))
        return principal

    async def _demand(self, scope: Scope, match: RouteMatch, principal: Principal) -> None:
        """Raises AuthorizationError if the principal lacks the right that the route needs."""
        authorizer, right = self._security.authorizer, self._right(match)
        if authorizer is not None and right is not None:
            needs = right.needs(Request({**scope, **match.child_scope}))
            await demand(authorizer, principal, needs, _address(scope), audited_action(scope))

    def _audit_admitted(self, scope: Scope, principal: Principal, forwarder: str) -> None:
        """Writes an admitted request to the audit log."""
        if self._security.audit is not None:
            note(
                scope,
                AuditRecord(
                    action=audited_action(scope),
                    target="",
                    role=principal.role,
                    original=principal.original or "",
                    address=_address(scope),
                    allowed=True,
                    forwarder=forwarder,
                ),
            )

    def _refused(self, scope: Scope, reason: str, role: str = "", original: str = "") -> None:
        """Writes a request to the audit log whose credentials or roles are not valid."""
        if self._security.audit is not None:
            note(
                scope,
                AuditRecord(
                    action=audited_action(scope),
                    target="",
                    role=role,
                    original=original,
                    address=_address(scope),
                    allowed=False,
                    reason=reason,
                ),
            )

    def _right(self, match: RouteMatch | None) -> Right | None:
        """Returns the right that the route needs; None if no route serves the request."""
        if match is None or not match.full:
            return None
        (method,) = match.route.methods
        route = method, match.route.path
        if route == METRICS and self._security.authenticate_metrics:
            return AnyRole()
        return RIGHTS[route]

    async def _principal(self, scope: Scope) -> Principal:
        """Returns the principal of a request that needs credentials."""
        caller = scope.get(SCOPE_KEY)
        if caller is not None:
            assert isinstance(caller, Principal)  # noqa: S101 - set by on_behalf_of_caller only
            return caller
        headers = Request(scope).headers
        role = (await self._identity(scope, headers)).role
        original = headers.get(ORIGINAL_PRINCIPAL) or None
        try:
            forwarded = self._forwarded(role, original, headers, _address(scope))
            if forwarded is not None:
                scope[_FORWARDER] = role
                self._uncount(scope, role)
                return forwarded
            principal = self._through_proxy(role, original)
        except AuthorizationError as error:
            self._refused(scope, error.message, role, original or "")
            raise
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in _OF_BROKERS]
        try:
            demand_rate(self._limit, str(principal))
        except TooManyRequests as error:
            self._refused(scope, error.message, role, original or "")
            raise
        return principal

    def _uncount(self, scope: Scope, role: str) -> None:
        """Undoes the count of a request that a broker passed on: it was counted there.

        Without authorization, any role may claim to be a broker, so the claim changes nothing.
        """
        if self._security.authorizer is None:
            demand_rate(self._limit, role)
        elif self._limit is not None:
            self._limit.give_back(_address(scope))

    def _forwarded(
        self, role: str, original: str | None, headers: Mapping[str, str], address: str
    ) -> Principal | None:
        """Returns the principal that a broker acts for; None if the request names none.

        A proxy passes on headers that its clients send, so it is not a broker, even if its role is
        a super user: its client could name any role.
        """
        forwarded = principal_in(headers)
        if forwarded is None:
            return None
        authorizer = self._security.authorizer
        through_proxy = role in self._security.proxy_roles or original is not None
        trusted = authorizer is None or authorizer.is_super_user(Principal(role))
        if trusted and not through_proxy:
            # Without authorization no role is a broker's, and none has more rights.
            return forwarded
        if self._security.causes.is_new("acts for others", role):
            log.warning("not a broker: it may not act for other roles", role=role, peer=address)
        raise AuthorizationError("Only brokers act for other roles", http_status=401)

    def _through_proxy(self, role: str, original: str | None) -> Principal:
        """Returns the principal of a client, or of a proxy and its client."""
        proxies = self._security.proxy_roles
        if role in proxies:
            if original is None:
                raise AuthorizationError(
                    "Original principal cannot be empty if the request is via proxy.",
                    http_status=401,
                )
            if original in proxies:
                raise AuthorizationError(
                    "Original principal cannot be a proxy role", http_status=401
                )
            return Principal(role, original)
        if original is not None and original != role:
            raise AuthorizationError(
                "Original principal must be empty or the role itself, unless the request is via "
                "proxy.",
                http_status=401,
            )
        return Principal(role)

    async def _identity(self, scope: Scope, headers: Mapping[str, str]) -> Identity:
        peer = Peer(_address(scope), scope.get("state", {}).get(PEER_CERTIFICATE))
        counts = self._security.http_counts
        try:
            async with asyncio.timeout(AUTHENTICATION_TIMEOUT_S):
                identity = await self._security.authenticator.authenticate_http(headers, peer)
            if not identity.role:
                raise AuthenticationFailed("the credentials name no role")
        except AuthenticationFailed as error:
            counts.refused += 1
            self._refused(scope, "authentication failed")
            if self._security.causes.is_new("http", network_of(peer.address), error.cause):
                log.info("authentication failed", peer=peer.address, reason=str(error))
            raise Unauthenticated from None
        except (ProviderUnavailable, TimeoutError) as error:
            counts.unavailable += 1
            self._refused(scope, "the identity provider does not answer")
            if self._security.causes.is_new("http", str(error)):
                log.warning("authentication not possible", reason=str(error) or "no answer in time")
            raise ServiceNotReady("The identity provider is not available, retry") from None
        except Exception as error:  # noqa: BLE001 - its text may contain credentials
            counts.refused += 1
            self._refused(scope, "authentication failed")
            log.warning("authentication failed", peer=peer.address, error=type(error).__name__)
            raise Unauthenticated from None
        counts.accepted += 1
        return identity


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""
