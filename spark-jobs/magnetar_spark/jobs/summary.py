"""The summary of a job: collected while it runs, written as one JSON document at its end.

    {"job": "offload", "state": "succeeded", "startedMs": 0, "finishedMs": 0, "error": "",
     "metrics": {"ledgersOffloaded": 3}, "details": [{"topic": "..."}]}

`state` is `succeeded` (also if there was nothing to do), `partial` if some of the work could not be
done and the next run will retry it, or `failed`. Details are bounded (DETAILS_MAX), and cut from
the end to fit into a pod's termination message.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

DETAILS_MAX: Final = 1000
ERROR_CHARS_MAX: Final = 400
TERMINATION_BYTES_MAX: Final = 4096
"""The size to which Kubernetes truncates a termination message."""


class State(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"


EXIT_CODES: Final = {State.SUCCEEDED: 0, State.FAILED: 1, State.PARTIAL: 3}
"""2 is for bad arguments, 128 + N for signal N."""


@dataclass(slots=True)
class Summary:
    """The counters, details and result of a job, which fills it in and returns it."""

    job: str
    started_ms: int = 0
    finished_ms: int = 0
    metrics: dict[str, int | float] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)
    state: State = State.SUCCEEDED
    error: str = ""

    def count(self, name: str, by: int | float = 1) -> None:
        """Adds to a metric; by 0, it creates the metric."""
        self.metrics[name] = self.metrics.get(name, 0) + by

    def detail(self, **fields: Any) -> None:
        """Adds a detail; its values must be JSON types."""
        if len(self.details) < DETAILS_MAX:
            self.details.append(fields)

    def failure(self, error: str, **fields: Any) -> None:
        """Reports a part of the work that could not be done, which makes the job partial."""
        self.count("failed")
        self.detail(**fields, error=error[:ERROR_CHARS_MAX])
        if self.state is State.SUCCEEDED:
            self.state, self.error = State.PARTIAL, error[:ERROR_CHARS_MAX]

    def fail(self, error: str) -> None:
        """Reports the failure of the whole job."""
        self.state, self.error = State.FAILED, error[:ERROR_CHARS_MAX]

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return EXIT_CODES[self.state]

    def document(self, details_max: int = DETAILS_MAX, metrics_max: int | None = None) -> bytes:
        """The JSON document, on one line."""
        return msgspec.json.encode(
            {
                "job": self.job,
                "state": self.state,
                "startedMs": self.started_ms,
                "finishedMs": self.finished_ms,
                "error": self.error,
                "metrics": dict(list(self.metrics.items())[:metrics_max]),
                "details": self.details[:details_max],
            }
        )

    def termination_message(self) -> bytes:
        """The document with as many details, then metrics, as fit into TERMINATION_BYTES_MAX."""
        metrics = _most(len(self.metrics), lambda count: self.document(0, count))
        return self.document(
            _most(len(self.details), lambda count: self.document(count, metrics)), metrics
        )

    def lines(self) -> Iterator[str]:
        """The summary as text for people."""
        seconds = (self.finished_ms - self.started_ms) / 1000
        yield f"{self.job}: {self.state} in {seconds:.1f} s"
        width = max(map(len, self.metrics), default=0)
        for name, value in self.metrics.items():
            yield f"  {name:<{width}}  {_number(value)}"
        for detail in self.details:
            if "error" in detail or "note" in detail:
                yield "  " + ", ".join(f"{name} {value}" for name, value in detail.items())
        if self.error and self.state is State.FAILED:
            yield f"  {self.error}"


_number: Callable[[int | float], str] = "{:,}".format


def _most(count: int, document: Callable[[int], bytes]) -> int:
    """The greatest number up to `count` for which the document fits; 0 if none does."""
    sizes = range(1, count + 1)
    return bisect_right(sizes, TERMINATION_BYTES_MAX, key=lambda number: len(document(number)))
