"""Authenticates by JSON web tokens of OpenID Connect issuers: the method `token`.

The token's issuer must be allowed, or be that of this Kubernetes cluster; its key then comes from
that issuer and nowhere else. `iss`, `aud`, `iat`, `exp` and `sub` must be present, and `nbf` if
that is switched on; a key with an `alg` accepts only that. Sources: AuthenticationProviderOpenID
of Pulsar 4.2, OpenID Connect Core 1.0 section 3.1.3.7.

An issuer that does not answer is ProviderUnavailable: the client retries. That holds for tokens
that name this issuer only; others are refused without asking it.
"""

import os
from collections.abc import Mapping
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.tasks import TaskSet
from magnetar.security.api import AuthenticationFailed, Identity, Peer
from magnetar.security.configuration import OpenIdProviderConfig
from magnetar.security.errors import ConfigurationError
from magnetar.security.fetch import ProviderClient, checked_url, tls_context
from magnetar.security.openid.cache import CacheAges, KeyCache
from magnetar.security.openid.documents import Jwk
from magnetar.security.openid.issuers import ApiServer, KeyOrigin, KubernetesIssuer, WebIssuer
from magnetar.security.secret import Secret
from magnetar.security.token.claims import (
    Claims,
    check_audience,
    check_times,
    decoded,
    role_of,
    seconds,
)
from magnetar.security.token.keys import VerificationKey, public_jwk
from magnetar.security.token.provider import METHOD, bearer_token
from magnetar.security.token.verify import UnverifiedToken, parsed, verified

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
_REQUIRED: Final = ("iat", "exp", "sub")


class OpenIdProvider:
    """Verifies tokens with the keys that their issuers publish."""

    method: Final = METHOD

    def __init__(
        self, config: OpenIdProviderConfig, clock: Clock, server: ApiServer | None = None
    ) -> None:
        """Checks the configuration; raises ConfigurationError.

        `server`: the Kubernetes API server; by default, that of this process's pod.
        """
        _check(config)
        self._config = config
        self._clock = clock
        self._tasks = TaskSet("openid")
        self._web = self._client(config.trust_certs_file)
        self._caches: dict[str, KeyCache] = {}
        """The cached keys by issuer, the least recently used first."""
        self._kubernetes = self._kubernetes_cache(server)

    def presented(self, headers: Mapping[str, str], peer: Peer) -> Secret | None:  # noqa: ARG002
        """Returns the token of a request's Authorization header, None if it has none."""
        return bearer_token(headers)

    async def authenticate(self, data: Secret, peer: Peer) -> Identity:  # noqa: ARG002
        """Returns the role of a token; raises AuthenticationFailed or ProviderUnavailable."""
        token = parsed(data)
        if token.algorithm not in ALGORITHMS:
            raise AuthenticationFailed("the token's algorithm is not one of OpenID Connect's")
        if token.kid is None:
            raise AuthenticationFailed("the token's header names no key (kid)")
        claims = decoded(token.payload)
        cache = await self._cache_of(claims.get("iss"))
        jwk = await cache.key(token.kid)
        if jwk is None:
            raise AuthenticationFailed("the issuer has no key with the token's kid")
        claims, _ = verified(token, (_key(jwk, token),))
        return self._identity(claims)

    async def reload(self) -> int:
        """Returns 0: no file has the keys. Its tokens expire, so sessions end with them."""
        return 0

    async def close(self) -> None:
        """Ends refreshes and closes connections; idempotent."""
        await self._tasks.stop()
        if self._kubernetes is not None:
            await self._kubernetes.close()
        await self._web.close()

    def _identity(self, claims: Claims) -> Identity:
        config = self._config
        required = (*_REQUIRED, "nbf") if config.require_not_before else _REQUIRED
        if missing := [name for name in required if claims.get(name) is None]:
            raise AuthenticationFailed(f"the token has no {', '.join(missing)}")
        now_ms = self._clock.now_ms()
        expires_at_ms = check_times(claims, now_ms, config.leeway_s)
        issued_s = seconds(claims, "iat")
        if issued_s is not None and issued_s > now_ms / 1000 + config.leeway_s:
            raise AuthenticationFailed("the token was issued in the future (iat)")
        check_audience(claims, "aud", config.allowed_audiences)
        return Identity(role_of(claims, config.role_claim), METHOD, expires_at_ms)

    async def _cache_of(self, issuer: object) -> KeyCache:
        """Returns the keys of a token's issuer; AuthenticationFailed if it is not allowed."""
        config = self._config
        if isinstance(issuer, str) and issuer in config.allowed_issuers:
            cache = self._caches.pop(issuer, None)
            if cache is None:
                origin = WebIssuer(issuer, self._web, require_https=config.require_https)
                cache = self._cache(origin)
            self._caches[issuer] = cache
            while len(self._caches) > config.issuers_cached_max:
                del self._caches[next(iter(self._caches))]
            return cache
        if self._kubernetes is not None and issuer == await self._kubernetes.issuer():
            return self._kubernetes
        raise AuthenticationFailed("the token's issuer is not allowed")

    def _cache(self, origin: KeyOrigin) -> KeyCache:
        config = self._config
        ages = CacheAges(
            refresh_after_s=config.refresh_after_s,
            expire_after_s=config.expire_after_s,
            unknown_key_refresh_s=config.unknown_key_refresh_s,
        )
        return KeyCache(origin, ages, self._clock, self._tasks)

    def _client(self, trust_certs_file: str) -> ProviderClient:
        return ProviderClient(
            tls_context(trust_certs_file),
            connect_timeout_s=self._config.connect_timeout_ms / 1000,
            read_timeout_s=self._config.read_timeout_ms / 1000,
        )

    def _kubernetes_cache(self, server: ApiServer | None) -> KeyCache | None:
        config = self._config
        mode = config.fallback_discovery_mode
        if mode == "DISABLED":
            return None
        server = server or ApiServer.of_pod(os.environ)
        api = self._client(str(server.account / "ca.crt"))
        web = self._web if mode == "KUBERNETES_DISCOVER_TRUSTED_ISSUER" else None
        origin = KubernetesIssuer(server, api, web, require_https=config.require_https)
        return self._cache(origin)


def _check(config: OpenIdProviderConfig) -> None:
    if not config.allowed_issuers and config.fallback_discovery_mode == "DISABLED":
        raise ConfigurationError("the provider openid needs openIDAllowedTokenIssuers")
    if not config.allowed_audiences:
        raise ConfigurationError("the provider openid needs openIDAllowedAudiences")
    for issuer in config.allowed_issuers:
        if (reason := checked_url(issuer, require_https=config.require_https)) is not None:
            raise ConfigurationError(f"openIDAllowedTokenIssuers: {reason}")
    if config.refresh_after_s >= config.expire_after_s:
        raise ConfigurationError(
            "openIDCacheRefreshAfterWriteSeconds must be less than openIDCacheExpirationSeconds"
        )


def _key(jwk: Jwk, token: UnverifiedToken) -> VerificationKey:
    """Returns the token's key; raises AuthenticationFailed if its algorithm is another."""
    algorithm = jwk.get("alg", token.algorithm)
    if algorithm != token.algorithm:
        raise AuthenticationFailed("the alg of the issuer's key is not that of the token")
    try:
        return public_jwk(jwk, token.algorithm, "the issuer's key")
    except ConfigurationError as error:
        raise AuthenticationFailed(str(error)) from None
