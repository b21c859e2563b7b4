"""Verifies the signature of a compact JSON web token (RFC 7515).

PyJWT does the verification, with the algorithms of the key (`keys`), and compares an HMAC in
constant time (CVE-2023-51437). A header with `crit` is refused. `jku`, `x5u` and `jwk`, which name
a key of the sender's choice, are never followed.

A token is untrusted input: whatever its bytes are, the only exception is AuthenticationFailed,
whose text shows no part of the token but `kid` and `alg`, cut to HEADER_TEXT_CHARS_MAX.
"""

import binascii
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from magnetar.security.api import AuthenticationFailed
from magnetar.security.secret import Secret
from magnetar.security.token.claims import Claims, decoded
from magnetar.security.token.keys import VerificationKey

if TYPE_CHECKING:
    import jwt

TOKEN_BYTES_MAX: Final = 32 << 10
HEADER_TEXT_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """The parts of a token that choose its key. Nothing in it is trusted."""

    compact: Secret
    algorithm: str
    kid: str | None
    header: bytes
    payload: bytes


def parsed(compact: Secret) -> UnverifiedToken:
    """Splits a compact token; raises AuthenticationFailed if it is malformed."""
    raw = compact.reveal()
    if not raw:
        raise AuthenticationFailed("the token is empty")
    if len(raw) > TOKEN_BYTES_MAX:
        raise AuthenticationFailed(f"the token is larger than {TOKEN_BYTES_MAX} bytes")
    parts = raw.split(b".")
    if len(parts) != 3:
        raise AuthenticationFailed("the token does not have three parts")
    header_json, payload = _base64(parts[0]), _base64(parts[1])
    header = _object(header_json)
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str):
        raise AuthenticationFailed("the token's header names no algorithm")
    if kid is not None and not isinstance(kid, str):
        raise AuthenticationFailed("the token's kid is not text")
    if "crit" in header or header.get("b64", True) is not True:
        raise AuthenticationFailed("the token's header requires an extension (crit or b64)")
    return UnverifiedToken(compact, algorithm, kid, header_json, payload)


def verified(
    token: UnverifiedToken, keys: tuple[VerificationKey, ...]
) -> tuple[Claims, VerificationKey]:
    """Returns the claims and the one of `keys` that verifies the token.

    Raises AuthenticationFailed.
    """
    import jwt

    jws = _verifier()
    raw = token.compact.reveal()
    for key in keys:
        try:
            complete = jws.decode_complete(raw, key.key, algorithms=list(key.algorithms))
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            continue
        return decoded(complete["payload"]), key
    if not keys:
        kid = "none" if token.kid is None else _shown(token.kid)
        raise AuthenticationFailed(
            f"no key verifies tokens with the algorithm {_shown(token.algorithm)} and the "
            f"kid {kid}",
            "no key verifies the token",
        )
    raise AuthenticationFailed("the token's signature is wrong")


@cache
def _verifier() -> "jwt.PyJWS":
    """The verifier of all tokens: it has no state of its own, and costs a third of an HMAC."""
    import jwt

    return jwt.PyJWS()


def _base64(part: bytes) -> bytes:
    """Decodes unpadded base64url."""
    if part.translate(None, _BASE64URL):
        raise AuthenticationFailed("the token is not base64url")
    try:
        return urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("the token is not base64url") from None


_BASE64URL: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def _object(encoded: bytes) -> dict[str, object]:
    try:
        header = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise AuthenticationFailed("the token's header is not JSON") from None
    if not isinstance(header, dict):
        raise AuthenticationFailed("the token's header is not a JSON object")
    return header


def _shown(text: str) -> str:
    return ascii(text[:HEADER_TEXT_CHARS_MAX])
