"""The ciphers of end-to-end encryption; need the library cryptography.

A producer has one data key for all its messages, and replaces it every KEY_LIFETIME_S. Each entry
has a random initialization vector; AES-GCM permits 2^32 of them with one key. Keys of users are RSA
(OAEP) or of an elliptic curve (`ecies`).
"""

import os
import re
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from magnetar.client.crypto import ecies
from magnetar.client.crypto.api import CryptoKeyReader, EncryptedKey, Encryption
from magnetar.client.errors import ClientError, EncryptionFailed, MissingExtra
from magnetar.wire.varint import varint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_LIFETIME_S: Final = 4 * 60 * 60.0
"""As in Java's client."""
KEY_USES_MAX: Final = 1 << 31
DATA_KEYS_CACHED_MAX: Final = 1_000
"""Decrypted data keys of a consumer; beyond that, the oldest is decrypted again."""
_DATA_KEY_BYTES: Final = 32
_IV_BYTES: Final = 12
_PARAMETERS: Final = re.compile(
    rb"-----BEGIN EC PARAMETERS-----.*?-----END EC PARAMETERS-----\s*", re.DOTALL
)
TAG_BYTES: Final = 16


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError as error:
        raise MissingExtra(
            "Encryption needs more libraries: pip install 'magnetar[encryption]'"
        ) from error
    return aead


def _oaep() -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    # SHA-1 in OAEP is what all clients of Pulsar use; its collisions do not matter here.
    sha1 = hashes.SHA1
    return padding.OAEP(padding.MGF1(sha1()), sha1(), None)


class ProducerCipher:
    """Encrypts the entries of one producer."""

    def __init__(self, encryption: Encryption, now: Callable[[], float]) -> None:
        """Reads the public keys; raises EncryptionFailed, MissingExtra."""
        self._aead = _library()
        self._now = now
        self._public = [_public_key(name, encryption.reader) for name in encryption.keys]
        self._aes: AESGCM
        self._keys = b""
        self._expires_at = 0.0
        self._uses = 0
        self._renew()

    def _renew(self) -> None:
        data_key = os.urandom(_DATA_KEY_BYTES)
        self._keys = b"".join(
            _wire_key(name, encrypt(data_key), metadata) for name, encrypt, metadata in self._public
        )
        self._aes = self._aead.AESGCM(data_key)
        self._expires_at = self._now() + KEY_LIFETIME_S
        self._uses = 0

    @property
    def overhead_bytes(self) -> int:
        """What encryption adds to an entry."""
        return len(self._keys) + TAG_BYTES + _IV_BYTES + 2

    def encrypt(self, payload: bytes) -> tuple[bytes, bytes]:
        """Returns the fields of MessageMetadata and the encrypted payload."""
        if self._uses >= KEY_USES_MAX or self._now() >= self._expires_at:
            self._renew()
        self._uses += 1
        iv = os.urandom(_IV_BYTES)
        fields = self._keys + b"\x7a" + varint(len(iv)) + iv
        return fields, self._aes.encrypt(iv, payload, None)


def _public_key(
    name: str, reader: CryptoKeyReader
) -> tuple[str, Callable[[bytes], bytes], dict[str, str]]:
    """Returns what encrypts data keys for a name."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        pem, metadata = reader.public_key(name)
        key = load_pem_public_key(without_parameters(pem))
    except ClientError:
        raise
    except Exception as error:  # the reader is users' code
        raise EncryptionFailed(f"The public key of {name} cannot be read: {error}") from error
    return name, _encrypting(name, key), dict(metadata)


def _encrypting(name: str, key: object) -> Callable[[bytes], bytes]:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if isinstance(key, RSAPublicKey):
        padding = _oaep()
        return lambda data: key.encrypt(data, padding)
    if isinstance(key, EllipticCurvePublicKey):
        return lambda data: ecies.encrypt(key, data)
    raise EncryptionFailed(
        f"The key of {name} is neither RSA nor of an elliptic curve for ECDH: other kinds are not "
        "supported"
    )


def without_parameters(pem: bytes) -> bytes:
    """Returns a PEM without the block that names a curve: the key names its own."""
    return _PARAMETERS.sub(b"", pem)


def _wire_key(name: str, value: bytes, metadata: dict[str, str]) -> bytes:
    """The bytes of an EncryptionKeys in MessageMetadata."""
    body = _field(b"\x0a", name.encode()) + _field(b"\x12", value)
    for key, text in metadata.items():
        body += _field(b"\x1a", _field(b"\x0a", key.encode()) + _field(b"\x12", text.encode()))
    return _field(b"\x6a", body)


def _field(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data


class ConsumerCipher:
    """Decrypts the entries of one consumer."""

    def __init__(self, reader: CryptoKeyReader) -> None:
        """Raises MissingExtra."""
        self._aead = _library()
        self._reader = reader
        self._known: OrderedDict[bytes, AESGCM] = OrderedDict()
        """By the digest of the encrypted data key."""

    def decrypt(self, keys: list[EncryptedKey], parameter: bytes, payload: bytes) -> bytes:
        """Returns the payload; raises EncryptionFailed."""
        reasons = []
        for key in keys:
            try:
                aes = self._data_key(key)
                return aes.decrypt(parameter, payload, None)
            except Exception as error:  # noqa: BLE001  # the reader is users' code
                reasons.append(f"{key.name}: {error or type(error).__name__}")
        raise EncryptionFailed("; ".join(reasons))

    def _data_key(self, key: EncryptedKey) -> "AESGCM":
        digest = sha256(key.name.encode() + b"\0" + key.value).digest()
        aes = self._known.get(digest)
        if aes is None:
            aes = self._decrypted(key)
            self._known[digest] = aes
            if len(self._known) > DATA_KEYS_CACHED_MAX:
                self._known.popitem(last=False)
        return aes

    def _decrypted(self, key: EncryptedKey) -> "AESGCM":
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        pem = self._reader.private_key(key.name, key.metadata)
        private = load_pem_private_key(without_parameters(pem), None)
        if isinstance(private, RSAPrivateKey):
            data_key = private.decrypt(key.value, _oaep())
        elif isinstance(private, EllipticCurvePrivateKey):
            data_key = ecies.decrypt(private, key.value)
        else:
            raise EncryptionFailed(
                "the private key is neither RSA nor of an elliptic curve for ECDH"
            )
        aes: AESGCM = self._aead.AESGCM(data_key)
        return aes
