"""A contradiction between a history and a promise."""

from dataclasses import dataclass
from typing import Final

from tests.history.events import Event

PAGE: Final = "docs/understand/guarantees.md"


@dataclass(frozen=True, slots=True)
class Finding:
    """Names the promise, and the events that cannot all be true if the promise holds."""

    rule: str
    """The module of the rule."""
    promise: str
    """The section of the page of guarantees."""
    text: str
    events: tuple[Event, ...]

    def __str__(self) -> str:
        lines = [f"[{self.rule}] {self.text}", f"    promise: {PAGE}, {self.promise!r}"]
        return "\n".join(lines + [f"    event:   {event}" for event in self.events])
