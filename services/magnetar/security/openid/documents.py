"""The documents of an issuer: its metadata, and its key set. Pure.

Source: OpenID Connect Discovery 1.0 sections 3 and 4.3, RFC 7517.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from magnetar.security.api import ProviderUnavailable

METADATA_PATH: Final = "/.well-known/openid-configuration"
KEYS_MAX: Final = 1_000
"""Keys of an issuer; more are refused."""

Jwk = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Metadata:
    """An issuer's metadata."""

    issuer: str
    keys_url: str


def metadata(content: bytes, url: str) -> Metadata:
    """Decodes an issuer's metadata; raises ProviderUnavailable if it is malformed."""
    document = _object(content, url)
    issuer, keys_url = document.get("issuer"), document.get("jwks_uri")
    if not isinstance(issuer, str) or not isinstance(keys_url, str):
        raise ProviderUnavailable(f"{url} names no issuer or no jwks_uri")
    return Metadata(issuer, keys_url)


def keys_by_id(content: bytes, url: str) -> dict[str, Jwk]:
    """Decodes a key set by `kid`; raises ProviderUnavailable if it is malformed.

    Keys without a `kid`, and keys that are not for signatures, are left out.
    """
    keys = _object(content, url).get("keys")
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        raise ProviderUnavailable(f"{url} has no list of at most {KEYS_MAX} keys")
    by_id: dict[str, Jwk] = {}
    for jwk in keys:
        if isinstance(jwk, dict) and isinstance(jwk.get("kid"), str) and _signs(jwk):
            by_id[jwk["kid"]] = jwk
    return by_id


def _signs(jwk: Jwk) -> bool:
    return jwk.get("kty") in ("RSA", "EC") and jwk.get("use", "sig") == "sig"


def _object(content: bytes, url: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict):
        raise ProviderUnavailable(f"{url} is not a JSON object")
    return document
