"""What lately moved a subscription, for diagnosis: when its read position passed which message.

Nothing is recorded per message. `noted` samples the read position once per rate period while
messages are delivered, so the time of a delivery is known to within a period; older samples are
thinned out. `passed` records what acknowledges messages without a consumer: expiry, quotas, skips
and seeks. In memory only: it starts empty when the topic is loaded.

Bounds: SAMPLES_MAX samples and MOVES_MAX moves.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from magnetar.core.ids import Position

SAMPLES_MAX: Final = 64
MOVES_MAX: Final = 32

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Move:
    """Messages that a subscription passed without a consumer's acknowledgment."""

    cause: str
    """`expired`, `evicted`, `skipped` or `seek`."""
    after: Position
    upto: Position
    at_ms: int


class History:
    """The last moves of one subscription; created with the first one."""

    __slots__ = ("_moves", "_samples")

    def __init__(self) -> None:
        # Plain tuples: many subscriptions keep these, and seldom is one asked for.
        self._moves: deque[tuple[str, Pair, Pair, int]] = deque(maxlen=MOVES_MAX)
        self._samples: list[tuple[int, Pair]] = []

    def passed(self, cause: str, after: Position, upto: Position, at_ms: int) -> None:
        """Records that everything after `after` up to `upto` was passed."""
        self._moves.append((cause, after[:2], upto[:2], at_ms))

    def noted(self, at_ms: int, read_position: Position) -> None:
        """Records the read position. A rewind drops the samples that it makes untrue."""
        samples = self._samples
        while samples and samples[-1][1] >= read_position:
            samples.pop()
        samples.append((at_ms, read_position[:2]))
        if len(samples) > SAMPLES_MAX:
            del samples[0:SAMPLES_MAX:2]

    def move_of(self, position: Position) -> Move | None:
        """Returns the last move that passed a message."""
        for cause, after, upto, at_ms in reversed(self._moves):
            if after < position <= upto:
                return Move(cause, Position(*after), Position(*upto), at_ms)
        return None

    def delivered(self, position: Position) -> tuple[int, int]:
        """Returns times after and before which a message was first read; 0 if not known."""
        after = 0
        for at_ms, read_position in self._samples:
            if read_position > position:
                return after, at_ms
            after = at_ms
        return after, 0
