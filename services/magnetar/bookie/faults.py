"""Unexpected failures of a bookie's threads and tasks, which make the bookie unhealthy.

Each part handles a full or failing disk itself, and retries. Any other failure (a bug, or no
memory) is recorded here: it is logged with its traceback, and the bookie is not ready until the
part works again or the process restarts. For the event loop's thread.
"""

from magnetar.bookie.api import BookieError
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.faults")


class Faults:
    """The parts of a bookie that failed, by name."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def note(self, part: str, error: BaseException) -> None:
        """Records that a part failed. An expected error (of disk or bookie) clears an earlier
        fault."""
        if isinstance(error, (OSError, BookieError)):
            self.clear(part)
            return
        text = f"{part} failed: {error!r}"
        if self._texts.get(part) != text:
            self._texts[part] = text
            log.error("a part of the bookie failed", part=part, exc_info=error)

    def stop(self, part: str, reason: str) -> None:
        """Records that a part stopped until the next restart."""
        self._texts[part] = f"{part} stopped until a restart: {reason}"

    def clear(self, part: str) -> None:
        """Records that a part works."""
        if self._texts:
            self._texts.pop(part, None)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __str__(self) -> str:
        """Returns all current faults; empty if there are none."""
        return "; ".join(self._texts.values())
