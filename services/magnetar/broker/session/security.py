"""What the sessions of a broker with authentication share."""

from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.security.authorizer import Authorizer
from magnetar.core.causes import Causes
from magnetar.core.clock import Clock
from magnetar.security.api import Authenticator

CHALLENGE_ANSWER_S_DEFAULT: Final = 60.0


@dataclass(slots=True)
class ConnectCounts:
    """How many proofs of identity the broker accepted and refused since its start."""

    accepted: int = 0
    refused: int = 0
    unavailable: int = 0
    """Not decided, because the identity provider did not answer."""
    refreshed: int = 0
    expired: int = 0
    """Connections closed because their credentials had expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSecurity:
    """How a broker's sessions authenticate clients and decide what they may do."""

    authenticator: Authenticator
    authorizer: Authorizer | None
    """None while authorization is off: every authenticated role may do everything."""
    clock: Clock
    """The clock by which the authenticator sets expiries."""
    proxy_roles: frozenset[str] = frozenset()
    verify_original: bool = False
    """Whether the credentials that a proxy forwards are verified; else its word is taken."""
    challenge_answer_s: float = CHALLENGE_ANSWER_S_DEFAULT
    """How long a client may take to answer AUTH_CHALLENGE."""
    counts: ConnectCounts = field(default_factory=ConnectCounts)
    causes: Causes = field(default_factory=Causes)
    """The causes of refusals that were logged."""
