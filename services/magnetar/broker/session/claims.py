"""The identity that a client claims in CONNECT, and the rules for proxies. Pure: no IO.

A proxy connects with its own credentials and names its client's role (`original_principal`),
perhaps with the client's credentials (`original_auth_data`). Texts are Pulsar's.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.security.api import Identity
from magnetar.security.secret import Secret
from magnetar.wire._pb import PulsarApi_pb2 as pb

NO_METHOD: Final = "none"
_METHOD_PREFIX: Final = "AuthMethod"

INVALID_ROLES: Final = "Invalid roles."
PROXY_VERSION_WITHOUT_ROLE: Final = "Must not set proxyVersion without connecting as a ProxyRole."

NO_REFRESH: Final = "the client does not support the refresh of credentials"
PROXY_EXPIRED: Final = "the proxy's own credentials have expired, and only its client can be asked"


@dataclass(frozen=True, slots=True)
class Claims:
    """The credentials and roles in one CONNECT."""

    method: str
    data: Secret
    original_role: str | None
    """The role of a proxy's client, as the proxy names it; None without one."""
    original_method: str
    original_data: Secret | None
    proxy_version: bool
    """Whether the client calls itself a proxy."""
    refreshes: bool
    """Whether the client answers AUTH_CHALLENGE with new credentials."""


def claims_of(command: pb.CommandConnect) -> Claims:
    """Returns the claims of a CONNECT; old clients name the method by its number."""
    if command.HasField("auth_method_name"):
        method = command.auth_method_name
    elif command.HasField("auth_method"):
        name = pb.AuthMethod.Name(command.auth_method)
        method = name.removeprefix(_METHOD_PREFIX).lower()
    else:
        method = NO_METHOD
    original = command.original_principal
    original_data = None
    if command.HasField("original_auth_data"):
        original_data = Secret(command.original_auth_data)
    return Claims(
        method=method,
        data=Secret(command.auth_data),
        original_role=original if original.strip() else None,
        original_method=command.original_auth_method or NO_METHOD,
        original_data=original_data,
        proxy_version=command.HasField("proxy_version"),
        refreshes=command.feature_flags.supports_auth_refresh,
    )


def roles_fault(
    role: str, original: str | None, proxy_roles: frozenset[str], *, proxy_version: bool
) -> str | None:
    """Returns why a connection with these roles is refused; None if they are valid.

    A proxy must name its client, which must not be a proxy; no other role may name one, else it
    could act on behalf of any role.
    """
    if role in proxy_roles:
        return INVALID_ROLES if original is None or original in proxy_roles else None
    if original is not None:
        return INVALID_ROLES
    return PROXY_VERSION_WITHOUT_ROLE if proxy_version else None


@dataclass(frozen=True, slots=True)
class Proof:
    """The identities that a connection has proven."""

    identity: Identity
    original: Identity | None
    """The verified identity of a proxy's client; None if it is not verified."""
    proxied: bool
    refreshes: bool

    @property
    def renewable(self) -> Identity:
        """The identity whose credentials the client can renew on the open connection."""
        return self.original or self.identity

    @property
    def identities(self) -> tuple[Identity, ...]:
        """All verified identities."""
        return (self.identity,) if self.original is None else (self.identity, self.original)

    @property
    def expires_at_ms(self) -> int | None:
        """When the first of the credentials expires; None if none does."""
        times_ms = [identity.expires_at_ms for identity in self.identities]
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)


def refusal_at(proof: Proof, now_ms: int) -> str | None:
    """Returns why a connection whose credentials expire now is closed; None: challenge it.

    A challenge passes through a proxy to its client, which knows only its own credentials. So if
    the proxy's expire, or if the client's were never verified, the connection ends: the proxy
    connects again with new ones.
    """
    if proof.proxied and _expired(proof.identity, now_ms):
        return PROXY_EXPIRED
    return None if proof.refreshes else NO_REFRESH


def _expired(identity: Identity, now_ms: int) -> bool:
    return identity.expires_at_ms is not None and identity.expires_at_ms <= now_ms
