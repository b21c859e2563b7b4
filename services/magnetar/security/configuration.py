"""The configuration of authentication: the providers and their parameters. No IO.

`magnetar.settings.security` builds these values from Pulsar's keys;
`magnetar.security.authenticator` opens the providers that they describe. Keys and passwords are
`Secret`s, so printing a configuration shows none.
"""

from dataclasses import dataclass

from magnetar.security.discovery_mode import DiscoveryMode
from magnetar.security.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProviderConfig:
    """JSON web tokens (JWT) signed by keys that this process has."""

    secret_key: Secret | None = None
    """The source of the HMAC key (`magnetar.security.source`); raw bytes."""
    public_key: str = ""
    """The source of the RSA or EC public key; DER or PEM."""
    public_algorithm: str = "RS256"
    key_set: Secret | None = None
    """The source of a JSON web key set (RFC 7517): keys chosen by the token's `kid`."""
    role_claim: str = "sub"
    audience_claim: str = ""
    audience: str = ""
    clock_skew_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicProviderConfig:
    """User names and passwords of an htpasswd file."""

    users: Secret
    """The source of the file (`magnetar.security.source`)."""


@dataclass(frozen=True, slots=True)
class TlsProviderConfig:
    """The common name of a client certificate that TLS verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIdProviderConfig:
    """JSON web tokens signed by the keys that OpenID Connect issuers publish."""

    allowed_issuers: tuple[str, ...]
    allowed_audiences: tuple[str, ...]
    role_claim: str = "sub"
    leeway_s: int = 0
    issuers_cached_max: int = 5
    refresh_after_s: int = 64_800
    expire_after_s: int = 86_400
    unknown_key_refresh_s: int = 300
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 10_000
    trust_certs_file: str = ""
    """CA certificates (PEM) that verify issuers; empty: the machine's."""
    require_https: bool = True
    require_not_before: bool = False
    """Whether a token must have `nbf`. Pulsar requires it; OpenID Connect does not."""
    fallback_discovery_mode: DiscoveryMode = "DISABLED"


ProviderConfig = (
    TokenProviderConfig | BasicProviderConfig | TlsProviderConfig | OpenIdProviderConfig
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """Authentication that is switched on."""

    providers: tuple[ProviderConfig, ...]
    """The providers, in the order in which requests that name no method try them."""
    anonymous_role: str = ""
    """The role of peers whose method has no provider; empty: they are refused."""
    strict_method: bool = False
    """Whether an HTTP request must name its method in X-Pulsar-Auth-Method-Name."""
