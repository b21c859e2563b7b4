"""One connection's proof of identity: CONNECT, the challenge at expiry, and the principal.

    prove (CONNECT) --> CONNECTED ... credentials expire --> AUTH_CHALLENGE --> AUTH_RESPONSE
                    \\-> ERROR, closed                     \\-> closed        \\-> closed

A timer, not a periodic check, fires when the credentials expire. A connection is closed if its
client cannot answer the challenge, does not answer in time, or answers as another role. A client
never learns why its credentials are refused; the reason is in the log.

Source: Pulsar's ServerCnx. Unlike Pulsar, the broker closes a proxy's connection when the proxy's
own credentials expire, also if those of its client are verified (CVE-2023-31007).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.broker.security.broker_security import BrokerSecurity
from magnetar.broker.security.principal import Principal
from magnetar.broker.security.role_caps import ROLE_TEXT
from magnetar.broker.session.claims import Claims, Proof, claims_of, refusal_at, roles_fault
from magnetar.broker.session.link import SERVER_REQUEST_ID, Link
from magnetar.core.addresses import network_of
from magnetar.core.errors import ServerError
from magnetar.core.log import get_logger
from magnetar.observe.audit import AuditRecord
from magnetar.security.api import (
    AuthenticationFailed,
    Identity,
    Peer,
    ProviderUnavailable,
)
from magnetar.security.secret import Secret
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.framing import ProtocolError

log = get_logger("magnetar.authentication")

FAILED_TEXT: Final = "Failed to authenticate"
NOT_VERIFIED: Final = "the identity provider does not answer"
UNAVAILABLE_TEXT: Final = "The identity provider does not answer, please retry"
REFRESH_DATA: Final = b"PulsarAuthRefresh"
"""The challenge by which clients recognize a refresh; Java's compares the bytes."""
AUTHENTICATION_TIMEOUT_S: Final = 8.0
"""Less than `connection.CONNECT_TIMEOUT_S`, so that the client gets an answer."""
CHALLENGE_PAUSE_S: Final = 1.0
"""The least time between two challenges.

A client may renew with credentials that are valid only by the allowed clock skew.
"""
REVOKED: Final = "the key or password that proved the role is no longer accepted"
CLIENT_VERSION_LOGGED: Final = 64
"""Characters of a client's version in a log line; the client has not proven who it is."""
TIMER_S_MAX: Final = 3_600.0
"""A timer ends after this time at the latest and starts again: the wall clock may be set."""


class Access:
    """The authenticated identity of a connection."""

    __slots__ = (
        "_answer_timer",
        "_challenged",
        "_counted",
        "_ended",
        "_link",
        "_peer",
        "_proof",
        "_security",
        "_timer",
        "principal",
    )

    def __init__(self, link: Link, security: BrokerSecurity, peer: Peer) -> None:
        self._link = link
        self._security = security
        self._peer = peer
        self._proof: Proof | None = None
        self._challenged = False
        self._counted: str | None = None
        """The role that the connection counts for, while it is open."""
        self._ended = False
        """The connection is lost or about to be closed: a proof under way has no effect."""
        self._timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self.principal = Principal("")
        """The roles of the connection; valid once `prove` has returned True."""

    async def prove(self, command: pb.CommandConnect) -> bool:
        """Whether the client has proven its identity; if not, it got an error.

        Sends ERROR and closes the connection if the proof or the roles are not valid.
        """
        claims = claims_of(command)
        proof = await self._verified(lambda: self._prove(claims))
        if proof is None or self._ended:
            return False
        return self._accept(claims, proof)

    def prove_now(self, command: pb.CommandConnect) -> bool | None:
        """Like `prove`, if the credentials are remembered; None if `prove` must decide.

        Clients that reconnect then cost no task. The proof of a proxy is left to `prove`.
        """
        claims = claims_of(command)
        if claims.original_role is not None:
            return None
        try:
            identity = self._security.authenticator.remembered(claims.method, claims.data)
        except AuthenticationFailed:
            return None
        if identity is None or not identity.role:
            return None
        return self._accept(
            claims, Proof(identity, None, proxied=False, refreshes=claims.refreshes)
        )

    def _accept(self, claims: Claims, proof: Proof) -> bool:
        """Whether the roles of a proof are valid and its keys still accepted; if not, closes."""
        role = proof.identity.role
        original = proof.original.role if proof.original else claims.original_role
        security = self._security
        if security.authorizer is not None:
            fault = roles_fault(
                role, original, security.proxy_roles, proxy_version=claims.proxy_version
            )
            if fault is not None:
                self._log("roles refused", fault, role=role, original=original)
                self._refuse(ServerError.AUTHORIZATION_ERROR, fault)
                self._audit_proof(fault, role, original, allowed=False)
                return False
        self.principal = Principal(role, original)
        self._proof = proof
        if not self.check_holds() or not self._count():
            return False
        security.counts.accepted += 1
        self._audit_proof(allowed=True)
        self._watch(proof)
        return True

    def _count(self) -> bool:
        """Counts the connection for its client's role; if there are too many, refuses it.

        Super users are not counted: brokers connect to each other as such.
        """
        security, principal = self._security, self.principal
        if security.authorizer is not None and security.authorizer.is_super_user(principal):
            return True
        role = principal.original or principal.role
        if not security.role_caps.opened(role):
            self._audit_proof(ROLE_TEXT, allowed=False)
            self._log("connection refused", ROLE_TEXT, role=role)
            self._refuse(ServerError.NOT_ALLOWED_ERROR, ROLE_TEXT)
            return False
        self._counted = role
        return True

    def check_holds(self) -> bool:
        """Whether the proof is still accepted; if not, closes the connection.

        Without ERROR, as for a role that changed: the client reconnects with its new credentials.
        """
        proof = self._proof
        if proof is None or all(identity.holds() for identity in proof.identities):
            return True
        self._security.counts.revoked += 1
        self._audit_proof(REVOKED, allowed=False)
        principal = self.principal
        self._log("connection closed", REVOKED, role=principal.role, original=principal.original)
        self._end()
        return False

    def expect_response(self, command: pb.CommandAuthResponse) -> None:
        """Raises ProtocolError if AUTH_RESPONSE answers no challenge or lacks credentials."""
        if not self._challenged:
            raise ProtocolError("AUTH_RESPONSE without a challenge")
        response = command.response
        if not (response.HasField("auth_data") and response.HasField("auth_method_name")):
            raise ProtocolError("AUTH_RESPONSE without credentials")
        self._challenged = False

    async def renew(self, command: pb.CommandAuthResponse) -> None:
        """Verifies the answer to a challenge; closes the connection if it is not valid.

        The method is that of the connection: a client cannot change it by its answer.
        """
        former = self._proof
        if former is None:
            return
        data = Secret(command.response.auth_data)
        proof = await self._verified(lambda: self._renewed(former, data))
        if proof is None or self._ended:
            return
        if proof.renewable.role != former.renewable.role:
            # Without ERROR, as Pulsar: the client reconnects with its new identity.
            self._close_for("the role changed with the new credentials")
            return
        self._proof = proof
        self._cancel_timers()
        if self.check_holds():
            self._security.counts.refreshed += 1
            self._watch(proof, CHALLENGE_PAUSE_S)

    def closed(self) -> None:
        """Ends the timers of a lost connection. Idempotent."""
        self._ended = True
        self._cancel_timers()
        self._proof = None
        if self._counted is not None:
            self._security.role_caps.closed(self._counted)
            self._counted = None

    async def _prove(self, claims: Claims) -> Proof:
        authenticate = self._security.authenticator.authenticate
        identity = await authenticate(claims.method, claims.data, self._peer)
        original: Identity | None = None
        if claims.original_role is not None and self._security.verify_original:
            if claims.original_data is None:
                raise AuthenticationFailed("the proxy forwards no credentials of its client")
            # The certificate is the proxy's, so it proves nothing about the client.
            client = Peer(self._peer.address)
            original = await authenticate(claims.original_method, claims.original_data, client)
        return Proof(identity, original, claims.original_role is not None, claims.refreshes)

    async def _renewed(self, former: Proof, data: Secret) -> Proof:
        method = former.renewable.method
        peer = Peer(self._peer.address) if former.proxied else self._peer
        identity = await self._security.authenticator.authenticate(method, data, peer)
        if former.original is not None:
            return Proof(former.identity, identity, former.proxied, former.refreshes)
        return Proof(identity, None, former.proxied, former.refreshes)

    async def _verified(self, verify: Callable[[], Awaitable[Proof]]) -> Proof | None:
        """Returns the proof, or None after refusing the client."""
        counts = self._security.counts
        try:
            async with asyncio.timeout(AUTHENTICATION_TIMEOUT_S):
                proof = await verify()
            if not all(identity.role for identity in proof.identities):
                raise AuthenticationFailed("the credentials name no role")
        except AuthenticationFailed as error:
            counts.refused += 1
            self._audit_proof("authentication failed", allowed=False)
            self._log("authentication failed", str(error), cause=error.cause)
            self._refuse(ServerError.AUTHENTICATION_ERROR, FAILED_TEXT)
        except (ProviderUnavailable, TimeoutError) as error:
            # Clients retry this error, and give up after an AuthenticationError.
            counts.unavailable += 1
            self._audit_proof(NOT_VERIFIED, allowed=False)
            self._log("authentication not possible", str(error) or "no answer in time")
            self._refuse(ServerError.SERVICE_NOT_READY, UNAVAILABLE_TEXT)
        except Exception as error:  # noqa: BLE001 - its text may contain credentials
            counts.refused += 1
            self._audit_proof("authentication failed", allowed=False)
            self._log("authentication failed", f"internal error: {type(error).__name__}")
            self._refuse(ServerError.AUTHENTICATION_ERROR, FAILED_TEXT)
        else:
            return proof
        return None

    def _refuse(self, code: ServerError, text: str) -> None:
        self._link.error_code(SERVER_REQUEST_ID, code, text)
        self._end()

    def _close_for(self, reason: str) -> None:
        self._security.counts.expired += 1
        self._audit_proof(reason, allowed=False)
        principal = self.principal
        self._log("connection closed", reason, role=principal.role, original=principal.original)
        self._end()

    def _end(self) -> None:
        """Closes the connection, whose client may still read what was sent."""
        self.closed()
        self._link.close()

    def _audit_proof(
        self, reason: str = "", role: str = "", original: str | None = None, *, allowed: bool
    ) -> None:
        """Writes the outcome of a proof, or the end of a connection for it, to the audit log."""
        if (audit := self._security.audit) is not None:
            audit.record(
                AuditRecord(
                    action="CONNECT",
                    target="",
                    role=role or self.principal.role,
                    original=original or self.principal.original or "",
                    address=self._peer.address,
                    allowed=allowed,
                    reason=reason,
                )
            )

    def _log(self, event: str, reason: str, cause: str = "", **fields: str | None) -> None:
        """Logs a refusal, unless this address had one of the same cause lately."""
        if self._security.causes.is_new(network_of(self._peer.address), event, cause or reason):
            version = self._link.client_version[:CLIENT_VERSION_LOGGED]
            bound = log.bind(reason=reason, peer=self._link.address, client=version, **fields)
            bound.warning(event)

    # -- expiry

    def _watch(self, proof: Proof, delay_s_min: float = 0.0) -> None:
        """Starts the timer to the expiry of the credentials, if they expire."""
        if proof.expires_at_ms is None:
            return
        delay_s = (proof.expires_at_ms - self._security.clock.now_ms()) / 1000
        delay_s = min(max(delay_s, delay_s_min), TIMER_S_MAX)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._check_expiry)

    def _check_expiry(self) -> None:
        proof = self._proof
        if proof is None:
            return
        now_ms = self._security.clock.now_ms()
        if proof.expires_at_ms is not None and now_ms < proof.expires_at_ms:
            self._watch(proof)
        elif (reason := refusal_at(proof, now_ms)) is not None:
            self._close_for(reason)
        else:
            self._challenge(proof.renewable.method)

    def _challenge(self, method: str) -> None:
        self._challenged = True
        challenge = pb.CommandAuthChallenge(protocol_version=self._link.protocol_version)
        challenge.challenge.auth_method_name = method
        challenge.challenge.auth_data = REFRESH_DATA
        self._link.answer(CommandType.AUTH_CHALLENGE, challenge)
        self._answer_timer = asyncio.get_running_loop().call_later(
            self._security.challenge_answer_s,
            lambda: self._close_for("the client did not renew its expired credentials in time"),
        )

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._answer_timer = None
