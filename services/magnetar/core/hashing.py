"""The hashes clients and brokers must agree on.

- A message's partition: JavaStringHash (Java, Go), BoostHash (C++, Python) or Murmur3_32 of its
  key, as a non-negative 31-bit number, modulo the partitions.
- Key_Shared's slot: Murmur3_32 of the sticky key modulo 65,536; 0 is reserved for "not set".
- A topic's bundle: CRC-32 (zlib's) of its full name.
"""

import zlib
from typing import Final

import mmh3

STICKY_HASH_RANGE: Final = 65_536
_MASK31: Final = 0x7FFFFFFF
_MASK32: Final = 0xFFFFFFFF
_MASK64: Final = 0xFFFFFFFFFFFFFFFF


def java_string_hash(key: str) -> int:
    """`String.hashCode` of Java over UTF-16 units, masked to 31 bits."""
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (value * 31 + (units[i] << 8 | units[i + 1])) & _MASK32
    return value & _MASK31


def boost_hash(key: bytes) -> int:
    """`boost::hash<std::string>` with a 64-bit size_t, masked to 31 bits.

    The classic hash_combine over signed chars, as in Boost before 1.81, which the official
    C++ client pins by carrying its own copy's results in its test-suite.
    """
    seed = 0
    for byte in key:
        char = byte - 256 if byte > 127 else byte
        seed ^= (char + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & _MASK64
        seed &= _MASK64
    return seed & _MASK31


def murmur3_32(key: bytes) -> int:
    """Murmur3 x86 32-bit, seed 0, masked to 31 bits as Pulsar's clients do."""
    return mmh3.hash(key, 0, signed=False) & _MASK31


def sticky_key_hash(key: bytes) -> int:
    """Key_Shared's slot of a key: 1 to 65,535."""
    return (mmh3.hash(key, 0, signed=False) & _MASK31) % (STICKY_HASH_RANGE - 1) + 1


def bundle_hash(topic: str) -> int:
    """Where a full topic name falls on its namespace's ring, 0 to 2**32 - 1."""
    return zlib.crc32(topic.encode())
