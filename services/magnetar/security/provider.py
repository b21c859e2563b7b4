"""The interface of authentication providers; `authenticator` composes them."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from magnetar.security.api import Identity, Peer
from magnetar.security.secret import Secret


class Provider(Protocol):
    """Authenticates peers by one method."""

    @property
    def method(self) -> str:
        """The protocol's name of the method: `token`, `basic` or `tls`."""

    def presented(self, headers: Mapping[str, str], peer: Peer) -> Secret | None:
        """Returns the credentials of this method in an HTTP request; None if it has none."""

    async def authenticate(self, data: Secret, peer: Peer) -> Identity:
        """Returns the identity of `data`; raises AuthenticationFailed or ProviderUnavailable."""

    async def reload(self) -> int:
        """Reads changed files; returns how often keys or passwords have changed since the start."""

    async def close(self) -> None:
        """Ends background work; idempotent."""


@runtime_checkable
class Remembering(Protocol):
    """A provider that remembers credentials."""

    def remembered(self, data: Secret) -> Identity | None:
        """Returns the identity of credentials that were accepted before, without a wait.

        None if `authenticate` must decide. Raises AuthenticationFailed.
        """
