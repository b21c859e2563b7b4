"""The two clocks of a simulated node: durations by the loop's time, wall-clock time with jumps."""

from typing import Final

from tests.sim.loop import SimLoop

WALL_MS_AT_START: Final = 1_800_000_000_000


class SimClock:
    """See `core.clock.Clock`. A jump moves only what people and clients see."""

    def __init__(self, loop: SimLoop, *, origin_s: float = 0.0, skew_ms: int = 0) -> None:
        self._loop = loop
        self._origin_s = origin_s
        self._skew_ms = self.skew_ms_max = skew_ms

    @property
    def skew_ms(self) -> int:
        """How far the wall clock is ahead of the true time."""
        return self._skew_ms

    @skew_ms.setter
    def skew_ms(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms
        self.skew_ms_max = max(self.skew_ms_max, skew_ms)

    def now_ms(self) -> int:
        return WALL_MS_AT_START + int(self._loop.now * 1000) + self._skew_ms

    def monotonic(self) -> float:
        return self._loop.now + self._origin_s
