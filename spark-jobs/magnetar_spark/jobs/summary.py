"""What a job did: counted while it runs, printed or written as one JSON document at its end.

    {"job": "offload", "state": "succeeded", "startedMs": 0, "finishedMs": 0, "error": "",
     "metrics": {"ledgersOffloaded": 3}, "details": [{"topic": "..."}]}

`state` is `succeeded` (also where there was nothing to do), `partial` where some of the work could
not be done and the next run will try it again, or `failed`. Details are bounded (DETAILS_MAX), and
what does not fit into a pod's termination message is left out from the end.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

DETAILS_MAX: Final = 1000
ERROR_CHARS_MAX: Final = 400
TERMINATION_BYTES_MAX: Final = 4096
"""What Kubernetes keeps of a container's last words."""


class State(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"


EXIT_CODES: Final = {State.SUCCEEDED: 0, State.FAILED: 1, State.PARTIAL: 3}
"""2 is for bad arguments, 128 + N for signal N."""


@dataclass(slots=True)
class Summary:
    """See the module's text. A job counts into its own and returns it."""

    job: str
    started_ms: int = 0
    finished_ms: int = 0
    metrics: dict[str, int | float] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)
    state: State = State.SUCCEEDED
    error: str = ""

    def count(self, name: str, by: int | float = 1) -> None:
        """Adds to a metric, which is there from then on also where it is 0."""
        self.metrics[name] = self.metrics.get(name, 0) + by

    def detail(self, **fields: Any) -> None:
        """One thing of note: values that JSON has."""
        if len(self.details) < DETAILS_MAX:
            self.details.append(fields)

    def failure(self, error: str, **fields: Any) -> None:
        """A part of the work that could not be done: the job is done in part at best."""
        self.count("failed")
        self.detail(**fields, error=error[:ERROR_CHARS_MAX])
        if self.state is State.SUCCEEDED:
            self.state, self.error = State.PARTIAL, error[:ERROR_CHARS_MAX]

    def fail(self, error: str) -> None:
        """The job as a whole."""
        self.state, self.error = State.FAILED, error[:ERROR_CHARS_MAX]

    @property
    def exit_code(self) -> int:
        """Of the process."""
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
        """For people."""
        seconds = (self.finished_ms - self.started_ms) / 1000
        yield f"{self.job}: {self.state} in {seconds:.1f} s"
        width = max(map(len, self.metrics), default=0)
        for name, value in self.metrics.items():
            yield f"  {name:<{width}}  {_number(value)}"
        for each in self.details:
            if "error" in each or "note" in each:
                yield "  " + ", ".join(f"{name} {value}" for name, value in each.items())
        if self.error and self.state is State.FAILED:
            yield f"  {self.error}"


_number: Callable[[int | float], str] = "{:,}".format


def _most(count: int, document: Callable[[int], bytes]) -> int:
    """The greatest number, up to `count`, with which the document fits; 0 if none does."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        if len(document(middle)) <= TERMINATION_BYTES_MAX:
            low = middle
        else:
            high = middle - 1
    return low
