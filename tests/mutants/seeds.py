"""`try_seeds`: mutants against the simulation, each for some seeds in forked processes."""

from collections.abc import Callable
from typing import Final

from tests.mutants.children import Work, run_all
from tests.mutants.mutation import Mutation
from tests.mutants.results import Outcome
from tests.mutants.swap import LiveFunctions
from tests.sim import determinism
from tests.sim.run import run_forked

SEED_S_MAX: Final = 20.0
"""For one seed, on a loaded machine."""


def try_seeds(
    mutations: list[Mutation],
    seeds: int,
    jobs: int,
    found: Callable[[Mutation, Outcome, str, int], None],
) -> None:
    """A mutant is killed where a seed breaks a rule of the simulation."""
    determinism.install()
    from tests.sim.simulate import simulate

    live = LiveFunctions()

    def tried(mutation: Mutation) -> tuple[Outcome, str, int]:
        try:
            if not live.install(mutation.compiled()):
                return "survived", "", 0
        except (SyntaxError, ValueError) as error:
            return "invalid", str(error), 0
        for number, result in enumerate(run_forked(range(seeds), simulate, jobs=1), 1):
            if result.violations:
                return "killed", f"seed {result.seed}: {result.violations[0]}", number
        return "survived", "", seeds

    works = [
        Work(each, lambda _, mutation=each: tried(mutation), seeds * SEED_S_MAX)  # type: ignore[misc]
        for each in mutations
    ]
    for mutation, answer in run_all(works, jobs):
        found(mutation, *(answer or ("timeout", "", seeds)))
