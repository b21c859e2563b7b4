"""Hashes against values that the originals gave.

JavaStringHash, Murmur3 and Key_Shared's slots were computed by Pulsar 4.2.4's own classes; the
partitions of `boost_hash` are those to which pulsar-client 3.13.0 (the wheel) sent these keys.
"""

import pytest

from magnetar.core.hashing import (
    boost_hash,
    bundle_hash,
    java_string_hash,
    murmur3_32,
    sticky_key_hash,
    sticky_range_hash,
)

# key, JavaStringHash, Murmur3_32, slot when the broker splits the range
PULSAR_VECTORS = [
    ("", 0, 0, 1),
    ("a", 97, 1009084850, 42456),
    ("key", 106079, 1654417988, 52449),
    ("N12345", 132382885, 1273149672, 1228),
    ("hello world", 1794106052, 1586663183, 60834),
    ("k-\u00e9\u4e2d", 3258118, 970617166, 43817),
    ("\U0001f600", 1772899, 1051995898, 28079),
    ("0123456789abcdef0", 258821768, 251268717, 7528),
    ("keykeykeykeykey3", 434058484, 1020554453, 43434),
]


@pytest.mark.parametrize(("key", "java", "murmur", "slot"), PULSAR_VECTORS)
def test_as_pulsar_hashes(key: str, java: int, murmur: int, slot: int) -> None:
    assert java_string_hash(key) == java
    assert murmur3_32(key.encode()) == murmur
    assert sticky_key_hash(key.encode()) == slot


@pytest.mark.parametrize(
    ("key", "slot"), [("", 1), ("a", 27058), ("key", 27204), ("N12345", 47336)]
)
def test_slot_in_ranges_that_consumers_name(key: str, slot: int) -> None:
    assert sticky_range_hash(key.encode()) == slot


def test_no_slot_is_zero() -> None:
    # Murmur3 of this key is a multiple of 65,535, and of the empty one also of 65,536.
    assert murmur3_32(b"k49276") % 65_535 == 0
    assert sticky_key_hash(b"k49276") == 1
    assert sticky_range_hash(b"") == 1


# key, its partition of 127 as the wheel chose it
WHEEL_PARTITIONS = [
    ("a", 115),
    ("b", 85),
    ("key", 64),
    ("N12345", 24),
    ("ab", 92),
    ("abc", 38),
    ("abcd", 93),
    ("abcde", 95),
    ("abcdef", 89),
    ("abcdefg", 87),
    ("abcdefgh", 14),
    ("abcdefghi", 5),
    ("abcdefghij", 56),
    ("abcdefghijk", 18),
    ("abcdefghijkl", 53),
    ("abcdefghijklm", 78),
    ("abcdefghijklmn", 29),
    ("abcdefghijklmno", 91),
    ("abcdefghijklmnop", 62),
    ("abcdefghijklmnopq", 114),
    ("abcdefghijklmnopqr", 103),
    ("abcdefghijklmnopqrs", 76),
    ("\u043a\u043b\u044e\u0447-0", 92),
    ("\u043a\u043b\u044e\u0447-1", 103),
    ("\u043a\u043b\u044e\u0447-2", 73),
    ("\u043a\u043b\u044e\u0447-3", 117),
    ("\u043a\u043b\u044e\u0447-4", 53),
    ("\u043a\u043b\u044e\u0447-5", 0),
    ("\u043a\u043b\u044e\u0447-6", 28),
    ("\u043a\u043b\u044e\u0447-7", 34),
]


@pytest.mark.parametrize(("key", "partition"), WHEEL_PARTITIONS)
def test_boost_hash_chooses_as_the_official_wheel(key: str, partition: int) -> None:
    assert boost_hash(key.encode()) % 127 == partition


def test_bundle_hash_is_the_crc_of_zlib() -> None:
    assert bundle_hash("123456789") == 0xCBF43926
