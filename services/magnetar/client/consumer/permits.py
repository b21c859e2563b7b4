"""Permits: how many more messages the broker may send for one topic or partition.

The consumer grants as many as its receiver queue is long, and grants again when the user has taken
half of it. An auto-scaled queue begins at one message. It doubles when the queue is empty although
the user waits, and halves when the received messages of the client exceed its memory limit.
Without a queue, a permit is granted when a user waits.
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
        """Records messages that the user took."""
        self._owed += count
        if self._owed * 2 >= self.size and self.size and not self.paused:
            owed, self._owed = self._owed, 0
            self._grant(owed)

    def dropped(self, count: int = 1) -> None:
        """Records messages that were received, and that no user gets."""
        self.consumed(count)

    def unconsumed(self) -> None:
        """Records that a message went back into the queue."""
        self._owed -= 1

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


class UnqueuedPermits(ReceivePermits):
    """Grants an entry at a time, when a user waits and has taken the messages of the last one.

    The broker counts a batch of n as n permits although it had one, so n are granted for the next
    entry.
    """

    __slots__ = ("_awaited", "_waiting", "_withheld")

    def __init__(self, grant: Callable[[int], None], waiting: Callable[[], int]) -> None:
        """`waiting` returns the number of users that wait for a message."""
        super().__init__(0, grant, auto_scale=False)
        self._waiting = waiting
        self._awaited = False
        """Whether a permit is out for which no message was taken."""
        self._withheld = 0
        """Permits that are granted at the end of the pause."""

    def _give(self, count: int) -> None:
        if self.paused:
            self._withheld += count
        else:
            self._grant(count)

    def start(self) -> None:
        """Grants again what the users of the lost connection still wait for."""
        self._owed = self._withheld = 0
        if self._awaited:
            self._give(1)

    def consumed(self, count: int = 1) -> None:
        """Records messages that the user took; others may wait for the next entry."""
        self._owed += count
        self._awaited = False
        if self._waiting():
            self.ran_empty(0, 0)

    def dropped(self, count: int = 1) -> None:
        """Replaces the permits of messages that no user gets, so that a user does not wait."""
        self._give(count)

    def resume(self) -> None:
        """Grants what was withheld while paused."""
        self.paused = False
        if self._withheld:
            withheld, self._withheld = self._withheld, 0
            self._grant(withheld)

    def ran_empty(self, used_bytes: int, limit_bytes: int) -> None:
        """Grants the next entry to a user that waits."""
        if not self._awaited:
            self._awaited = True
            owed, self._owed = self._owed, 0
            self._give(max(owed, 1))
