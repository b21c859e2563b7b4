"""Limits the log lines of a repeating cause, so that a peer cannot fill the log."""

import hashlib
import time
from typing import Final

REPEAT_S: Final = 3_600.0
"""A continuing cause is logged once in this time."""
CAUSES_MAX: Final = 1_024
"""The causes that are remembered; beyond that, the oldest is forgotten."""
CAUSE_CHARS_MAX: Final = 256
"""Of a longer text, which clients may choose, only a digest is remembered."""


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
        cause = tuple(map(_short, cause))
        logged_s = self._logged_s.get(cause)
        if logged_s is not None and now_s - logged_s < REPEAT_S:
            return False
        self._logged_s.pop(cause, None)
        if len(self._logged_s) >= self._most:
            del self._logged_s[next(iter(self._logged_s))]
        self._logged_s[cause] = now_s
        return True


class Shares:
    """Bounds how many lines the causes of one client take, whatever their number."""

    __slots__ = ("_lines", "_most")

    def __init__(self, most: int) -> None:
        """`most` is the number of lines of a client within REPEAT_S."""
        self._most = most
        self._lines: dict[str, tuple[float, int]] = {}
        """By client: when its period ends, and the lines in it."""

    def has_room(self, client: str, now_s: float | None = None) -> bool:
        """Whether the client may have one more line, which then counts.

        Remembers CAUSES_MAX clients; beyond that, the oldest is forgotten.
        """
        now_s = time.monotonic() if now_s is None else now_s
        client = _short(client)
        ends_s, lines = self._lines.pop(client, (now_s + REPEAT_S, 0))
        if now_s >= ends_s:
            ends_s, lines = now_s + REPEAT_S, 0
        if len(self._lines) >= CAUSES_MAX:
            del self._lines[next(iter(self._lines))]
        room = lines < self._most
        self._lines[client] = ends_s, lines + room
        return room


def _short(text: str) -> str:
    if len(text) <= CAUSE_CHARS_MAX:
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass")).hexdigest()
