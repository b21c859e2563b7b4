"""The hash by which a client and a broker tell whether they know the same list of topics.

CRC-32C of the sorted names joined by commas, its four bytes in hex from the lowest on (as Guava
prints hash codes). Names are sorted as Java sorts strings, by UTF-16 units.
"""

from collections.abc import Iterable

from magnetar.wire.checksum import crc32c


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def topics_hash(topics: Iterable[str]) -> str:
    """Eight hex digits for a list of full topic names, in any order."""
    joined = ",".join(sorted(topics, key=_java_order)).encode("utf-8", "replace")
    return crc32c(joined).to_bytes(4, "little").hex()
