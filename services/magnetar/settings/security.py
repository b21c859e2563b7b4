"""The settings of authentication and authorization, with Pulsar's keys.

Everything is off by default. Settings of authentication have an effect if `authentication_enabled`
is true, those of authorization if `authorization_enabled` is true. Keys and passwords are
`Secret`s: no log line or error shows them. A key is a `data:` or `file:` URL, a path, or base64;
files are read again when they change.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.security.discovery_mode import DiscoveryMode
from magnetar.security.secret import Secret
from magnetar.settings import choices
from magnetar.settings.field import UNLIMITED, setting

AUTHENTICATION: Final = "Authentication"
AUTHORIZATION: Final = "Authorization"
DAY_S: Final = 86_400


@dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """Authentication and authorization of a broker's clients."""

    authentication_enabled: bool = setting(
        False,
        "Whether clients must authenticate.",
        group=AUTHENTICATION,
        pulsar="authenticationEnabled",
    )
    authentication_providers: tuple[str, ...] = setting(
        (),
        "The providers: `token`, `basic`, `tls`, `openid`, or the names of Pulsar's "
        "classes, separated by commas.",
        group=AUTHENTICATION,
        pulsar="authenticationProviders",
    )
    strict_auth_method: bool = setting(
        False,
        "Whether HTTP requests must name their method in X-Pulsar-Auth-Method-Name.",
        group=AUTHENTICATION,
        pulsar="strictAuthMethod",
    )
    auth_challenge_s: int = setting(
        60,
        "How long a client has to answer AUTH_CHALLENGE when its credentials expire (Pulsar: the "
        "interval of the check for expired ones).",
        group=AUTHENTICATION,
        unit="s",
        within=(1, 3_600),
        pulsar="authenticationRefreshCheckSeconds",
    )
    connections_per_role_max: int = setting(
        0,
        "Maximum number of client connections of one role, behind a proxy that of its client; 0 "
        "means no limit. Super users are not limited.",
        group=AUTHENTICATION,
        unit="connections",
        within=(0, UNLIMITED),
    )
    anonymous_role: str = setting(
        "",
        "The role of clients that present no credentials; empty: they are refused.",
        group=AUTHENTICATION,
        pulsar="anonymousUserRole",
    )
    role_log: choices.RoleLog = setting(
        "NONE",
        "How roles are written to logs: as they are, not at all, or hashed.",
        group=AUTHENTICATION,
        pulsar="authenticationRoleLoggingAnonymizer",
    )
    authenticate_original: bool = setting(
        False,
        "Whether the broker also verifies the credentials of clients behind a proxy.",
        group=AUTHENTICATION,
        pulsar="authenticateOriginalAuthData",
    )
    authenticate_metrics: bool = setting(
        False,
        "Whether /metrics requires credentials.",
        group=AUTHENTICATION,
        pulsar="authenticateMetricsEndpoint",
    )
    token_secret_key: Secret | None = setting(
        None,
        "The secret key that signs and verifies tokens (HS256, HS384, HS512).",
        group=AUTHENTICATION,
        pulsar="tokenSecretKey",
    )
    token_public_key: str = setting(
        "",
        "The public key, DER or PEM, that verifies tokens.",
        group=AUTHENTICATION,
        pulsar="tokenPublicKey",
    )
    token_public_algorithm: choices.PublicAlgorithm = setting(
        "RS256",
        "The algorithm of the public key; an RSA key accepts all RS and PS algorithms, an EC key "
        "that of its curve.",
        group=AUTHENTICATION,
        pulsar="tokenPublicAlg",
    )
    token_key_set: Secret | None = setting(
        None,
        "A JSON web key set of further keys, chosen by the `kid` of tokens.",
        group=AUTHENTICATION,
    )
    token_role_claim: str = setting(
        "sub",
        "The claim that is the role; of a list, the first element.",
        group=AUTHENTICATION,
        pulsar="tokenAuthClaim",
    )
    token_audience_claim: str = setting(
        "",
        "The claim that must name `token_audience`, such as `aud`; empty: not checked.",
        group=AUTHENTICATION,
        pulsar="tokenAudienceClaim",
    )
    token_audience: str = setting(
        "",
        "The audience of this cluster.",
        group=AUTHENTICATION,
        pulsar="tokenAudience",
    )
    token_clock_skew_s: int = setting(
        0,
        "By how much the issuer's clock may differ.",
        group=AUTHENTICATION,
        unit="s",
        within=(0, DAY_S),
        pulsar="tokenAllowedClockSkewSeconds",
    )
    basic_users: Secret | None = setting(
        None,
        "The htpasswd file of users and their hashed passwords.",
        group=AUTHENTICATION,
        pulsar="basicAuthConf",
    )
    openid_issuers: tuple[str, ...] = setting(
        (),
        "The URLs of the OpenID Connect issuers whose tokens are accepted.",
        group=AUTHENTICATION,
        pulsar="openIDAllowedTokenIssuers",
    )
    openid_audiences: tuple[str, ...] = setting(
        (),
        "The audiences of which a token of these issuers must name one.",
        group=AUTHENTICATION,
        pulsar="openIDAllowedAudiences",
    )
    openid_role_claim: str = setting(
        "sub",
        "The claim that is the role; of a list, the first element.",
        group=AUTHENTICATION,
        pulsar="openIDRoleClaim",
    )
    openid_leeway_s: int = setting(
        0,
        "By how much the issuer's clock may differ.",
        group=AUTHENTICATION,
        unit="s",
        within=(0, DAY_S),
        pulsar="openIDAcceptedTimeLeewaySeconds",
    )
    openid_issuers_cached: int = setting(
        5,
        "Maximum number of issuers whose keys are cached.",
        group=AUTHENTICATION,
        unit="issuers",
        within=(1, 1_000),
        pulsar="openIDCacheSize",
    )
    openid_refresh_s: int = setting(
        64_800,
        "Age after which an issuer's keys are fetched again, while the old ones stay in use.",
        group=AUTHENTICATION,
        unit="s",
        within=(1, 31_536_000),
        pulsar="openIDCacheRefreshAfterWriteSeconds",
    )
    openid_expiration_s: int = setting(
        DAY_S,
        "Age after which an issuer's keys are not used.",
        group=AUTHENTICATION,
        unit="s",
        within=(1, 31_536_000),
        pulsar="openIDCacheExpirationSeconds",
    )
    openid_unknown_key_s: int = setting(
        300,
        "Least time between two fetches because a token names a key that is not cached.",
        group=AUTHENTICATION,
        unit="s",
        within=(0, DAY_S),
        pulsar="openIDKeyIdCacheMissRefreshSeconds",
    )
    openid_connect_timeout_ms: int = setting(
        10_000,
        "How long connecting to an issuer may take.",
        group=AUTHENTICATION,
        unit="ms",
        within=(1, 600_000),
        pulsar="openIDHttpConnectionTimeoutMillis",
    )
    openid_read_timeout_ms: int = setting(
        10_000,
        "How long an issuer's answer may take.",
        group=AUTHENTICATION,
        unit="ms",
        within=(1, 600_000),
        pulsar="openIDHttpReadTimeoutMillis",
    )
    openid_trust_certs_file: str = setting(
        "",
        "The CA certificates (PEM) that verify issuers; empty: the machine's.",
        group=AUTHENTICATION,
        pulsar="openIDTokenIssuerTrustCertsFilePath",
    )
    openid_require_https: bool = setting(
        True,
        "Whether the URLs of issuers must be https.",
        group=AUTHENTICATION,
        pulsar="openIDRequireIssuersUseHttps",
    )
    openid_require_not_before: bool = setting(
        False,
        "Whether tokens must have `nbf`, as Pulsar requires; those of Dex and Keycloak have none.",
        group=AUTHENTICATION,
    )
    openid_discovery: DiscoveryMode = setting(
        "DISABLED",
        "Whether Kubernetes' service accounts are accepted: with the issuer that the API server "
        "names, and its keys or those of the API server.",
        group=AUTHENTICATION,
        pulsar="openIDFallbackDiscoveryMode",
    )
    authorization_enabled: bool = setting(
        False,
        "Whether requests and commands need rights.",
        group=AUTHORIZATION,
        pulsar="authorizationEnabled",
    )
    authorization_provider: choices.AuthorizationProvider = setting(
        "pulsar",
        "The rules of authorization.",
        group=AUTHORIZATION,
        pulsar="authorizationProvider",
        values={"org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider": "pulsar"},
    )
    authorization_wildcards: bool = setting(
        False,
        "Whether a `*` at the start or end of a granted role matches any text.",
        group=AUTHORIZATION,
        pulsar="authorizationAllowWildcardsMatching",
    )
    tenant_admins_update_tenants: bool = setting(
        False,
        "Whether admins of a tenant may change and delete it, as in Pulsar; else only super users "
        "may.",
        group=AUTHORIZATION,
    )
    superuser_roles: tuple[str, ...] = setting(
        (),
        "The roles that may do everything.",
        group=AUTHORIZATION,
        pulsar="superUserRoles",
    )
    observer_roles: tuple[str, ...] = setting(
        (),
        "The roles that may read statistics of all topics and the settings of brokers, and nothing "
        "else: those of jobs.",
        group=AUTHORIZATION,
    )
    proxy_roles: tuple[str, ...] = setting(
        (),
        "The roles of proxies, which act for the clients behind them.",
        group=AUTHORIZATION,
        pulsar="proxyRoles",
    )
    broker_client_auth_plugin: str = setting(
        "",
        "How this broker authenticates to other brokers: `token`, `basic`, `tls`, `oauth2`, or the "
        "name of Pulsar's class.",
        group=AUTHENTICATION,
        pulsar="brokerClientAuthenticationPlugin",
    )
    broker_client_auth_parameters: Secret | None = setting(
        None,
        "Its credentials, in the form of Pulsar's clients: `token:…`, `file:///…`, or JSON.",
        group=AUTHENTICATION,
        pulsar="brokerClientAuthenticationParameters",
    )
