"""The hashes that clients and brokers must agree on.

- A message's partition: JavaStringHash (Java, Go), BoostHash (C++, Python) or Murmur3_32 of its
  key, as a non-negative 31-bit number, modulo the partitions.
- Key_Shared's slot: Murmur3_32 of the sticky key. Slot 0 of 65,536 means "not set" since PIP-379.
  Selectors that split the range themselves avoid it by a modulo of 65,535. The selector that takes
  ranges from consumers (STICKY) keeps the consumers' modulo of 65,536.
- A topic's bundle: CRC-32 (zlib's) of its full name.
"""

import zlib
from typing import Final

import mmh3

STICKY_HASH_RANGE: Final = 65_536
_MASK31: Final = 0x7FFFFFFF
_MASK32: Final = 0xFFFFFFFF
_MASK64: Final = 0xFFFFFFFFFFFFFFFF
_BOOST_STEP: Final = 0x9E3779B97F4A7C15
_BOOST_FACTOR: Final = _BOOST_STEP * _BOOST_STEP & _MASK64


def java_string_hash(key: str) -> int:
    """`String.hashCode` of Java over UTF-16 units, masked to 31 bits."""
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (value * 31 + (units[i] << 8 | units[i + 1])) & _MASK32
    return value & _MASK31


def boost_hash(key: bytes) -> int:
    """`boost::hash<std::string>` with a 64-bit size_t, masked to 31 bits.

    The C++ client hashes with the Boost it was built with. Boost 1.81 changed the function; this is
    the new one, which the published wheels use (verified against pulsar-client 3.13.0). Clients
    that were built with an older Boost map the same keys to other partitions.
    """
    state = _multiply_fold(_BOOST_STEP, _BOOST_FACTOR)
    value = state ^ len(key)
    whole = len(key) & ~7
    for i in range(0, whole, 8):
        state = (state + _BOOST_STEP) & _MASK64
        value ^= _multiply_fold(int.from_bytes(key[i : i + 8], "little") + state, _BOOST_FACTOR)
    state = (state + _BOOST_STEP) & _MASK64
    value ^= _multiply_fold(_boost_tail(key[whole:]) + state, _BOOST_FACTOR)
    return _multiply_fold(value + state, _BOOST_FACTOR) & _MASK31


def _multiply_fold(left: int, right: int) -> int:
    """The low and the high half of the 128-bit product of two 64-bit numbers, one xor the other."""
    product = (left & _MASK64) * right
    return (product & _MASK64) ^ (product >> 64)


def _boost_tail(tail: bytes) -> int:
    """The last 0 to 7 bytes as a number: overlapping words from 4 bytes on, single bytes below."""
    size = len(tail)
    if size >= 4:
        last = int.from_bytes(tail[-4:], "little")
        return last << (size - 4) * 8 | int.from_bytes(tail[:4], "little")
    if not size:
        return 0
    high, middle = (size - 1) & 2, size >> 1
    return tail[high] << high * 8 | tail[middle] << middle * 8 | tail[0]


def murmur3_32(key: bytes) -> int:
    """Murmur3 x86 32-bit, seed 0, masked to 31 bits as Pulsar's clients do."""
    return mmh3.hash(key, 0, signed=False) & _MASK31


def sticky_key_hash(key: bytes) -> int:
    """Key_Shared's slot of a key if the broker splits the range: 1 to 65,535."""
    return murmur3_32(key) % (STICKY_HASH_RANGE - 1) + 1


def sticky_range_hash(key: bytes) -> int:
    """Key_Shared's slot of a key if consumers declare their ranges: 1 to 65,535.

    Consumers declare ranges of 0 to 65,535 and hash modulo 65,536; a hash of 0 counts as 1.
    """
    return murmur3_32(key) % STICKY_HASH_RANGE or 1


def bundle_hash(topic: str) -> int:
    """The position of a full topic name on its namespace's ring, 0 to 2**32 - 1."""
    return zlib.crc32(topic.encode())
