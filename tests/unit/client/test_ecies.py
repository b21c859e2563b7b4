"""Data keys that are encrypted for keys of elliptic curves: every altered byte is found."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.crypto import ecies
from magnetar.client.errors import EncryptionFailed

_KEYS = {
    curve.name: ec.generate_private_key(curve)
    for curve in (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1(), ec.SECP256K1())
}
_BITS = 8


@given(st.sampled_from(sorted(_KEYS)), st.binary(min_size=1, max_size=64))
def test_the_owner_reads_what_was_encrypted(name: str, data: bytes) -> None:
    key = _KEYS[name]
    first, second = (ecies.encrypt(key.public_key(), data) for _ in range(2))
    assert ecies.decrypt(key, first) == ecies.decrypt(key, second) == data
    assert first != second
    assert len(first) == 1 + 2 * ((key.curve.key_size + 7) // 8) + len(data) + ecies.TAG_BYTES


@given(st.sampled_from(sorted(_KEYS)), st.data())
def test_damage_is_found(name: str, data: st.DataObject) -> None:
    key = _KEYS[name]
    encrypted = bytearray(ecies.encrypt(key.public_key(), bytes(32)))
    bit = data.draw(st.integers(0, len(encrypted) * _BITS - 1))
    encrypted[bit // _BITS] ^= 1 << (bit % _BITS)
    with pytest.raises(EncryptionFailed):
        ecies.decrypt(key, bytes(encrypted))


@given(st.sampled_from(sorted(_KEYS)), st.binary(max_size=200))
def test_other_bytes_are_refused(name: str, data: bytes) -> None:
    with pytest.raises(EncryptionFailed):
        ecies.decrypt(_KEYS[name], data)


def test_another_key_is_named_as_the_reason() -> None:
    encrypted = ecies.encrypt(_KEYS["secp256r1"].public_key(), bytes(32))
    with pytest.raises(EncryptionFailed, match="another key"):
        ecies.decrypt(ec.generate_private_key(ec.SECP256R1()), encrypted)
    with pytest.raises(EncryptionFailed, match="another elliptic curve"):
        ecies.decrypt(_KEYS["secp256k1"], encrypted)
