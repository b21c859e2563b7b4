"""`python -m tests.sim --seeds 200 --base 0 --jobs 2`: runs seeds; `--seed 7 --trace` replays one.

Exit status 1 where a seed failed. Hashes must be the same in every run: where they are not, the
process starts itself again.
"""

import argparse
import gc
import os
import sys
import time
from collections import Counter
from functools import partial
from typing import Final

from tests.sim import determinism
from tests.sim.run import Result, run_forked

STORY_SHOWN: Final = 40
PROVE_SEEDS: Final = 300


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--base", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="one seed only, with its story")
    parser.add_argument("--trace", action="store_true", help="with --seed: every line as it comes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--bug", default="", help="with this planted bug (tests/sim/bugs)")
    parser.add_argument("--without", action="store_true", help="with --bug: its plan, not the bug")
    parser.add_argument("--hunt", action="store_true", help="each planted bug (or --bug), alone")
    parser.add_argument(
        "--prove", action="store_true", help="that recorded seeds find the bugs (or --bug)"
    )
    parser.add_argument("--counts", action="store_true", help="how often what happened")
    parser.add_argument("--hashes", action="store_true", help="the hash of each run's trace")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])  # noqa: S606
    determinism.install()
    from tests.sim.bugs import bug_of
    from tests.sim.simulate import simulate

    if arguments.hunt:
        return hunt(arguments)
    if arguments.prove:
        return prove(arguments.jobs, arguments.bug)
    bug = bug_of(arguments.bug)
    run_seed = partial(simulate, bug=bug, planted=not arguments.without)
    if arguments.seed is not None:
        gc.disable()  # as `run_forked` has it: a collection ends what a killed process left
        result = run_seed(arguments.seed, trace=arguments.trace)
        show(result, arguments.bug)
        return 1 if result.violations else 0
    seeds = range(arguments.base, arguments.base + arguments.seeds)
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    done = failed = 0
    longest = Result(-1)
    for result in run_forked(seeds, run_seed, jobs=arguments.jobs):
        done += 1
        if arguments.hashes:
            print(f"trace {result.seed} {hash_text(result)}")
        counts.update(dict.fromkeys(result.counts, 1))
        longest = max(longest, result, key=lambda one: one.real_s)
        if result.violations:
            failed += 1
            show(result, arguments.bug)
            if not arguments.keep_going:
                break
        if done % 100 == 0:
            print(f"{done} seeds, {failed} failed, {done / (time.monotonic() - begun):.1f}/s")
    took_s = time.monotonic() - begun
    print(
        f"{done} seeds from {arguments.base} in {took_s:.1f} s ({done / took_s:.1f}/s), "
        f"{failed} failed; the longest is {longest.seed} with {longest.real_s:.2f} s"
    )
    if arguments.counts:
        for name, count in sorted(counts.items()):
            print(f"{count:6d} {name}")
    return 1 if failed else 0


def hunt(arguments: argparse.Namespace) -> int:
    """Looks for every planted bug; 1 where one is not found."""
    from tests.sim.bugs import all_bugs
    from tests.sim.simulate import simulate

    missed = 0
    for bug in all_bugs().values():
        if arguments.bug not in ("", bug.name):
            continue
        seeds = range(arguments.base, arguments.base + arguments.seeds)
        begun, tried, found = time.monotonic(), 0, None
        for result in run_forked(seeds, partial(simulate, bug=bug), jobs=arguments.jobs):
            tried += 1
            if result.violations:
                found = result
                break
        missed += found is None
        said = "not found" if found is None else f"seed {found.seed}: {found.violations[0][:150]}"
        took_s = time.monotonic() - begun
        print(f"{bug.name}: {tried} seeds, {took_s:.1f} s, {said}", flush=True)
    return 1 if missed else 0


def prove(jobs: int, only: str) -> int:
    """Each bug is found from its recorded seed on, and where it is nothing is without it.

    The seed is where it was found last; with other code things happen in another order, so that it
    may take some more of them.
    """
    from tests.sim.bugs import all_bugs
    from tests.sim.simulate import simulate

    wrong = 0
    for bug in all_bugs().values():
        if only not in ("", bug.name):
            continue
        seeds = range(bug.seed, bug.seed + PROVE_SEEDS)
        results = run_forked(seeds, partial(simulate, bug=bug), jobs=jobs)
        found = next((result for result in results if result.violations), None)
        results.close()
        if found is None:
            wrong += 1
            print(f"{bug.name}: not found in {len(seeds)} seeds from {bug.seed}", flush=True)
            continue
        without = partial(simulate, bug=bug, planted=False)
        (control,) = run_forked([found.seed], without, jobs=1)
        said = f"without it: {control.violations[0]}" if control.violations else "only with it"
        wrong += bool(control.violations)
        print(f"{bug.name}: seed {found.seed}, {found.violations[0][:120]}; {said}", flush=True)
    return 1 if wrong else 0


def hash_text(result: Result) -> str:
    """What two runs of a seed must have in common."""
    return f"{result.trace_hash & 0xFFFFFFFFFFFFFFFF:016x}"


def show(result: Result, bug: str) -> None:
    """What a seed did and which rules it broke."""
    for line in result.story[:STORY_SHOWN]:
        print("   ", line)
    print(
        f"seed {result.seed}: {len(result.violations)} violations, {result.virtual_s:.1f} s of "
        f"virtual time in {result.real_s:.2f} s, {result.turns} turns, "
        f"trace {hash_text(result)}"
    )
    for violation in result.violations[:8]:
        print("  !", violation)
    if result.violations:
        more = f" --bug '{bug}'" if bug else ""
        print(f"replay: python -m tests.sim --seed {result.seed} --trace{more}")


if __name__ == "__main__":
    sys.exit(main())
