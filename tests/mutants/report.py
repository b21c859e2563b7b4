"""The campaign's table: mutants, killed, equivalent, survivors and score of each package."""

import json

from tests.mutants.mutation import Mutation
from tests.mutants.results import KILLED, Equivalents, Results
from tests.mutants.suites import Suite


def show_report(
    suites: list[Suite], chosen: dict[str, list[Mutation]], results: Results, *, as_json: bool
) -> bool:
    """Prints it; whether every package that was tried reaches its minimum."""
    known = Equivalents()
    rows, survivors, passed = [], [], True
    for suite in suites:
        mutations = [each for each in chosen[suite.name] if known.reason(each) is None]
        tried = [one for one in results.of(mutations) if one.outcome != "invalid"]
        killed = sum(one.outcome in KILLED for one in tried)
        survivors += [one for one in tried if one.outcome not in KILLED]
        score = killed / len(tried) if tried else None
        passed = passed and (score is None or score >= suite.score_min)
        rows.append(
            {
                "package": suite.name,
                "mutants": len(chosen[suite.name]),
                "equivalent": len(chosen[suite.name]) - len(mutations),
                "tried": len(tried),
                "killed": killed,
                "survivors": len(tried) - killed,
                "score": score,
                "minimum": suite.score_min,
            }
        )
    if as_json:
        named = [
            {"package": one.package, "outcome": one.outcome, "name": one.name} for one in survivors
        ]
        print(json.dumps({"packages": rows, "survivors": named}))
        return passed
    for one in survivors:
        print(f"{one.outcome:9s} {one.key} {one.name}")
    print(f"{'package':16s} mutants equivalent   tried  killed survivors   score minimum")
    for row in rows:
        shown = "      -" if row["score"] is None else f"{row['score']:7.1%}"
        print(
            f"{row['package']:16s} {row['mutants']:7d} {row['equivalent']:10d} {row['tried']:7d} "
            f"{row['killed']:7d} {row['survivors']:9d} {shown} {row['minimum']:7.0%}"
        )
    return passed
