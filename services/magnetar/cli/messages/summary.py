"""The summary of a command, on stderr."""

import sys
import time
from dataclasses import dataclass, field
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(slots=True)
class Summary:
    """Counts messages, and prints them with their rate."""

    verb: str
    quiet: bool = False
    messages: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)

    def print(self, *, interrupted: bool = False) -> None:
        """Prints the line, unless `quiet`."""
        if not self.quiet:
            print(
                self.line(time.monotonic() - self._started, interrupted=interrupted),
                file=sys.stderr,
            )

    def line(self, elapsed_s: float, *, interrupted: bool) -> str:
        """Returns the summary as text."""
        rate = self.messages / elapsed_s if elapsed_s > 0 else 0.0
        text = (
            f"{self.messages} {'message' if self.messages == 1 else 'messages'} {self.verb}, "
            f"{size_text(self.bytes)} in {elapsed_s:.2f} s ({rate:.0f} msg/s)"
        )
        notes = [*self.notes, *(["interrupted"] if interrupted else [])]
        return "; ".join([text, *notes])


def size_text(size: float) -> str:
    """Returns a number of bytes with a unit."""
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
