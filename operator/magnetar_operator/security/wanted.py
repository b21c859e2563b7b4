"""The Secrets that a secured cluster needs: names, subjects, lifetimes. Pure: no IO.

Names are those of Pulsar's chart: `NAME-ca-tls`, `NAME-tls-broker`, `NAME-token-asymmetric-key`,
`NAME-token-ROLE`.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar_operator.security.x509 import KeyKind, Names

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
TRUST: Final = "ca.crt"
"""In every Secret with a certificate: all authorities that are trusted now."""
NEXT_CERTIFICATE: Final = "next.crt"
NEXT_KEY: Final = "next.key"
PREVIOUS_CERTIFICATE: Final = "previous.crt"

PRIVATE_KEY: Final = "PRIVATEKEY"
PUBLIC_KEY: Final = "PUBLICKEY"
SECRET_KEY: Final = "SECRETKEY"  # noqa: S105  the name of a field
KEY_SET: Final = "JWKS"
"""All token keys that are trusted now, as a JSON web key set."""
NEXT_TOKEN_KEY: Final = "NEXTKEY"  # noqa: S105  the name of a field
TOKEN: Final = "TOKEN"  # noqa: S105  the name of a field

ROTATE: Final = "magnetar.io/rotate"
"""The annotation of a Secret that requests a new certificate, key or token."""
ANNOUNCED_AT: Final = "magnetar.io/announced-at"
PROMOTED_AT: Final = "magnetar.io/promoted-at"


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long something is valid, and when it is replaced."""

    duration: datetime.timedelta
    renew_before: datetime.timedelta


@dataclass(frozen=True, slots=True)
class Leaf:
    """A component's certificate and the Secret that has it."""

    secret: str
    names: Names


@dataclass(frozen=True, slots=True)
class Certificates:
    """The authority and certificates of a cluster."""

    authority: str
    """The Secret of the authority. No pod mounts it."""
    authority_lifetime: Lifetime
    leaves: tuple[Leaf, ...]
    lifetime: Lifetime
    key_kind: KeyKind
    settle: datetime.timedelta


@dataclass(frozen=True, slots=True)
class Tokens:
    """The signing key and tokens of a cluster."""

    key: str
    """The Secret of the signing key."""
    symmetric: bool
    roles: Mapping[str, str]
    """The Secret of each role's token."""
    lifetime: Lifetime
    settle: datetime.timedelta


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything that is issued for one cluster."""

    cluster: str
    namespace: str
    certificates: Certificates | None = None
    tokens: Tokens | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, Any] | None = None
    """The owner reference of the Secrets; None: they outlive everything."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of all Secrets, for reads and for rights."""
        names: list[str] = []
        if self.certificates is not None:
            names += [self.certificates.authority]
            names += [leaf.secret for leaf in self.certificates.leaves]
        if self.tokens is not None:
            names += [self.tokens.key, *self.tokens.roles.values()]
        return tuple(dict.fromkeys(names))
