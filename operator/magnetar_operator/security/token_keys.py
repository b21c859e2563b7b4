"""Token keys and tokens (JWT) of a cluster: created, read back, and put into key sets.

Keys have the forms of Pulsar's chart: PRIVATEKEY (PKCS#8, DER) and PUBLICKEY (SubjectPublicKeyInfo,
DER) for RS256, or SECRETKEY (raw bytes) for HS256. Tokens name their key by `kid`. JWKS has every
key that brokers trust now (RFC 7517), so that a key is replaced without a moment in which a token
is refused. Brokers get public keys only, unless the key is symmetric.
"""

import base64
import datetime
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from magnetar.security.secret import Secret
from magnetar_operator.kube.kinds import Object
from magnetar_operator.security import wanted as names
from magnetar_operator.security.stored import data_of

RSA_BITS: Final = 2_048
RSA_EXPONENT: Final = 65_537
SECRET_BYTES: Final = 32
KEY_ID_CHARACTERS: Final = 16
RS256: Final = "RS256"
HS256: Final = "HS256"


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key that signs tokens."""

    material: Secret
    """PKCS#8 in DER, or the raw bytes of a symmetric key."""
    symmetric: bool

    @property
    def algorithm(self) -> str:
        return HS256 if self.symmetric else RS256

    @property
    def public(self) -> bytes:
        """The public key (DER); empty for a symmetric key."""
        if self.symmetric:
            return b""
        return (
            self._private()
            .public_key()
            .public_bytes(
                serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    @property
    def key_id(self) -> str:
        """The `kid` of its tokens. It shows nothing of the key."""
        if self.symmetric:
            digest = hmac.digest(self.material.reveal(), b"kid", "sha256")
        else:
            digest = hashlib.sha256(self.public).digest()
        return base64.urlsafe_b64encode(digest).decode()[:KEY_ID_CHARACTERS]

    def document(self) -> dict[str, Any]:
        """The key as brokers verify with it, as a member of a key set."""
        if self.symmetric:
            text = base64.urlsafe_b64encode(self.material.reveal()).decode().rstrip("=")
            built: dict[str, Any] = {"kty": "oct", "k": text}
        else:
            algorithm = jwt.algorithms.RSAAlgorithm
            built = dict(algorithm.to_jwk(self._private().public_key(), as_dict=True))
            built.pop("key_ops", None)
        return {**built, "kid": self.key_id, "alg": self.algorithm, "use": "sig"}

    def sign(self, role: str, now: datetime.datetime, lifetime: datetime.timedelta) -> Secret:
        """A token of the role."""
        claims = {"sub": role, "iat": now, "exp": now + lifetime}
        key: Any = self.material.reveal() if self.symmetric else self._private()
        headers = {"kid": self.key_id}
        return Secret(jwt.encode(claims, key, algorithm=self.algorithm, headers=headers))

    def verifies(self, token: str) -> dict[str, Any] | None:
        """The claims of a token that this key signed, expired or not; None for any other."""
        key: Any = self.material.reveal() if self.symmetric else self._private().public_key()
        options: Any = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
        try:
            return dict(jwt.decode(token, key, algorithms=[self.algorithm], options=options))
        except jwt.InvalidTokenError:
            return None

    def _private(self) -> rsa.RSAPrivateKey:
        # Its own key: the check of its primes would cost more than the signature.
        loaded = serialization.load_der_private_key(
            self.material.reveal(), None, unsafe_skip_rsa_key_validation=True
        )
        if not isinstance(loaded, rsa.RSAPrivateKey):
            raise ValueError("the token key is not an RSA key")
        return loaded


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """The token key of a cluster, with its successor and the keys that are trusted."""

    current: TokenKey
    upcoming: TokenKey | None
    trusted: tuple[dict[str, Any], ...]
    """The members of the stored key set."""

    def predecessors(self) -> list[dict[str, Any]]:
        """The trusted keys that are neither the current one nor its successor."""
        known = {key.key_id for key in (self.current, self.upcoming) if key is not None}
        return [member for member in self.trusted if member.get("kid") not in known]


@dataclass(frozen=True, slots=True)
class TokenState:
    """A stored token."""

    role: str
    expires_at: datetime.datetime
    is_current: bool
    """The key that signs now has signed it."""


def create_key(*, symmetric: bool) -> TokenKey:
    """Creates a key. An RSA key takes a noticeable time of CPU."""
    if symmetric:
        return TokenKey(Secret(secrets.token_bytes(SECRET_BYTES)), symmetric=True)
    private = rsa.generate_private_key(RSA_EXPONENT, RSA_BITS)
    material = private.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return TokenKey(Secret(material), symmetric=False)


def keys_of(secret: Object | None, *, symmetric: bool) -> StoredKeys | None:
    """The keys in a Secret; None if there is no Secret or it has no such key."""
    current = _key(data_of(secret, names.SECRET_KEY if symmetric else names.PRIVATE_KEY), symmetric)
    if current is None:
        return None
    upcoming = _key(data_of(secret, names.NEXT_TOKEN_KEY), symmetric)
    return StoredKeys(current, upcoming, tuple(_members(data_of(secret, names.KEY_SET))))


def key_set(members: list[dict[str, Any]]) -> bytes:
    """A JSON web key set."""
    return json.dumps({"keys": members}, sort_keys=True).encode()


def token_state(token: bytes, keys: StoredKeys | None) -> TokenState | None:
    """The state of a stored token; None if no key of ours signed it."""
    if not token or keys is None:
        return None
    text = token.decode(errors="replace").strip()
    for key in (keys.current, keys.upcoming):
        claims = key.verifies(text) if key is not None else None
        if claims is not None:
            return _state(claims, is_current=key is keys.current)
    return None


def _state(claims: dict[str, Any], *, is_current: bool) -> TokenState:
    expires = claims.get("exp")
    at = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    if isinstance(expires, int | float):
        at = datetime.datetime.fromtimestamp(expires, datetime.UTC)
    return TokenState(str(claims.get("sub", "")), at, is_current)


def _key(material: bytes, symmetric: bool) -> TokenKey | None:
    key = TokenKey(Secret(material), symmetric)
    if symmetric:
        return key if len(material) >= SECRET_BYTES else None
    try:
        _ = key.public
    except (ValueError, TypeError):
        return None
    return key


def _members(content: bytes) -> list[dict[str, Any]]:
    try:
        document = json.loads(content)
        return [member for member in document["keys"] if isinstance(member, dict)]
    except (ValueError, TypeError, KeyError):
        return []
