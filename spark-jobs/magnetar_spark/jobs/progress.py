"""Shows the progress of a job: bars on a terminal, occasional lines elsewhere, or nothing.

    with job.progress.units("ledgers", 12) as advance:      # the job's own units
        advance(1)
    with job.progress.stages(spark.sparkContext):           # Spark's stages and their tasks
        rdd.collect()

Progress goes to stderr; stdout is for the result.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S: Final = 0.5
LINE_EVERY_S: Final = 10.0
BYTES: Final = "bytes"
"""The unit that is displayed as MB and MB/s."""

Advance = Callable[[int], None]


class Progress(Protocol):
    """Displays remarks, units of work, and Spark's stages."""

    def say(self, text: str) -> None:
        """Displays one remark."""

    def units(self, text: str, total: int, unit: str = "") -> AbstractContextManager[Advance]:
        """Displays a count up to `total`; `unit` may be BYTES."""

    def stages(
        self, context: "SparkContext", poll: Callable[[], None] | None = None
    ) -> AbstractContextManager[None]:
        """Displays Spark's active stages; calls `poll` before each update, from a thread."""


class Silence:
    """Displays nothing, for `--no-progress`."""

    def say(self, text: str) -> None:
        """Does nothing."""

    @contextmanager
    def units(self, text: str, total: int, unit: str = "") -> Iterator[Advance]:  # noqa: ARG002
        """Does nothing."""
        yield lambda count: None  # noqa: ARG005

    @contextmanager
    def stages(
        self, context: "SparkContext", poll: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Only calls `poll`."""
        with _polled(context, lambda stages: None, poll):  # noqa: ARG005
            yield


class Lines:
    """Writes lines, for pipes and pods: at most one per LINE_EVERY_S, and one at the end."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._write = write or sys.stderr.write
        self._said_at = time.monotonic()

    def say(self, text: str) -> None:
        """Writes a line at once."""
        self._said_at = time.monotonic()
        self._write(text + "\n")
        sys.stderr.flush()

    def _now_and_then(self, text: str) -> None:
        if time.monotonic() - self._said_at >= LINE_EVERY_S:
            self.say(text)

    @contextmanager
    def units(self, text: str, total: int, unit: str = "") -> Iterator[Advance]:
        """Writes a count; see Progress."""
        done = 0

        def shown() -> str:
            if unit == BYTES:
                return f"{text}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
            return f"{text}: {done:,} of {total:,}{' ' if unit else ''}{unit}"

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._now_and_then(shown())

        yield advance
        self.say(shown())

    @contextmanager
    def stages(
        self, context: "SparkContext", poll: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Writes Spark's stages; see Progress."""

        def show(stages: "list[Stage]") -> None:
            for number, name, done, total in stages:
                self._now_and_then(f"stage {number} ({name}): {done:,} of {total:,} tasks")

        with _polled(context, show, poll):
            yield


class Bars:
    """Draws bars, for terminals."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._open = 0

    def say(self, text: str) -> None:
        """Prints a line above the bars."""
        self._bars.console.print(text, highlight=False, markup=False)

    @contextmanager
    def _live(self) -> Iterator[None]:
        if self._open == 0:
            self._bars.start()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if self._open == 0:
                self._bars.stop()

    @contextmanager
    def units(self, text: str, total: int, unit: str = "") -> Iterator[Advance]:
        """Draws a bar; see Progress."""
        done, started = 0, time.monotonic()

        def shown() -> str:
            if unit != BYTES:
                return f"{done:,}/{total:,} {unit}".rstrip()
            rate = done / 1e6 / max(0.001, time.monotonic() - started)
            return f"{done / 1e6:,.1f}/{total / 1e6:,.1f} MB, {rate:,.1f} MB/s"

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._bars.update(task, completed=done, shown=shown())

        with self._live():
            task = self._bars.add_task(text, total=total, shown=shown())
            try:
                yield advance
            finally:
                self._bars.remove_task(task)

    @contextmanager
    def stages(
        self, context: "SparkContext", poll: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Draws a bar for each of Spark's stages; see Progress."""
        tasks: dict[int, int] = {}

        def show(stages: "list[Stage]") -> None:
            active = {number for number, _, _, _ in stages}
            for number in tasks.keys() - active:
                self._bars.remove_task(tasks.pop(number))  # type: ignore[arg-type]
            for number, name, done, total in stages:
                if number not in tasks:
                    tasks[number] = self._bars.add_task(f"stage {number} {name}", shown="")
                self._bars.update(
                    tasks[number],  # type: ignore[arg-type]
                    completed=done,
                    total=total,
                    shown=f"{done:,}/{total:,} tasks",
                )

        with self._live(), _polled(context, show, poll):
            yield
        show([])


Stage = tuple[int, str, int, int]
"""Number, name, tasks done, tasks."""


@contextmanager
def _polled(
    context: "SparkContext",
    show: Callable[[list[Stage]], None],
    poll: Callable[[], None] | None,
) -> Iterator[None]:
    """Polls Spark's stages every POLL_S in a thread while the body runs."""
    over = threading.Event()
    tracker = context.statusTracker()

    def poll_stages() -> None:
        while not over.wait(POLL_S):
            stages: list[Stage] = []
            for number in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(number)
                if stage is not None:
                    stages.append((number, stage.name, stage.numCompletedTasks, stage.numTasks))
            if poll is not None:
                poll()
            show(stages)

    thread = threading.Thread(target=poll_stages, name="job progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if poll is not None:
            poll()


def chosen(*, wanted: bool) -> Progress:
    """The progress display that suits stderr."""
    if not wanted:
        return Silence()
    if sys.stderr.isatty():
        try:
            return Bars()
        except ModuleNotFoundError:
            return Lines()  # rich comes with magnetar[cli]
    return Lines()
