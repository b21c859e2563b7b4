"""The messages of the pipeline's long run, and their check.

A payload is its partition's number and its index there (8 bytes each, big-endian), then bytes of a
random pool. A `Tally` sums the digests of payloads, so two tallies are equal if and only if the
same payloads were counted equally often, in any order.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

POOL_BYTES: Final = 1 << 20
PLACE_BYTES: Final = 16
DIGEST_BYTES: Final = 8
MODULUS: Final = 1 << 64


@dataclass(slots=True)
class Tally:
    """The count, size and sum of digests of payloads, independent of their order."""

    count: int = 0
    size_bytes: int = 0
    digest: int = 0

    def add(self, payload: bytes | memoryview) -> None:
        hashed = hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()
        self.count += 1
        self.size_bytes += len(payload)
        self.digest = (self.digest + int.from_bytes(hashed, "big")) % MODULUS

    def merge(self, others: Iterable["Tally"]) -> "Tally":
        for other in others:
            self.count += other.count
            self.size_bytes += other.size_bytes
            self.digest = (self.digest + other.digest) % MODULUS
        return self


def payloads(partition: int, count: int, size: int) -> Iterator[bytes]:
    """Yields `count` distinct payloads of `size` bytes."""
    pool = os.urandom(POOL_BYTES)
    rest = size - PLACE_BYTES
    for place in range(count):
        start = place * 7919 % (POOL_BYTES - rest)
        yield (partition << 64 | place).to_bytes(PLACE_BYTES, "big") + pool[start : start + rest]


class OutOfOrder(Exception):
    """Messages of a partition arrived out of order."""


class Order:
    """The next index of each partition: indexes must arrive as 0, 1, 2, ..."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def check(self, payload: bytes) -> None:
        """Raises OutOfOrder."""
        partition = int.from_bytes(payload[:8], "big")
        place = int.from_bytes(payload[8:PLACE_BYTES], "big")
        expected = self._next.get(partition, 0)
        if place != expected:
            raise OutOfOrder(f"partition {partition}: {place} came where {expected} was due")
        self._next[partition] = place + 1
