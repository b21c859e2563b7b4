"""Remembers the tokens whose signature the current keys have verified.

All connections of a client present the same token, and most clients reconnect at once after a
broker has restarted. The signature of a token depends only on its bytes and on the keys, so one
verification is enough until the keys change. Times and claims are checked for each connection.

Tokens are remembered by their SHA-256. A token that no key verifies is not remembered, so a
stranger cannot displace those of clients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from magnetar.security.secret import Secret
from magnetar.security.token.claims import Claims
from magnetar.security.token.keys import KeyRing, VerificationKey

VERIFIED_MAX: Final = 1_024
VERIFIED_BYTES_MAX: Final = 4 << 10
"""A larger token, which some groups claims make, is verified each time."""


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """A token whose signature is right; whether it is valid now is another question."""

    claims: Claims
    key: VerificationKey
    kid: str | None
    algorithm: str


class VerifiedTokens:
    """The tokens that one key ring has verified; the oldest is forgotten first."""

    __slots__ = ("_keys", "_tokens")

    def __init__(self) -> None:
        self._keys: KeyRing | None = None
        self._tokens: dict[bytes, VerifiedToken] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def remembered(self, compact: Secret, keys: KeyRing) -> VerifiedToken | None:
        """Returns the token if `keys` verified it before."""
        if self._keys is not keys:
            return None
        return self._tokens.get(sha256(compact.reveal()).digest())

    def verified(
        self, compact: Secret, keys: KeyRing, verify: Callable[[Secret, KeyRing], VerifiedToken]
    ) -> VerifiedToken:
        """Returns the token as `keys` verified it before, else the result of `verify`.

        Raises what `verify` raises.
        """
        raw = compact.reveal()
        if len(raw) > VERIFIED_BYTES_MAX:
            return verify(compact, keys)
        if self._keys is not keys:
            self._keys = keys
            self._tokens.clear()
        digest = sha256(raw).digest()
        token = self._tokens.get(digest)
        if token is None:
            token = verify(compact, keys)
            if len(self._tokens) >= VERIFIED_MAX:
                del self._tokens[next(iter(self._tokens))]
            self._tokens[digest] = token
        return token
