"""The hash by which a client and a broker detect whether their lists of topics are equal.

It is the CRC-32C of the sorted names joined by commas, in hex with the lowest byte first (as Guava
prints hash codes). Names are sorted as Java sorts strings, by UTF-16 units.
"""

from collections.abc import Iterable

from magnetar.wire.checksum import crc32c


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def topics_hash(topics: Iterable[str]) -> str:
    """Returns the hash of full topic names in any order, as eight hex digits."""
    joined = ",".join(sorted(topics, key=_java_order)).encode("utf-8", "replace")
    return crc32c(joined).to_bytes(4, "little").hex()
