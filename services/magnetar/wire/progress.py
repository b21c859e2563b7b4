"""A progress deadline for incomplete frames: slow uploads survive, dead connections are closed.

A peer that begins a frame must finish it, or send PROGRESS_BYTES_MIN more of it in every `stall_s`.
A deadline for the whole frame would have to allow for the slowest link and the largest frame, and
would keep a dead connection open for that long. A sweep over the connections checks the deadline;
a read that finishes a frame calls `restart`. Without that call, a busy peer whose reads always end
inside a small frame would look stalled.
"""

from typing import Final

PROGRESS_BYTES_MIN: Final = 1024
"""In 25 s, that is 41 bytes a second: slower than any link in use."""


class Progress:
    """The progress of one connection's incomplete frame, as the last sweep saw it."""

    __slots__ = ("_bytes", "_since", "_stall_s")

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._bytes = 0
        self._since = 0.0

    def restart(self) -> None:
        """Restarts the deadline: the frame is complete, or reading was paused."""
        self._bytes = 0

    def stalled(self, now: float, unfinished_bytes: int) -> bool:
        """Whether the frame, `unfinished_bytes` long so far, has not grown for too long."""
        seen = self._bytes
        if not unfinished_bytes:
            self._bytes = 0
        elif not seen or unfinished_bytes < seen or unfinished_bytes >= seen + PROGRESS_BYTES_MIN:
            self._bytes, self._since = unfinished_bytes, now
        else:
            return now - self._since > self._stall_s
        return False
