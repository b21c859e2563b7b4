"""`python -m tests.mutants --package ledger`: plants mistakes one at a time and lists those that no
test notices.

    --package NAME        one or more of the campaign's packages (default: all)
    --file PATH           only mutants of these files
    --changed SINCE       only mutants of lines changed since a commit
    --sample N            at most N mutants of each package, always the same ones
    --again               tries survivors again, after new tests
    --sim N               tries survivors against N seeds of the simulation
    --report              shows the scores without trying anything (--json for scripts)

Results are kept in .mutants/, and a campaign that was cut off goes on where it stopped. The exit
code is 0, or 1 with --strict where a package's score is below its minimum.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from tests.mutants.bench import Bench
from tests.mutants.changed import changed_lines
from tests.mutants.coverage_map import CoverageMap
from tests.mutants.mutation import Mutation, mutations_of
from tests.mutants.report import show_report
from tests.mutants.results import KILLED, Equivalents, Outcome, Results, Tried
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
        for suite in suites:
            _try(suite, chosen[suite.name], results, options)
    passed = show_report(suites, chosen, results, as_json=options.json)
    return 1 if options.strict and not passed else 0


def _options() -> argparse.Namespace:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=as_written
    )
    parser.add_argument("--package", action="append", default=[])
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("--changed", metavar="SINCE")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--sim", type=int, metavar="N")
    parser.add_argument("--minutes", type=float, help="stops after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--results", type=Path, default=KEPT / "results.jsonl")
    return parser.parse_args()


def _chosen(suite: Suite, options: argparse.Namespace) -> list[Mutation]:
    lines = changed_lines(options.changed) if options.changed else None
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
        found = sorted(found, key=lambda each: each.order)[: options.sample]
    return found


def _try(
    suite: Suite, chosen: list[Mutation], results: Results, options: argparse.Namespace
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
    if not waiting:
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

    ends_at = begun + options.minutes * 60 if options.minutes else None
    if options.sim is not None:
        try_seeds(waiting, options.sim, options.jobs, found)
        return
    coverage = CoverageMap(KEPT / f"coverage-{suite.name}.pickle")
    bench = Bench(waiting, coverage, found, options.jobs, ends_at)
    arguments = ["-q", "-p", "no:cacheprovider", "-m", DESELECTED]
    code = pytest.main([*arguments, "--hypothesis-seed=0", *suite.tests], plugins=[bench])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"{suite.name}: pytest ended with {code}")


if __name__ == "__main__":
    sys.exit(main())
