"""Authenticates connections and requests with the configured providers.

Providers of the same method form a chain: the first that accepts the credentials wins, so keys of
this process and OpenID Connect work together as the method `token`. If none accepts them and the
identity provider of one did not answer, the result is ProviderUnavailable: the client must retry.

A method without a provider gets the anonymous role if there is one. Over HTTP, wrong credentials
are always refused; Pulsar gives such a request the anonymous role.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.core.clock import Clock
from magnetar.security.api import AuthenticationFailed, Identity, Peer, ProviderUnavailable
from magnetar.security.configuration import (
    Authentication,
    BasicProviderConfig,
    OpenIdProviderConfig,
    ProviderConfig,
    TlsProviderConfig,
    TokenProviderConfig,
)
from magnetar.security.provider import Provider, Remembering
from magnetar.security.secret import Secret

METHOD_HEADER: Final = "x-pulsar-auth-method-name"
NO_METHOD: Final = "none"
NO_PROVIDER: Final = "no provider for the method"


def open_authenticator(config: Authentication, clock: Clock) -> "ProviderChain":
    """Opens the configured providers, which read their keys; raises ConfigurationError."""
    return ProviderChain(config, [_opened(provider, clock) for provider in config.providers])


def _opened(config: ProviderConfig, clock: Clock) -> Provider:
    # The modules import PyJWT and cryptography: a broker without authentication loads neither.
    match config:
        case TokenProviderConfig():
            from magnetar.security.token.provider import TokenProvider

            return TokenProvider(config, clock)
        case TlsProviderConfig():
            from magnetar.security.certificate import TlsProvider

            return TlsProvider(clock)
        case BasicProviderConfig():
            from magnetar.security.basic.provider import BasicProvider

            return BasicProvider(config, clock)
        case OpenIdProviderConfig():
            from magnetar.security.openid.provider import OpenIdProvider

            return OpenIdProvider(config, clock)


class ProviderChain:
    """The authenticator of a process: all its providers, by method."""

    def __init__(self, config: Authentication, providers: Sequence[Provider]) -> None:
        self._config = config
        self._providers = tuple(providers)
        self._methods: dict[str, tuple[Provider, ...]] = {}
        for provider in providers:
            chain = self._methods.get(provider.method, ())
            self._methods[provider.method] = (*chain, provider)
        self._remembering = {
            method: chain[0]
            for method, chain in self._methods.items()
            if isinstance(chain[0], Remembering)
        }

    def remembered(self, method: str, data: Secret) -> Identity | None:
        """Returns the identity by the first provider of the method, if it remembers `data`.

        Raises AuthenticationFailed.
        """
        provider = self._remembering.get(method)
        return None if provider is None else provider.remembered(data)

    async def authenticate(self, method: str, data: Secret, peer: Peer) -> Identity:
        """Returns the identity of the sender of CONNECT or AUTH_RESPONSE.

        Raises AuthenticationFailed or ProviderUnavailable.
        """
        chain = self._methods.get(method)
        if chain is None:
            return self._anonymous(f"no provider for the method {method[:64]!a}", NO_PROVIDER)
        return await _first(chain, data, peer)

    async def authenticate_http(self, headers: Mapping[str, str], peer: Peer) -> Identity:
        """Returns the identity of a request's sender by its headers (lower-case names).

        Raises AuthenticationFailed or ProviderUnavailable.
        """
        method = headers.get(METHOD_HEADER, "")
        if not method and self._config.strict_method:
            raise AuthenticationFailed(f"the request has no {METHOD_HEADER} header")
        if method:
            return await self._by_method(method, headers, peer)
        for chain in self._methods.values():
            presented = chain[0].presented(headers, peer)
            # Clients with a token may have a certificate, too: the header then decides.
            if presented is not None and (presented or "authorization" not in headers):
                return await _first(chain, presented, peer)
        if "authorization" in headers:
            raise AuthenticationFailed("no provider for the Authorization header's scheme")
        return self._anonymous("the request has no credentials")

    async def _by_method(self, method: str, headers: Mapping[str, str], peer: Peer) -> Identity:
        chain = self._methods.get(method)
        if chain is None:
            return self._anonymous(f"no provider for the method {method[:64]!a}", NO_PROVIDER)
        presented = chain[0].presented(headers, peer)
        if presented is None:
            raise AuthenticationFailed(f"the request has no credentials of the method {method}")
        return await _first(chain, presented, peer)

    def _anonymous(self, reason: str, cause: str = "") -> Identity:
        if not self._config.anonymous_role:
            raise AuthenticationFailed(reason, cause)
        return Identity(self._config.anonymous_role, NO_METHOD)

    async def reload(self) -> int:
        """Reads changed files of all providers; returns how often any of them has changed."""
        return sum([await provider.reload() for provider in self._providers])

    async def close(self) -> None:
        """Closes all providers; idempotent."""
        for provider in self._providers:
            await provider.close()


async def _first(chain: Sequence[Provider], data: Secret, peer: Peer) -> Identity:
    """Returns the identity by the first provider that accepts `data`."""
    unavailable: ProviderUnavailable | None = None
    reasons: list[str] = []
    causes: list[str] = []
    for provider in chain:
        try:
            return await provider.authenticate(data, peer)
        except ProviderUnavailable as error:
            unavailable = unavailable or error
        except AuthenticationFailed as error:
            reasons.append(str(error))
            causes.append(error.cause)
    if unavailable is not None:
        raise unavailable
    raise AuthenticationFailed("; ".join(dict.fromkeys(reasons)), "; ".join(causes))
