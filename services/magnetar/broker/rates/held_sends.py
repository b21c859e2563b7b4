"""Bounds on sends that are held because they exceed their topic's rate.

A producer may have up to HELD_BYTES_MAX and HELD_ENTRIES_MAX held, and all producers of a broker
together BROKER_HELD_BYTES_MAX. Beyond that, the broker stops reading from the producer's connection
until it has room again. Data that was already read is held all the same, so a producer may exceed
the bound by one receive buffer.
"""

from typing import Final

HELD_BYTES_MAX: Final = 2 << 20
HELD_BYTES_LOW: Final = HELD_BYTES_MAX - (HELD_BYTES_MAX >> 3)
"""Reading resumes soon below the bound, because clients' pings wait in the same socket."""
HELD_ENTRIES_MAX: Final = 4_096
HELD_ENTRIES_LOW: Final = HELD_ENTRIES_MAX - (HELD_ENTRIES_MAX >> 3)
BROKER_HELD_BYTES_MAX: Final = 64 << 20
BROKER_HELD_BYTES_LOW: Final = 56 << 20


class HeldBudget:
    """The held bytes of a broker, and when a producer's connection is not read."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    def is_full(self, held_bytes: int, held_entries: int) -> bool:
        """Whether to stop reading from a producer that has this much held."""
        return (
            held_bytes > HELD_BYTES_MAX
            or held_entries > HELD_ENTRIES_MAX
            or self.bytes > BROKER_HELD_BYTES_MAX
        )

    def has_room(self, held_bytes: int, held_entries: int) -> bool:
        """Whether to resume reading from a producer that has this much held."""
        return (
            held_bytes <= HELD_BYTES_LOW
            and held_entries <= HELD_ENTRIES_LOW
            and self.bytes <= BROKER_HELD_BYTES_LOW
        )
