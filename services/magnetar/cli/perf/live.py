"""The live line of a run on a terminal: progress, recent rates as bars, latencies."""

import sys
from collections import deque
from typing import Final, TextIO

from magnetar.cli.parser import terminal_columns

BARS: Final = " ▁▂▃▄▅▆▇█"
RECENT: Final = 24
"""Rates that are shown as bars."""
_PROGRESS_COLUMNS: Final = 20
_CLEAR: Final = "\r\x1b[K"


def progress_bar(share: float, columns: int = _PROGRESS_COLUMNS) -> str:
    """Returns a bar that is full at a share of 1."""
    filled = round(min(max(share, 0.0), 1.0) * columns)
    return "█" * filled + "░" * (columns - filled)


def rate_bars(rates: "deque[float] | list[float]") -> str:
    """Returns a bar for each rate, the greatest of which is full."""
    top = max(rates, default=0.0)
    if top <= 0:
        return BARS[0] * len(rates)
    return "".join(
        BARS[max(1, round(rate / top * (len(BARS) - 1)))] if rate > 0 else BARS[0] for rate in rates
    )


class LiveLine:
    """Replaces its line on a terminal; does nothing elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.shown = self._stream.isatty()
        self._rates: deque[float] = deque(maxlen=RECENT)

    def update(self, rate: float, text: str, share: float | None) -> None:
        """Shows the rate as the newest bar, and the text."""
        if not self.shown:
            return
        self._rates.append(rate)
        head = "" if share is None else f"{progress_bar(share)} {min(share, 1.0):4.0%} "
        line = f"{head}{rate_bars(self._rates)} {text}"
        self._write(_CLEAR + line[: terminal_columns() - 1])

    def clear(self) -> None:
        """Removes the line, so that a line of the log can be printed."""
        if self.shown:
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
