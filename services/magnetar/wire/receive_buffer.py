"""Receive buffers of connections: large while a connection is busy, none while it is idle.

A decoder takes a buffer when its transport is about to read, and releases it once every frame in it
is decoded. All connections of the process share the spare buffers, the latest first, so that the
memory being read into stays in the processor's cache. Transports request memory only if there are
bytes to read, so tens of thousands of idle connections hold no memory.

The rest of an incomplete frame stays in place. If a connection trickles (little read, little left),
its bytes move to a small buffer, which doubles while a frame fills it: the peer has to send as many
bytes as a large frame costs us.

Invariants: bytes `start` to `end` are received and not decoded yet. At least `SLACK_BYTES` of
readable memory follow `end`, so that a scanner may read past the last frame before it checks.
Bound: one buffer of at most `frame_bytes_max` or `buffer_bytes`, whichever is greater, plus slack,
for each connection with an incomplete frame; `SPARE_BUFFERS_MAX` of `BUFFER_BYTES_DEFAULT` and one
of each of `GROWN_BYTES` for all others together.
"""

from typing import Final

BUFFER_BYTES_DEFAULT: Final = 512 * 1024
SMALL_BUFFER_BYTES: Final = 16 * 1024
SLACK_BYTES: Final = 64
SPARE_BUFFERS_MAX: Final = 4
GROWN_BYTES: Final = (2 * BUFFER_BYTES_DEFAULT, 4 * BUFFER_BYTES_DEFAULT)
"""A spare buffer of each of these sizes is kept, too, after a frame needed it: if such frames
follow each other, as answers to reads do, allocating memory costs twice as much as decoding.
"""

_spare: list[bytearray] = []
_spare_grown: dict[int, bytearray] = {}
_NOTHING: Final = bytearray()
_NOTHING_VIEW: Final = memoryview(_NOTHING)


class ReceiveBuffer:
    """The bytes of one connection that are received and not decoded yet."""

    __slots__ = ("buffer_bytes", "data", "end", "frame_bytes_max", "start", "view")

    def __init__(self, frame_bytes_max: int, buffer_bytes: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.buffer_bytes = buffer_bytes
        self.data = _NOTHING
        self.view = _NOTHING_VIEW
        self.start = 0
        self.end = 0

    @property
    def held_bytes(self) -> int:
        """Memory held now; 0 without an incomplete frame."""
        return len(self.data)

    def writable(self) -> memoryview:
        """Returns the free memory after the received bytes; never empty."""
        room = len(self.data) - SLACK_BYTES - self.end
        if room <= 0:
            self._make_room()
        elif self.start and room < self.buffer_bytes >> 1:
            self._move_to(self.data)
        return self.view[self.end : len(self.data) - SLACK_BYTES]

    def resize(self, frame_bytes_max: int, buffer_bytes: int) -> None:
        """Raises the bounds, which the next buffer has; received bytes stay where they are."""
        if frame_bytes_max < self.frame_bytes_max or buffer_bytes < self.buffer_bytes:
            raise ValueError("the bounds of a receive buffer may only grow")
        self.frame_bytes_max = frame_bytes_max
        self.buffer_bytes = buffer_bytes

    def settle(self, received_bytes: int) -> None:
        """Releases unneeded memory; called after all complete frames are decoded."""
        left_bytes = self.end - self.start
        if not left_bytes:
            self._release()
            self.start = self.end = 0
        elif received_bytes + left_bytes < SMALL_BUFFER_BYTES < len(self.data) - SLACK_BYTES:
            self._move_to(_new(SMALL_BUFFER_BYTES))

    def _make_room(self) -> None:
        left_bytes = self.end - self.start
        size_bytes = len(self.data) - SLACK_BYTES
        if self.data is _NOTHING:
            pooled = _spare and self.buffer_bytes == BUFFER_BYTES_DEFAULT
            self._move_to(_spare.pop() if pooled else _new(self.buffer_bytes))
        elif left_bytes <= size_bytes >> 1:
            self._move_to(self.data)
        else:
            grown_bytes = min(2 * size_bytes, self.frame_bytes_max)
            self._move_to(_spare_grown.pop(grown_bytes, _NOTHING) or _new(grown_bytes))

    def _move_to(self, data: bytearray) -> None:
        """Moves the undecoded bytes to the front of `data`, which may be the current buffer."""
        left_bytes = self.end - self.start
        if left_bytes:
            data[:left_bytes] = self.view[self.start : self.end]
        if data is not self.data:
            self._release()
            self.data = data
            self.view = memoryview(data)
        self.start, self.end = 0, left_bytes

    def _release(self) -> None:
        if len(self.data) == BUFFER_BYTES_DEFAULT + SLACK_BYTES and len(_spare) < SPARE_BUFFERS_MAX:
            _spare.append(self.data)
        elif (size_bytes := len(self.data) - SLACK_BYTES) in GROWN_BYTES:
            _spare_grown[size_bytes] = self.data
        self.data = _NOTHING
        self.view = _NOTHING_VIEW


def _new(size_bytes: int) -> bytearray:
    return bytearray(size_bytes + SLACK_BYTES)
