"""Authenticates by user name and password: the method `basic`.

The data is `user:password` with exactly one colon, as in Pulsar. A changed file takes effect
without a restart (`reloading`).

Passwords are hashed in threads, CHECKS_AT_ONCE_MAX at a time. If CHECKS_WAITING_MAX wait, or
NETWORK_CHECKS_WAITING_MAX of one address (of a /64 network of IPv6), further clients must retry, so
that one address leaves room for others. Verified passwords are cached as keyed digests until the
file changes, so that a request does not cost a hash: the newest VERIFIED_MAX of them.
"""

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections import Counter
from collections.abc import Mapping
from typing import Final

from magnetar.core.addresses import network_of
from magnetar.core.clock import Clock
from magnetar.security.api import AuthenticationFailed, Identity, Peer, ProviderUnavailable
from magnetar.security.basic.htpasswd import PASSWORD_BYTES_MAX, Users, parsed
from magnetar.security.configuration import BasicProviderConfig
from magnetar.security.reloading import Reloaded
from magnetar.security.secret import Secret
from magnetar.security.source import KeySource

METHOD: Final = "basic"
CHECKS_AT_ONCE_MAX: Final = 2
CHECKS_WAITING_MAX: Final = 256
NETWORK_CHECKS_WAITING_MAX: Final = 128
VERIFIED_MAX: Final = 1_024
USER_BYTES_MAX: Final = 1_024
_SCHEME: Final = "basic "


class BasicProvider:
    """Verifies passwords with an htpasswd file."""

    method: Final = METHOD

    def __init__(self, config: BasicProviderConfig, clock: Clock) -> None:
        """Reads the file; raises ConfigurationError."""
        source = KeySource.parse("basicAuthConf", config.users)
        self._users = Reloaded(
            "users of basicAuthConf",
            [source],
            lambda: parsed(source.read(), str(source.path or "basicAuthConf")),
            clock,
        )
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE_MAX)
        self._waiting: Counter[str] = Counter()
        """The checks under way and waiting, by network."""
        self._digest_key = secrets.token_bytes(32)
        self._verified: dict[bytes, None] = {}
        self._verified_by: Users | None = None

    def presented(self, headers: Mapping[str, str], peer: Peer) -> Secret | None:  # noqa: ARG002
        """Returns `user:password` of a request's Authorization header, None if it has none."""
        value = headers.get("authorization", "")
        if value[: len(_SCHEME)].lower() != _SCHEME:
            return None
        try:
            return Secret(base64.b64decode(value[len(_SCHEME) :].strip(), validate=True))
        except (binascii.Error, ValueError):
            # Not None: the request does present credentials, and they are wrong.
            return Secret(b":")

    async def authenticate(self, data: Secret, peer: Peer) -> Identity:
        """Returns the user as the role; raises AuthenticationFailed or ProviderUnavailable."""
        raw = data.reveal()
        if len(raw) > USER_BYTES_MAX + PASSWORD_BYTES_MAX:
            raise AuthenticationFailed("the user name and password are too long")
        parts = raw.split(b":")
        if len(parts) != 2:
            raise AuthenticationFailed("the credentials are not user:password")
        try:
            user = parts[0].decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("the user name is not UTF-8") from None
        users = await self._users.current()
        if not user or not await self._verify(users, user, parts[1], raw, peer):
            raise AuthenticationFailed("the user is unknown, or the password is wrong")
        hashed = users.hashes[user]
        return Identity(user, METHOD, holds=lambda: self._users.value.hashes.get(user) == hashed)

    async def reload(self) -> int:
        """Reads the file if it changed; returns how often it has."""
        await self._users.current()
        return self._users.changes

    async def _verify(
        self, users: Users, user: str, password: bytes, raw: bytes, peer: Peer
    ) -> bool:
        if users is not self._verified_by:
            self._verified, self._verified_by = {}, users
        verified = self._verified
        digest = hashlib.blake2b(raw, key=self._digest_key).digest()
        if digest in verified:
            return True
        waiting, network = self._waiting, network_of(peer.address)
        if waiting[network] >= NETWORK_CHECKS_WAITING_MAX or waiting.total() >= CHECKS_WAITING_MAX:
            raise ProviderUnavailable("too many passwords are waiting for their check")
        waiting[network] += 1
        try:
            async with self._checks:
                if digest in verified:  # another connection presented it, and waited as well
                    return True
                right = await asyncio.to_thread(users.verify, user, password)
        finally:
            waiting[network] -= 1
            if not waiting[network]:
                del waiting[network]
        if right:
            verified[digest] = None
            while len(verified) > VERIFIED_MAX:
                del verified[next(iter(verified))]
        return right

    async def close(self) -> None:
        """Does nothing: the provider has no background work."""
