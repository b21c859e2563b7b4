"""Limits the log lines of a repeating cause, so that a peer cannot fill the log."""

import time
from typing import Final

REPEAT_S: Final = 3_600.0
"""A continuing cause is logged once in this time."""
CAUSES_MAX: Final = 1_024
"""The causes that are remembered; beyond that, the oldest is forgotten."""


class Causes:
    """The causes that were logged recently."""

    __slots__ = ("_logged_s", "_most")

    def __init__(self, most: int = CAUSES_MAX) -> None:
        """Causes that are remembered."""
        self._most = most
        self._logged_s: dict[tuple[str, ...], float] = {}

    def is_new(self, *cause: str, now_s: float | None = None) -> bool:
        """Whether the cause was not logged within REPEAT_S; it counts as logged now, then.

        `now_s` is a monotonic time in seconds, by default the current one.
        """
        now_s = time.monotonic() if now_s is None else now_s
        logged_s = self._logged_s.get(cause)
        if logged_s is not None and now_s - logged_s < REPEAT_S:
            return False
        self._logged_s.pop(cause, None)
        if len(self._logged_s) >= self._most:
            del self._logged_s[next(iter(self._logged_s))]
        self._logged_s[cause] = now_s
        return True
