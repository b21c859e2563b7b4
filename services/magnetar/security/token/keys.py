"""Keys that verify tokens, each with the algorithms that it accepts.

The key fixes the algorithms, never the token: an HMAC secret accepts no RS256, a public key no
HS256, nothing accepts `none` (CVE-2021-22160). An HMAC secret accepts the HS algorithms for which
it is long enough, an RSA key RS and PS, an EC key the algorithm of its curve; a key of a key set
exactly its `alg`, which it must have. So tokens of Pulsar's own tools verify: they choose HS256,
HS384 or HS512 by the length of the secret.

A token with a `kid` that the key set has is verified by those keys only; every other token by the
keys without a `kid`. So a cluster moves from one key to several while tokens of the first are in
use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from magnetar.security.errors import ConfigurationError

HMAC_KEY_BYTES_MIN: Final = 32
RSA_BITS_MIN: Final = 2_048
KEYS_MAX: Final = 100
"""Keys of a key set."""

_HMAC: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""The least length in bytes of a secret, by algorithm (RFC 7518 section 3.2)."""
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS: Final = (*_HMAC, *_RSA, *_CURVES.values())
PUBLIC_ALGORITHMS: Final = (*_RSA, *_CURVES.values())


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key, the algorithms that it accepts, and its name in tokens."""

    key: Any
    """Bytes of an HMAC secret, or a public key of `cryptography`."""
    algorithms: tuple[str, ...]
    kid: str | None = None

    def __repr__(self) -> str:
        return f"VerificationKey(kid={self.kid!r}, algorithms={self.algorithms!r})"


class KeyRing:
    """All keys that verify tokens."""

    def __init__(self, keys: tuple[VerificationKey, ...]) -> None:
        self._unnamed = tuple(key for key in keys if key.kid is None)
        self._by_kid: dict[str, tuple[VerificationKey, ...]] = {}
        for key in keys:
            if key.kid is not None:
                self._by_kid[key.kid] = (*self._by_kid.get(key.kid, ()), key)

    def candidates(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """Returns the keys that may verify a token with this `kid` and algorithm."""
        keys = self._by_kid.get(kid, self._unnamed) if kid is not None else self._unnamed
        return tuple(key for key in keys if algorithm in key.algorithms)


def hmac_key(secret: bytes, what: str) -> VerificationKey:
    """Returns the key of raw secret bytes; raises ConfigurationError if it is too short."""
    algorithms = tuple(name for name, least in _HMAC.items() if len(secret) >= least)
    if not algorithms:
        raise ConfigurationError(
            f"{what} has {len(secret)} bytes; a secret key needs {HMAC_KEY_BYTES_MIN} or more "
            "(`magnetar token create-secret-key`)"
        )
    import jwt

    try:
        jwt.get_algorithm_by_name("HS256").prepare_key(secret)
    except jwt.InvalidKeyError:
        raise ConfigurationError(
            f"{what} is a public or private key or a certificate, not a secret key"
        ) from None
    return VerificationKey(secret, algorithms)


def public_key(content: bytes, algorithm: str | None, what: str) -> VerificationKey:
    """Returns the key of a DER or PEM public key; raises ConfigurationError.

    `algorithm` states the kind of key that is expected; None: any.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        load_der_public_key,
        load_pem_public_key,
    )

    pem = content.lstrip().startswith(b"-----BEGIN")
    try:
        key = load_pem_public_key(content) if pem else load_der_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        form = "PEM" if pem else "DER"
        raise ConfigurationError(
            f"{what} is not a public key: it should be an X.509 SubjectPublicKeyInfo in DER or "
            f"PEM, and looks like {form}"
        ) from None
    algorithms = algorithms_of(key, what)
    if algorithm is not None and algorithm not in algorithms:
        raise ConfigurationError(
            f"{what} is a key for {', '.join(algorithms)}, not for {algorithm} (tokenPublicAlg)"
        )
    return VerificationKey(key, algorithms)


def algorithms_of(key: object, what: str) -> tuple[str, ...]:
    """Returns the algorithms of a public or private RSA or EC key; raises ConfigurationError."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        if key.key_size < RSA_BITS_MIN:
            raise ConfigurationError(
                f"{what} is an RSA key of {key.key_size} bits; the least is {RSA_BITS_MIN}"
            )
        return _RSA
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        if (algorithm := _CURVES.get(key.curve.name)) is not None:
            return (algorithm,)
        raise ConfigurationError(
            f"{what} is on the curve {key.curve.name}; supported: {', '.join(_CURVES)}"
        )
    raise ConfigurationError(f"{what} is neither an RSA nor an EC key")


def key_set(content: bytes, what: str) -> tuple[VerificationKey, ...]:
    """Returns the keys of a JSON web key set; raises ConfigurationError.

    Every key needs `kid` and `alg`; private keys are refused, because verification needs none.
    """
    try:
        document = msgspec.json.decode(content)
        keys = document["keys"]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, TypeError, KeyError):
        raise ConfigurationError(f'{what} is not a JSON web key set, {{"keys": [...]}}') from None
    if not isinstance(keys, list) or not 0 < len(keys) <= KEYS_MAX:
        raise ConfigurationError(f"{what} should have 1 to {KEYS_MAX} keys")
    return tuple(_set_member(jwk, f"key {number} of {what}") for number, jwk in enumerate(keys, 1))


def _set_member(jwk: object, what: str) -> VerificationKey:
    if not isinstance(jwk, dict):
        raise ConfigurationError(f"{what} is not a JSON object")
    kid, algorithm = jwk.get("kid"), jwk.get("alg")
    if not isinstance(kid, str) or not kid:
        raise ConfigurationError(f"{what} has no kid")
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(
            f"{what} has the alg {algorithm!r}; supported: {', '.join(ALGORITHMS)}"
        )
    if jwk.get("kty") != "oct" and "d" in jwk:
        raise ConfigurationError(f"{what} is a private key; only its public half belongs here")
    return jwk_key(jwk, algorithm, what)


def public_jwk(jwk: Mapping[str, Any], algorithm: str, what: str) -> VerificationKey:
    """Returns the RSA or EC key of a JSON web key for `algorithm`; raises ConfigurationError.

    `algorithm` may come from a token: a key of another kind does not support it.
    """
    if jwk.get("kty") not in ("RSA", "EC") or algorithm not in PUBLIC_ALGORITHMS:
        raise ConfigurationError(f"{what} is not an RSA or EC key for {algorithm}")
    return jwk_key(jwk, algorithm, what)


def jwk_key(jwk: Mapping[str, Any], algorithm: str, what: str) -> VerificationKey:
    """Returns the key of a JSON web key for exactly `algorithm`; raises ConfigurationError."""
    import jwt

    try:
        key = jwt.PyJWK(dict(jwk), algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise ConfigurationError(
            f"{what} is not a usable JSON web key for {algorithm} ({type(error).__name__})"
        ) from None
    supported = (
        hmac_key(key, what).algorithms if isinstance(key, bytes) else algorithms_of(key, what)
    )
    if algorithm not in supported:
        raise ConfigurationError(f"{what} cannot have the alg {algorithm}")
    kid = jwk.get("kid")
    return VerificationKey(key, (algorithm,), kid if isinstance(kid, str) else None)
