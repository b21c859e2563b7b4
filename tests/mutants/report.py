"""The campaign's scores: mutants, killed, equivalent, survivors and score of each package."""

import json
from dataclasses import dataclass

from tests.mutants.mutation import Mutation
from tests.mutants.results import KILLED, Equivalents, Results, Tried
from tests.mutants.suites import Suite


@dataclass(frozen=True, slots=True)
class Score:
    """What the tests said of a package's mutants."""

    package: str
    mutants: int
    equivalent: int
    tried: int
    """Without the equivalent ones."""
    survivors: tuple[tuple[Mutation, Tried], ...]
    survived_first: int
    """How many survived when they were tried first, before the tests that they led to."""
    minimum: float

    @property
    def killed(self) -> int:
        return self.tried - len(self.survivors)

    @property
    def share(self) -> float | None:
        """The share of killed mutants; None if none was tried."""
        return self.killed / self.tried if self.tried else None

    @property
    def passed(self) -> bool:
        return self.share is None or self.share >= self.minimum

    def row(self) -> dict[str, object]:
        """The score as a document for scripts."""
        return {
            "package": self.package,
            "mutants": self.mutants,
            "equivalent": self.equivalent,
            "tried": self.tried,
            "killed": self.killed,
            "survivors": len(self.survivors),
            "score": self.share,
            "minimum": self.minimum,
        }


def scores_of(
    suites: list[Suite], chosen: dict[str, list[Mutation]], results: Results
) -> list[Score]:
    """Returns the score of each package, over its chosen mutants that were tried."""
    known, scores = Equivalents(), []
    for suite in suites:
        mutations = [each for each in chosen[suite.name] if known.reason(each) is None]
        pairs = [(each, tried) for each in mutations if (tried := results.get(each)) is not None]
        valid = [(each, tried) for each, tried in pairs if tried.outcome != "invalid"]
        scores.append(
            Score(
                suite.name,
                mutants=len(chosen[suite.name]),
                equivalent=len(chosen[suite.name]) - len(mutations),
                tried=len(valid),
                survivors=tuple(pair for pair in valid if pair[1].outcome not in KILLED),
                survived_first=sum(_survived_first(results, each) for each, _ in valid),
                minimum=suite.score_min,
            )
        )
    return scores


def _survived_first(results: Results, mutation: Mutation) -> bool:
    first = results.first(mutation)
    return first is not None and first.outcome not in KILLED


def show(scores: list[Score], *, as_json: bool) -> None:
    """Prints survivors and scores."""
    survivors = [(score.package, tried) for score in scores for _, tried in score.survivors]
    if as_json:
        named = [
            {"package": package, "outcome": tried.outcome, "name": tried.name}
            for package, tried in survivors
        ]
        print(json.dumps({"packages": [score.row() for score in scores], "survivors": named}))
        return
    for _, tried in survivors:
        print(f"{tried.outcome:9s} {tried.key} {tried.name}")
    print(f"{'package':16s} mutants equivalent   tried  killed survivors   score minimum")
    for score in scores:
        share = "      -" if score.share is None else f"{score.share:7.1%}"
        print(
            f"{score.package:16s} {score.mutants:7d} {score.equivalent:10d} {score.tried:7d} "
            f"{score.killed:7d} {len(score.survivors):9d} {share} {score.minimum:7.0%}"
        )
