"""Shows the demo's progress on stderr: live bars on a terminal, a line every few seconds elsewhere.

Stdout is for the summary.
"""

import sys
import time
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.cli.demo.checker import Checker
from magnetar.cli.demo.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

LINE_EVERY_S: Final = 2.0
RATE_OVER_S: Final = 1.0


class Display(Protocol):
    """Shows counters and events of a run."""

    def show(self, progress: Progress, checker: Checker) -> None: ...

    def event(self, text: str) -> None: ...

    def close(self) -> None: ...


class _Rates:
    """Messages per second over the last RATE_OVER_S."""

    def __init__(self) -> None:
        self._at = 0.0
        self._counts = (0, 0)
        self.receipts = 0.0
        self.sightings = 0.0

    def update(self, checker: Checker) -> None:
        now = time.monotonic()
        if now - self._at < RATE_OVER_S:
            return
        counts = (checker.receipted, checker.sightings)
        if self._at:
            seconds = now - self._at
            self.receipts = (counts[0] - self._counts[0]) / seconds
            self.sightings = (counts[1] - self._counts[1]) / seconds
        self._at, self._counts = now, counts


class LineDisplay:
    """Prints plain lines, for logs and pipes."""

    def __init__(self) -> None:
        self._last = 0.0
        self._rates = _Rates()

    def show(self, progress: Progress, checker: Checker) -> None:
        self._rates.update(checker)
        now = time.monotonic()
        if now - self._last >= LINE_EVERY_S:
            self._last = now
            self.event(
                f"published {progress.sent}, receipted {checker.receipted} "
                f"({self._rates.receipts:,.0f}/s), consumed {checker.seen} "
                f"({self._rates.sightings:,.0f}/s), acked {progress.acked}; "
                f"{progress.consumers} consumers, {progress.server_kills} server kills"
            )

    def event(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Does nothing: no resource is open."""


class LiveDisplay:
    """Shows live bars."""

    def __init__(self, total: int) -> None:
        self._bars = _bars()
        self._rates = _Rates()
        self._tasks = {
            name: self._bars.add_task(name, total=total, note="")
            for name in ("published", "receipted", "consumed", "acked")
        }
        self._bars.start()

    def show(self, progress: Progress, checker: Checker) -> None:
        self._rates.update(checker)
        state = "up" if progress.server_up else "down"
        values = {
            "published": (
                progress.sent,
                f"server {state}, {progress.server_kills} kills, {progress.consumers} consumers",
            ),
            "receipted": (checker.receipted, f"{self._rates.receipts:,.0f}/s"),
            "consumed": (checker.seen, f"{self._rates.sightings:,.0f}/s"),
            "acked": (progress.acked, f"{checker.sightings - checker.seen} redelivered"),
        }
        for name, (count, note) in values.items():
            self._bars.update(self._tasks[name], completed=count, note=note)

    def event(self, text: str) -> None:
        self._bars.console.print(text, highlight=False)

    def close(self) -> None:
        self._bars.stop()


def _bars() -> "Bars":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )
