"""Unforeseen failures of the bookie's threads and tasks: each makes the bookie unhealthy.

A full or failing disk is foreseen: each part answers it itself, and tries again. Everything else
(a bug, memory that ran out) is noted here, so that it is logged with its traceback, and the bookie
is not ready until the part has worked again or the process was restarted. For the event loop's
thread.
"""

from magnetar.bookie.api import BookieError
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie")


class Faults:
    """The parts of a bookie that failed, by name."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def note(self, part: str, error: BaseException) -> None:
        """A part failed; what is foreseen only counts as the end of what was not."""
        if isinstance(error, (OSError, BookieError)):
            self.clear(part)
            return
        text = f"{part} failed: {error!r}"
        if self._texts.get(part) != text:
            self._texts[part] = text
            log.error("a part of the bookie failed", part=part, exc_info=error)

    def stop(self, part: str, reason: str) -> None:
        """A part stopped for good."""
        self._texts[part] = f"{part} stopped until a restart: {reason}"

    def clear(self, part: str) -> None:
        """A part worked."""
        if self._texts:
            self._texts.pop(part, None)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __str__(self) -> str:
        """Every failure that stands; empty if there is none."""
        return "; ".join(self._texts.values())
