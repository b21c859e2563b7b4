"""Permits: how many more messages the broker may send for one topic or partition.

The consumer grants as many as its receiver queue is long, and grants again when the user has taken
half of it. An auto-scaled queue begins at one message. It doubles when the queue is empty although
the user waits, and halves when the received messages of the client exceed its memory limit.
"""

from collections.abc import Callable
from typing import Final

GROW_BELOW: Final = 0.75
"""A queue grows while received messages take less than this share of the memory limit."""
SHRINK_ABOVE: Final = 0.95


class ReceivePermits:
    """The permits of one topic or partition."""

    __slots__ = ("_auto", "_grant", "_max", "_owed", "paused", "size")

    def __init__(self, size_max: int, grant: Callable[[int], None], *, auto_scale: bool) -> None:
        self._max = size_max
        self._auto = auto_scale
        self.size = 1 if auto_scale else size_max
        self._grant = grant
        self._owed = 0
        """Messages that were consumed and not granted again."""
        self.paused = False

    def start(self) -> None:
        """Grants a full queue on a new connection."""
        self._owed = 0
        if self.size and not self.paused:
            self._grant(self.size)
        elif self.paused:
            self._owed = self.size

    def consumed(self, count: int = 1) -> None:
        """Records messages that the user took, or that were dropped."""
        self._owed += count
        if self._owed * 2 >= self.size and self.size and not self.paused:
            owed, self._owed = self._owed, 0
            self._grant(owed)

    def unconsumed(self) -> None:
        """Records that a message went back into the queue."""
        self._owed -= 1

    def one(self) -> None:
        """Grants a single message, for consumers without a queue."""
        if not self.paused:
            self._grant(1)

    def resume(self) -> None:
        """Grants what was withheld while paused."""
        self.paused = False
        if self._owed and self.size:
            owed, self._owed = self._owed, 0
            self._grant(owed)

    def ran_empty(self, used_bytes: int, limit_bytes: int) -> None:
        """The user waits for messages: an auto-scaled queue may grow."""
        if not self._auto or self.size >= self._max:
            return
        if limit_bytes and used_bytes > limit_bytes * GROW_BELOW:
            return
        grown = min(self.size * 2, self._max)
        more = grown - self.size
        self.size = grown
        if self.paused:
            self._owed += more
        else:
            self._grant(more)

    def check_memory(self, used_bytes: int, limit_bytes: int) -> None:
        """Shrinks an auto-scaled queue while received messages take too much memory."""
        if self._auto and limit_bytes and used_bytes > limit_bytes * SHRINK_ABOVE and self.size > 1:
            half = self.size // 2
            self._owed -= self.size - half
            self.size = half
