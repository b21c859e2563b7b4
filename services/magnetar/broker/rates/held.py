"""What producers sent beyond their topic's rate, held until it may go: how much of it there may be.

One producer may have HELD_BYTES_MAX and HELD_ENTRIES_MAX held, and all of a broker together
BROKER_HELD_BYTES_MAX; beyond, its connection is not read from until there is room again. What had
been read by then is held all the same, so that a producer may be over by one receive buffer.
"""

from typing import Final

HELD_BYTES_MAX: Final = 2 << 20
HELD_BYTES_LOW: Final = HELD_BYTES_MAX - (HELD_BYTES_MAX >> 3)
"""Reading goes on soon: clients' pings wait in the same socket."""
HELD_ENTRIES_MAX: Final = 4_096
HELD_ENTRIES_LOW: Final = HELD_ENTRIES_MAX - (HELD_ENTRIES_MAX >> 3)
BROKER_HELD_BYTES_MAX: Final = 64 << 20
BROKER_HELD_BYTES_LOW: Final = 56 << 20


class HeldBudget:
    """One per broker."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    def is_full(self, held_bytes: int, held_entries: int) -> bool:
        """Whether no more should be read from who has so much held."""
        return (
            held_bytes > HELD_BYTES_MAX
            or held_entries > HELD_ENTRIES_MAX
            or self.bytes > BROKER_HELD_BYTES_MAX
        )

    def has_room(self, held_bytes: int, held_entries: int) -> bool:
        """Whether reading from who has so much held may go on."""
        return (
            held_bytes <= HELD_BYTES_LOW
            and held_entries <= HELD_ENTRIES_LOW
            and self.bytes <= BROKER_HELD_BYTES_LOW
        )
