"""Authenticates by JSON web tokens that keys of this process verify: the method `token`.

A changed key takes effect without a restart (`reloading`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.core.clock import Clock
from magnetar.security.api import Identity, Peer
from magnetar.security.configuration import TokenProviderConfig
from magnetar.security.errors import ConfigurationError
from magnetar.security.reloading import Reloaded
from magnetar.security.secret import Secret
from magnetar.security.source import KeySource
from magnetar.security.token.cache import VerifiedToken, VerifiedTokens
from magnetar.security.token.claims import check_audience, check_times, role_of
from magnetar.security.token.keys import KeyRing, VerificationKey, hmac_key, key_set, public_key
from magnetar.security.token.verify import parsed, verified

METHOD: Final = "token"
_BEARER: Final = "bearer "


class TokenProvider:
    """Verifies tokens with a secret, a public key and a key set."""

    method: Final = METHOD

    def __init__(self, config: TokenProviderConfig, clock: Clock) -> None:
        """Reads the keys; raises ConfigurationError if there is none or one is unusable."""
        self._config = config
        self._clock = clock
        if config.audience_claim and not config.audience:
            raise ConfigurationError("tokenAudienceClaim is set, but tokenAudience is not")
        sources = _Sources(config)
        self._verified = VerifiedTokens()
        self._keys = Reloaded("keys of tokens", sources.all(), sources.ring, clock)

    def presented(self, headers: Mapping[str, str], peer: Peer) -> Secret | None:  # noqa: ARG002
        """Returns the token of a request's Authorization header, None if it has none."""
        return bearer_token(headers)

    async def authenticate(self, data: Secret, peer: Peer) -> Identity:  # noqa: ARG002
        """Returns the role of a token; raises AuthenticationFailed."""
        return self._identity(self._verified.verified(data, await self._keys.current(), _verify))

    def remembered(self, data: Secret) -> Identity | None:
        """Returns the role of a token that was verified before; raises AuthenticationFailed."""
        keys = self._keys.current_now()
        token = None if keys is None else self._verified.remembered(data, keys)
        return None if token is None else self._identity(token)

    def _identity(self, token: VerifiedToken) -> Identity:
        claims = token.claims
        config = self._config
        expires_at_ms = check_times(claims, self._clock.now_ms(), config.clock_skew_s)
        if config.audience_claim:
            check_audience(claims, config.audience_claim, (config.audience,))
        holds = _SignedBy(self._keys, token)
        return Identity(role_of(claims, config.role_claim), METHOD, expires_at_ms, holds)

    async def reload(self) -> int:
        """Reads changed key files; returns how often the keys have changed."""
        await self._keys.current()
        return self._keys.changes

    async def close(self) -> None:
        """Does nothing: the provider has no background work."""


@dataclass(frozen=True, slots=True)
class _SignedBy:
    """Whether the key that verified a token would still verify it."""

    keys: Reloaded[KeyRing]
    token: VerifiedToken

    def __call__(self) -> bool:
        token = self.token
        candidates = self.keys.value.candidates(token.kid, token.algorithm)
        return any(candidate.key == token.key.key for candidate in candidates)


def _verify(data: Secret, keys: KeyRing) -> VerifiedToken:
    """Verifies the signature of a token; raises AuthenticationFailed."""
    token = parsed(data)
    claims, key = verified(token, keys.candidates(token.kid, token.algorithm))
    return VerifiedToken(claims, key, token.kid, token.algorithm)


def bearer_token(headers: Mapping[str, str]) -> Secret | None:
    """Returns the token of `Authorization: Bearer`, None without one."""
    value = headers.get("authorization", "")
    if value[: len(_BEARER)].lower() != _BEARER:
        return None
    return Secret(value[len(_BEARER) :].strip().encode("utf-8", "surrogateescape"))


class _Sources:
    """The places of all keys."""

    def __init__(self, config: TokenProviderConfig) -> None:
        self._algorithm = config.public_algorithm
        self._secret = (
            KeySource.parse("tokenSecretKey", config.secret_key) if config.secret_key else None
        )
        self._public = (
            KeySource.parse("tokenPublicKey", config.public_key) if config.public_key else None
        )
        self._set = KeySource.parse("token_key_set", config.key_set) if config.key_set else None
        if not self.all():
            raise ConfigurationError(
                "authentication by token needs a key: set tokenSecretKey, tokenPublicKey or "
                "token_key_set"
            )

    def all(self) -> list[KeySource]:
        return [s for s in (self._secret, self._public, self._set) if s is not None]

    def ring(self) -> KeyRing:
        """Reads all keys; raises ConfigurationError."""
        keys: list[VerificationKey] = []
        if self._secret is not None:
            keys.append(hmac_key(self._secret.read(), "tokenSecretKey"))
        if self._public is not None:
            keys.append(public_key(self._public.read(), self._algorithm, "tokenPublicKey"))
        if self._set is not None:
            keys.extend(key_set(self._set.read(), "token_key_set"))
        return KeyRing(tuple(keys))
