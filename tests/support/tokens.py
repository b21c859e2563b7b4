"""Keys and tokens for tests, made by PyJWT and cryptography, not by the code under test.

Keys are generated once per process: an RSA key takes a tenth of a second.
"""

import base64
import hmac
import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

SECRET = bytes(range(64))
HMAC = ("HS256", "HS384", "HS512")
RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
EC: dict[str, ec.EllipticCurve] = {
    "ES256": ec.SECP256R1(),
    "ES384": ec.SECP384R1(),
    "ES512": ec.SECP521R1(),
}

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def private_key(algorithm: str, number: int = 0) -> PrivateKey:
    """The key of this number for the algorithm; the algorithms of RSA share them."""
    return _generated(algorithm if algorithm in EC else "RSA", number)


@cache
def _generated(kind: str, number: int) -> PrivateKey:
    assert number >= 0
    if kind in EC:
        return ec.generate_private_key(EC[kind])
    return rsa.generate_private_key(65_537, 2_048)


def der(algorithm: str, number: int = 0) -> bytes:
    """The public key as Pulsar's tools write it."""
    key = private_key(algorithm, number).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def pem(algorithm: str, number: int = 0) -> bytes:
    key = private_key(algorithm, number).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private_der(algorithm: str) -> bytes:
    key = private_key(algorithm)
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def token(
    claims: dict[str, Any], algorithm: str = "HS256", key: Any = None, **headers: object
) -> bytes:
    """A compact token; by default, signed with the first key of the algorithm."""
    if key is None:
        key = SECRET if algorithm in HMAC else private_key(algorithm)
    return jwt.encode(claims, key, algorithm, headers).encode()


def jwk(algorithm: str, number: int = 0, **fields: object) -> dict[str, Any]:
    """A public JSON web key; a field of None is left out."""
    kind = jwt.algorithms.get_default_algorithms()[algorithm]
    made = json.loads(kind.to_jwk(private_key(algorithm, number).public_key()))
    made.pop("key_ops", None)
    made |= {"alg": algorithm, "use": "sig"} | fields
    return {name: value for name, value in made.items() if value is not None}


def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> bytes:
    """A token with any header and an HMAC-SHA-256 by any bytes, which PyJWT refuses to make."""
    parts = [_encoded(json.dumps(part).encode()) for part in (header, claims)]
    signed = b".".join(parts)
    return signed + b"." + _encoded(hmac.digest(secret, signed, "sha256"))


def _encoded(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
