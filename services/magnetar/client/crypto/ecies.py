"""Encryption of data keys for elliptic curve keys, as Java's client does with Bouncy Castle.

The scheme is IES of IEEE 1363a: an ephemeral key pair agrees with the receiver's key (ECDH), KDF2
with SHA-1 derives a MAC key and a key stream from the ephemeral point and the shared secret, the
stream is XORed onto the data, and HMAC-SHA1 authenticates it. The result is

    ephemeral point (uncompressed) | data XOR stream | tag (20 bytes)

Data keys are random and short, so SHA-1 in the KDF and in the MAC does not weaken them. Needs the
library cryptography.
"""

from typing import TYPE_CHECKING, Final

from magnetar.client.errors import EncryptionFailed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.hashes import HashAlgorithm
    from cryptography.hazmat.primitives.hmac import HMAC

MAC_KEY_BYTES: Final = 16
TAG_BYTES: Final = 20
"""Of HMAC-SHA1."""
_ENCODING_LENGTH: Final = bytes(8)
"""The length of the encoding parameter, which is empty; it is part of what the MAC covers."""


def encrypt(key: "EllipticCurvePublicKey", data: bytes) -> bytes:
    """Returns `data`, encrypted for the owner of a key."""
    from cryptography.hazmat.primitives.asymmetric import ec

    ephemeral = ec.generate_private_key(key.curve)
    point = _encoded(ephemeral.public_key())
    mac_key, stream = _derived(point, ephemeral.exchange(ec.ECDH(), key), len(data))
    body = _xor(data, stream)
    return point + body + _mac(mac_key, body).finalize()


def decrypt(key: "EllipticCurvePrivateKey", encrypted: bytes) -> bytes:
    """Returns what `encrypt` got; raises EncryptionFailed for another key or altered bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec

    point_bytes = 1 + 2 * ((key.curve.key_size + 7) // 8)
    if len(encrypted) <= point_bytes + TAG_BYTES:
        raise EncryptionFailed("the data key is too short for this elliptic curve")
    point, body = encrypted[:point_bytes], encrypted[point_bytes:-TAG_BYTES]
    try:
        sender = ec.EllipticCurvePublicKey.from_encoded_point(key.curve, point)
    except ValueError:
        raise EncryptionFailed("the data key is encrypted for another elliptic curve") from None
    mac_key, stream = _derived(point, key.exchange(ec.ECDH(), sender), len(body))
    try:
        _mac(mac_key, body).verify(encrypted[-TAG_BYTES:])
    except InvalidSignature:
        raise EncryptionFailed("the data key is encrypted for another key, or altered") from None
    return _xor(body, stream)


def _encoded(key: "EllipticCurvePublicKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _derived(point: bytes, secret: bytes, count: int) -> tuple[bytes, bytes]:
    """Returns the key of the MAC, and `count` bytes of the stream."""
    from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF

    # KDF2 is the function of X9.63. Bouncy Castle takes the MAC's key from its beginning.
    derived = X963KDF(_sha1(), MAC_KEY_BYTES + count, None).derive(point + secret)
    return derived[:MAC_KEY_BYTES], derived[MAC_KEY_BYTES:]


def _mac(key: bytes, body: bytes) -> "HMAC":
    from cryptography.hazmat.primitives.hmac import HMAC

    mac = HMAC(key, _sha1())
    mac.update(body + _ENCODING_LENGTH)
    return mac


def _sha1() -> "HashAlgorithm":
    from cryptography.hazmat.primitives import hashes

    # Fixed by the scheme; its collisions do not matter for random keys of one use.
    sha1 = hashes.SHA1
    return sha1()


def _xor(data: bytes, stream: bytes) -> bytes:
    count = len(data)
    return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(count)
