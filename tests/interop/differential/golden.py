"""Pulsar's recorded observations, the listed differences, and the comparison with both."""

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .runner import GoOn, Outcome
from .steps import Scenario, Step

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "golden" / "differential" / "pulsar_4_2_4.jsonl"
DIFFERENCES = HERE / "differences.toml"


@dataclass(frozen=True, slots=True)
class Difference:
    """Observations that differ from Pulsar's on purpose.

    Three expressions match the JSON of the step, of Pulsar's observation and of ours; `scenario`
    matches the seed and the theme. With `only`, what they do not match of the two observations
    must be the same.
    """

    reason: str
    step: str
    pulsar: str
    ours: str
    scenario: str = ""
    only: bool = False

    def covers(self, scenario: Scenario, step: Step, pulsar: Any, ours: Any) -> bool:
        if not re.search(self.scenario, f"{scenario.seed} {scenario.theme}"):
            return False
        pairs = ((self.step, step.document()), (self.pulsar, pulsar), (self.ours, ours))
        if not all(re.search(pattern, dumped(document)) for pattern, document in pairs):
            return False
        return not self.only or (
            re.sub(self.pulsar, "", dumped(pulsar)) == re.sub(self.ours, "", dumped(ours))
        )


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first observation of a scenario that differs and is not listed."""

    scenario: Scenario
    index: int
    pulsar: Any
    ours: Any

    def __str__(self) -> str:
        done = "\n".join(
            f"    {dumped(s.document())}" for s in self.scenario.steps[: self.index + 1]
        )
        return (
            f"seed {self.scenario.seed} ({self.scenario.theme}), step {self.index}:\n{done}\n"
            f"  Pulsar: {dumped(self.pulsar)}\n  ours:   {dumped(self.ours)}"
        )


def dumped(document: object) -> str:
    return json.dumps(document, ensure_ascii=False)


def recorded() -> dict[int, tuple[str, list[Any]]]:
    """Returns the digest of the steps and the observations, by seed."""
    if not GOLDEN.exists():
        return {}
    rows = map(json.loads, GOLDEN.read_text().splitlines())
    return {row[0]: (row[1], row[2]) for row in rows}


def record(rows: dict[int, tuple[str, list[Any]]]) -> None:
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        json.dumps([seed, digest, found], ensure_ascii=False, separators=(",", ":"))
        for seed, (digest, found) in sorted(rows.items())
    )
    GOLDEN.write_text("".join(f"{line}\n" for line in lines))


def differences() -> list[Difference]:
    if not DIFFERENCES.exists():
        return []
    return [Difference(**row) for row in tomllib.loads(DIFFERENCES.read_text())["difference"]]


@dataclass(slots=True)
class Comparison:
    """Judges observations as they are made, and counts which listed differences were seen."""

    listed: list[Difference] = field(default_factory=differences)
    seen: set[int] = field(default_factory=set)

    def go_on(self, scenario: Scenario) -> GoOn:
        return partial(self.accepted, scenario)

    def accepted(self, scenario: Scenario, step: Step, pulsar: Any, ours: Any) -> bool:
        """Tells whether an observation is Pulsar's or listed."""
        if pulsar == ours:
            return True
        for index, each in enumerate(self.listed):
            if each.covers(scenario, step, pulsar, ours):
                self.seen.add(index)
                return True
        return False

    def mismatches(
        self,
        scenarios: Iterable[Scenario],
        expected: dict[int, list[Any]],
        found: dict[int, Outcome],
    ) -> list[Mismatch]:
        result = []
        for scenario in scenarios:
            ours, pulsar = found[scenario.seed], expected[scenario.seed]
            if isinstance(ours, BaseException):
                result.append(Mismatch(scenario, len(scenario.steps) - 1, "no error", repr(ours)))
                continue
            last = len(ours) - 1
            if not self.accepted(scenario, scenario.steps[last], pulsar[last], ours[last]):
                result.append(Mismatch(scenario, last, pulsar[last], ours[last]))
        return result

    def stale(self) -> list[Difference]:
        """Listed differences that no scenario showed."""
        return [each for index, each in enumerate(self.listed) if index not in self.seen]
