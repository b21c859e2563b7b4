"""A deadline by progress for frames under way: slow uploads of large frames live, dead ones end.

A peer that begins a frame has to send PROGRESS_BYTES_MIN more of it within each stretch of
`stall_s`, or to finish it. A deadline for the whole frame would have to allow for the slowest link
and the largest frame, and would keep a dead connection open for as long. A sweep over the
connections asks from time to time; a read that finishes a frame calls `restart`. Without that call,
a busy peer whose reads always end inside a small frame would look like one that has stalled.
"""

from typing import Final

PROGRESS_BYTES_MIN: Final = 1024
"""In 25 s, that is 41 bytes a second: slower than any link in use."""


class Progress:
    """What a sweep saw of one connection's frame."""

    __slots__ = ("_bytes", "_since", "_stall_s")

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._bytes = 0
        self._since = 0.0

    def restart(self) -> None:
        """Forgets what was seen: the frame is finished, or nobody read from the connection."""
        self._bytes = 0

    def stalled(self, now: float, unfinished_bytes: int) -> bool:
        """Whether the frame, of which so many bytes are here, has not grown for too long."""
        seen = self._bytes
        if not unfinished_bytes:
            self._bytes = 0
        elif not seen or unfinished_bytes < seen or unfinished_bytes >= seen + PROGRESS_BYTES_MIN:
            self._bytes, self._since = unfinished_bytes, now
        else:
            return now - self._since > self._stall_s
        return False
