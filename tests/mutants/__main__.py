"""`python -m tests.mutants --package ledger`: plants mistakes one at a time and lists those that no
test notices.

    --package NAME        one or more of the campaign's packages (default: all)
    --file PATH           only mutants of these files
    --changed SINCE       only mutants of lines changed since a commit; `release`: the last release
    --sample N            at most N mutants of each package, always the same ones
    --seed TEXT           other mutants for the sample, and packages in another order
    --minutes M           ends after so long, with what has been tried by then
    --again               tries survivors again, after new tests
    --sim N               tries survivors against N seeds of the simulation
    --report              shows the scores without trying anything (--json for scripts)
    --page                writes the survivors to docs/understand/survivors.md, too

Results are kept in .mutants/, and a campaign that was cut off goes on where it stopped. The exit
code is 0, or 1 with --strict where a package's score is below its minimum.
"""

import argparse
import hashlib
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from tests.mutants.bench import Bench
from tests.mutants.changed import changed_lines, last_release
from tests.mutants.coverage_map import CoverageMap
from tests.mutants.mutation import Mutation, mutations_of
from tests.mutants.page import PAGE, page_of
from tests.mutants.report import scores_of, show
from tests.mutants.results import KILLED, Equivalents, Open, Outcome, Results, Tried
from tests.mutants.seeds import try_seeds
from tests.mutants.suites import ROOT, SUITES, Suite, suite_of

KEPT: Final = ROOT / ".mutants"
DESELECTED: Final = "not long and not kube and not kube_node and not interop"


def main() -> int:
    options = _options()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.mutants", *sys.argv[1:]])  # noqa: S606
    suites = [suite_of(name) for name in options.package] or list(SUITES)
    results = Results(options.results)
    chosen = {suite.name: _chosen(suite, options) for suite in suites}
    if not options.report:
        ends_at = time.monotonic() + options.minutes * 60 if options.minutes else math.inf
        for suite in sorted(suites, key=lambda each: _place(each.name, options.seed)):
            _try(suite, chosen[suite.name], results, options, ends_at)
    scores = scores_of(suites, chosen, results)
    show(scores, as_json=options.json)
    if options.page:
        page = PAGE.read_text() if PAGE.exists() else ""
        PAGE.write_text(page_of(page, scores, _sample(options), Open()))
    return 1 if options.strict and not all(score.passed for score in scores) else 0


def _sample(options: argparse.Namespace) -> str:
    """The sample in words, for the page."""
    return "all" if options.sample is None else f"a sample of {options.sample}, seed {options.seed}"


def _place(name: str, seed: str) -> str:
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()


def _options() -> argparse.Namespace:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=as_written
    )
    parser.add_argument("--package", action="append", default=[])
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("--changed", metavar="SINCE")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--seed", default="sample")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--sim", type=int, metavar="N")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--results", type=Path, default=KEPT / "results.jsonl")
    return parser.parse_args()


def _chosen(suite: Suite, options: argparse.Namespace) -> list[Mutation]:
    since = last_release() if options.changed == "release" else options.changed
    lines = changed_lines(since) if since else None
    wanted = [str((ROOT / each).resolve().relative_to(ROOT)) for each in options.file]
    found = []
    for path in suite.files():
        file = str(path.relative_to(ROOT))
        if wanted and not any(file == each or file.startswith(f"{each}/") for each in wanted):
            continue
        if lines is not None and file not in lines:
            continue
        found += [
            each
            for each in mutations_of(path, ROOT)
            if lines is None or lines[file].intersection(each.lines)
        ]
    if options.sample is not None:
        found = sorted(found, key=lambda each: _place(each.name, options.seed))[: options.sample]
    return found


def _try(
    suite: Suite,
    chosen: list[Mutation],
    results: Results,
    options: argparse.Namespace,
    ends_at: float,
) -> None:
    known = Equivalents()
    waiting = []
    for mutation in chosen:
        tried = results.get(mutation)
        again = options.again or options.sim is not None
        if known.reason(mutation) is None and (
            tried is None or (again and tried.outcome not in KILLED and tried.outcome != "invalid")
        ):
            waiting.append(mutation)
    if not waiting or time.monotonic() > ends_at:
        return
    begun, counts = time.monotonic(), Counter[str]()
    print(f"{suite.name}: {len(waiting)} mutants to try of {len(chosen)}", flush=True)

    def found(mutation: Mutation, outcome: Outcome, by: str, tests: int) -> None:
        results.add(Tried(suite.name, mutation.key, mutation.name, outcome, by, tests))
        counts[outcome] += 1
        done = counts.total()
        if outcome in ("survived", "uncovered"):
            print(f"  {outcome}: {mutation.key} {mutation.name}", flush=True)
        if done % 50 == 0:
            rate = done / (time.monotonic() - begun)
            said = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
            print(f"{suite.name}: {done} of {len(waiting)}, {rate:.1f}/s: {said}", flush=True)

    if options.sim is not None:
        try_seeds(waiting, options.sim, options.jobs, found)
        return
    coverage = CoverageMap(KEPT / f"coverage-{suite.name}.pickle")
    bench = Bench(waiting, coverage, found, options.jobs, ends_at)
    arguments = ["-q", "-p", "no:cacheprovider", "-m", DESELECTED, "--timeout=0"]
    code = pytest.main([*arguments, "--hypothesis-seed=0", *suite.tests], plugins=[bench])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"{suite.name}: pytest ended with {code}")


if __name__ == "__main__":
    sys.exit(main())
