"""The log lines of all nodes: counts of events, and unexpected errors.

Every line counts as something that happened sometimes: a name that is never counted over many
seeds shows what the simulation does not reach. An error with a traceback is a fault of the code,
whatever the network and the disks did.
"""

import logging
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final

from tests.sim.loop import PROCESS, SimLoop

from magnetar.core.errors import MagnetarError
from magnetar.core.log import FIELDS
from magnetar.core.tasks import TaskSet

STORY_LINES_MAX: Final = 400


class Watching(logging.Handler):
    """See the module's text."""

    def __init__(self, loop: SimLoop, *, trace: bool) -> None:
        super().__init__(logging.INFO)
        self.loop = loop
        self.trace = trace
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.steps: set[str] = set()
        """Tasks that continue without their caller, so that no one receives a refusal."""
        self.corrupt: dict[str, str] = {}
        """Cursors of which a ledger is gone for good, and when that was seen first."""
        self.story: list[str] = []

    def install(self) -> None:
        root = logging.getLogger()
        root.handlers[:] = [self]
        root.setLevel(logging.INFO)

    def watch_steps(self) -> None:
        """Knows what `TaskSet.finish` runs from now on; in the process of this run only."""
        finish, steps = TaskSet.finish, self.steps

        def noted(self: TaskSet, coroutine: Any, name: str) -> Coroutine[Any, Any, Any]:
            steps.add(f"{self.owner}/{name}")
            return finish(self, coroutine, name)

        TaskSet.finish = noted  # type: ignore[method-assign]

    def tell(self, text: str) -> None:
        """A line of the run's story."""
        line = f"{self.loop.now:9.4f} {text}"
        if self.trace:
            print(line)
        if len(self.story) < STORY_LINES_MAX:
            self.story.append(line)

    def emit(self, record: logging.LogRecord) -> None:
        event = record.getMessage()
        self.counts[f"{record.name.removeprefix('magnetar.')}: {event}"] += 1
        process = PROCESS.get(self.loop.world)
        fields = getattr(record, FIELDS, {})
        unexpected = record.levelno >= logging.ERROR and record.exc_info and process.alive
        if unexpected and fields.get("task") in self.steps:
            assert record.exc_info is not None
            unexpected = not isinstance(record.exc_info[1], MagnetarError)
        if event == "cursor cannot be read" and "does not exist" in str(fields):
            # Bookies that are away pass, and one disk that is lost harms no cursor.
            self.corrupt.setdefault(str(fields.get("error")), f"{self.loop.now:.4f} {process.name}")
        if not self.trace and not unexpected:
            return
        pairs = " ".join(f"{key}={value}" for key, value in fields.items())
        text = f"{process.name:<12} {record.levelname.lower():<7} {record.name} {event} {pairs}"
        if unexpected:
            assert record.exc_info is not None
            trace = logging.Formatter().formatException(record.exc_info)
            self.errors.append(f"{self.loop.now:.4f} {text}\n{trace}")
        if self.trace:
            print(f"{self.loop.now:9.4f} {text}")
            if record.exc_info and record.exc_info[0] is not None:
                print(logging.Formatter().formatException(record.exc_info))
