"""Creates keys, and tokens that Pulsar and this project verify.

The key chooses the algorithm if none is given, as Pulsar's tools do: the strongest HS for which a
secret is long enough, RS256, RS384 or RS512 for RSA keys of 2048, 3072 or 4096 bits, that of the
curve for EC keys. A token has no `typ`, and its JSON no spaces, so a token of the same key and
claims is the same text as Pulsar's if its algorithm is an HS.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from magnetar.security.errors import ConfigurationError
from magnetar.security.secret import Secret
from magnetar.security.token.keys import algorithms_of, hmac_key

SECRET_KEY_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
RSA_BITS: Final = {"256": 2_048, "384": 3_072, "512": 4_096}
"""The key sizes by the digits of RS and PS algorithms."""
CURVES: Final = {"ES256": "SECP256R1", "ES384": "SECP384R1", "ES512": "SECP521R1"}
_RSA_EXPONENT: Final = 65_537
_HEADERS_SET_BY_KEY: Final = ("alg", "b64", "crit")


def new_secret_key(algorithm: str) -> Secret:
    """Returns random bytes of the algorithm's length; raises ConfigurationError."""
    if (size := SECRET_KEY_BYTES.get(algorithm)) is None:
        raise ConfigurationError(
            f"{algorithm} has no secret keys; those that have: {', '.join(SECRET_KEY_BYTES)}"
        )
    return Secret(secrets.token_bytes(size))


def new_key_pair(algorithm: str) -> tuple[Secret, bytes]:
    """Returns a private key (PKCS #8) and its public key (SubjectPublicKeyInfo), both DER.

    Raises ConfigurationError.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm in CURVES:
        key = ec.generate_private_key(getattr(ec, CURVES[algorithm])())
    elif algorithm[:2] in ("RS", "PS") and algorithm[2:] in RSA_BITS:
        key = rsa.generate_private_key(_RSA_EXPONENT, RSA_BITS[algorithm[2:]])
    else:
        raise ConfigurationError(f"{algorithm} has no key pairs")
    private = key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return Secret(private), public


def signed_by_secret(
    claims: Mapping[str, object], key: Secret, algorithm: str | None, headers: Mapping[str, str]
) -> Secret:
    """Returns a token signed with a secret key; raises ConfigurationError."""
    supported = hmac_key(key.reveal(), "the secret key").algorithms
    return _signed(claims, key.reveal(), algorithm or supported[-1], supported, headers)


def signed_by_private_key(
    claims: Mapping[str, object], key: Secret, algorithm: str | None, headers: Mapping[str, str]
) -> Secret:
    """Returns a token signed with a private key, DER or PEM; raises ConfigurationError."""
    private = _private_key(key)
    supported = algorithms_of(private, "the private key")
    return _signed(claims, private, algorithm or _default(private, supported), supported, headers)


def _private_key(key: Secret) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        load_der_private_key,
        load_pem_private_key,
    )

    content = key.reveal()
    load = load_pem_private_key if b"-----BEGIN" in content[:100] else load_der_private_key
    try:
        return load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError(
            "the private key is not an unencrypted PKCS #8 key in DER or PEM"
        ) from None


def _default(key: Any, supported: tuple[str, ...]) -> str:
    """Returns the algorithm for a private key: by size for RSA, else its only one."""
    if len(supported) == 1:
        return supported[0]
    fitting = [f"RS{digits}" for digits, bits in RSA_BITS.items() if key.key_size >= bits]
    return fitting[-1]


def _signed(
    claims: Mapping[str, object],
    key: Any,
    algorithm: str,
    supported: tuple[str, ...],
    headers: Mapping[str, str],
) -> Secret:
    import jwt

    if algorithm not in supported:
        raise ConfigurationError(
            f"the key does not support {algorithm}; it supports {', '.join(supported)}"
        )
    if taken := [name for name in headers if name in _HEADERS_SET_BY_KEY]:
        raise ConfigurationError(f"the header {taken[0]} cannot be set")
    payload = msgspec.json.encode(claims)
    return Secret(jwt.PyJWS().encode(payload, key, algorithm, {"typ": None, **headers}))
