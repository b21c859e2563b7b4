"""The interfaces of authentication: peers, credentials and identities."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.security.secret import Secret


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection."""

    address: str
    """Its IP address, without a port."""
    certificate: bytes | None = None
    """The client certificate (DER) that TLS verified; None without one."""


def always() -> bool:
    """`Identity.holds` of a proof that this process cannot revoke, such as a certificate."""
    return True


@dataclass(frozen=True, slots=True)
class Identity:
    """The proven identity of a peer."""

    role: str
    method: str
    """`token`, `basic`, `tls`, or `none` for the anonymous role."""
    expires_at_ms: int | None = None
    """Unix time in ms after which the proof is not valid; None if it does not expire."""
    holds: Callable[[], bool] = field(default=always, compare=False, repr=False)
    """Whether the key or password that proved it is still accepted. Needs no IO."""


class AuthenticationFailed(Exception):
    """The credentials prove no identity. The text is for the log: a client never sees it."""

    def __init__(self, text: str, cause: str = "") -> None:
        """`cause` is the text without what the client chose; the log has each cause once."""
        super().__init__(text)
        self.cause = cause or text


class ProviderUnavailable(Exception):
    """The identity provider does not answer: the client must retry (ServiceNotReady, 503)."""


class Authenticator(Protocol):
    """Authenticates peers. Safe for concurrent use, also while keys are reloaded."""

    async def authenticate(self, method: str, data: Secret, peer: Peer) -> Identity:
        """Returns the identity of the sender of CONNECT or AUTH_RESPONSE.

        `method` is the protocol's name, `none` if the client names none. Raises
        AuthenticationFailed or ProviderUnavailable.
        """

    def remembered(self, method: str, data: Secret) -> Identity | None:
        """Returns the identity of credentials that were accepted before, without a wait.

        None if `authenticate` must decide. Raises AuthenticationFailed.
        """

    async def authenticate_http(self, headers: Mapping[str, str], peer: Peer) -> Identity:
        """Returns the sender's identity by a request's (lower-case) headers; raises the same."""

    async def reload(self) -> int:
        """Reads keys and passwords again if their files changed; returns how often they did.

        After a change, `Identity.holds` of earlier identities may be False.
        """

    async def close(self) -> None:
        """Ends background work; idempotent."""
