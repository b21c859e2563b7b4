"""One timer for many waits of the same length, so that a wait costs no timer of its own."""

import asyncio
from collections.abc import Callable

from magnetar.core.log import get_logger

log = get_logger("magnetar.core")


class Deadlines:
    """Calls `on_late` of each wait that is not removed within `timeout_s`.

    A wait is late by up to an eighth of `timeout_s`: the timer checks that often, while anything
    waits.
    """

    __slots__ = ("_interval_s", "_timeout_s", "_timer", "_waits")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._interval_s = timeout_s / 8
        self._waits: dict[Callable[[], None], float] = {}
        """The waits with their deadlines, in the order of these."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, on_late: Callable[[], None]) -> None:
        """Begins a wait."""
        loop = asyncio.get_running_loop()
        self._waits[on_late] = loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = loop.call_later(self._interval_s, self._check)

    def remove(self, on_late: Callable[[], None]) -> None:
        """Ends a wait, if it is under way."""
        self._waits.pop(on_late, None)

    def close(self) -> None:
        """Forgets all waits."""
        self._waits.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waits:
            on_late, deadline = next(iter(self._waits.items()))
            if deadline > now:
                break
            del self._waits[on_late]
            try:
                on_late()
            except Exception:
                log.exception("a wait past its deadline could not be ended")
        self._timer = loop.call_later(self._interval_s, self._check) if self._waits else None
