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
from tests.sim.run import Result, Task, TaskQueue, run_forked, run_tasks

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
        search = partial(simulate, bug=bug, only_first=True)
        for result in run_forked(seeds, search, jobs=arguments.jobs):
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
    """Proves that each bug is found from its recorded seed on, and that nothing is without it.

    The recorded seed found the bug when it was recorded. Other code changes the order of events, so
    a few more seeds may be necessary; record the new seed when it is far from the old one.
    """
    from tests.sim.bugs import all_bugs
    from tests.sim.bugs.bug import Bug
    from tests.sim.simulate import simulate

    queue = TaskQueue()
    searches: dict[Task, Bug] = {}
    controls: dict[Task, tuple[Bug, Result]] = {}

    def search(bug: Bug, seed: int) -> None:
        task = Task(seed, partial(simulate, bug=bug, only_first=True))
        searches[task] = bug
        queue.add(task)

    for bug in all_bugs().values():
        if bug.name == only or not (only or bug.hunted):
            search(bug, bug.seed)
    wrong = 0
    # The bugs run in parallel, the seeds of a bug one after another: mostly the first finds it.
    for task, result in run_tasks(queue, jobs=jobs):
        if task in controls:
            bug, found = controls.pop(task)
            said = f"without it: {result.violations[0]}" if result.violations else "only with it"
            wrong += bool(result.violations)
            late = f" ({found.seed - bug.seed} after the recorded)" if found.seed > bug.seed else ""
            text = found.violations[0][:120]
            print(f"{bug.name}: seed {found.seed}{late}, {text}; {said}", flush=True)
            continue
        bug = searches.pop(task)
        if result.violations:
            control = Task(task.seed, partial(simulate, bug=bug, planted=False))
            controls[control] = bug, result
            queue.add_first(control)
        elif task.seed + 1 < bug.seed + PROVE_SEEDS:
            search(bug, task.seed + 1)
        else:
            wrong += 1
            print(f"{bug.name}: not found in {PROVE_SEEDS} seeds from {bug.seed}", flush=True)
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
