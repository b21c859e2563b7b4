"""The steps of scenarios: data that says what a client or an admin does, and where.

A step is done, and observed, before the next begins. `on` is the name of a producer, consumer or
reader of the scenario. Topics are named by their last part, or, if they are not persistent,
by `non-persistent:NAME`. In paths and bodies `$N` is the scenario's namespace, `$T` its tenant.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

# Increased when the driver does something else for the same step: goldens must be recorded anew.
VERSION = 2
ALL = 1000
"""More messages than any scenario has: a step receives what there is."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action; `arguments` are those of the driver's method `op`."""

    op: str
    on: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    def document(self) -> list[object]:
        return [self.op, self.on, self.arguments]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The steps of one seed; `theme` names the family of steps it was drawn from."""

    seed: int
    theme: str
    steps: tuple[Step, ...]

    def needs_go(self) -> bool:
        return any(each.op.startswith("go_") for each in self.steps)

    def digest(self) -> str:
        """Identifies the steps, so that a golden of other steps is detected."""
        document = [VERSION, *(step.document() for step in self.steps)]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]


def step(op: str, on: str = "", **arguments: Any) -> Step:
    return Step(op, on, arguments)


def message(payload: str, **fields: object) -> dict[str, object]:
    """A message to produce; fields are those of the client's `send`, times in milliseconds."""
    return {"payload": payload, **fields}


def admin(method: str, path: str, body: object = None, **options: Any) -> Step:
    """A request to `/admin/v2/PATH`; `keep` names the fields of the answer that are compared."""
    return step("admin", method=method, path=path, body=body, **options)
