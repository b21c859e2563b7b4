"""`Bench`: a pytest plugin that tries mutants instead of running the tests once.

pytest imports and collects all tests; then each mutant is a fork in which the tests that run the
mutated line run, quickest first, until one fails.
"""

import gc
import math
import os
import random
import resource
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from coverage import Coverage
from tests.mutants.children import Work, run_all
from tests.mutants.coverage_map import CoverageMap, Measured
from tests.mutants.mutation import Mutation
from tests.mutants.results import Outcome
from tests.mutants.suites import ROOT
from tests.mutants.swap import LiveFunctions, import_sources

from magnetar.cluster.local import ports

MEASURE_S_MAX: Final = 1_800.0
"""For one file of tests."""
BUDGET_S: Final = 20.0
"""Of measured cost for one mutant: the cheapest of the tests that cover it fit in."""
WAIT_COST: Final = 0.1
"""Of each second that a test waits. A test costs the CPU time of its process, which a busy machine
does not stretch, and this share of its wall time, for what other processes do meanwhile."""
WIDER_S: Final = 5.0
"""Of cost, for tests that run the function and, by the measurement, not the line. Python 3.11 tells
a tracer nothing of the frames that an exception of an awaited future passes through, so lines after
such an `await` count as not run though they are."""
LIMIT_S: Final = 20.0
LIMIT_FACTOR: Final = 4.0
"""A mutant that takes this many times what its tests took, and `LIMIT_S` more, hangs. The limit
holds for the wall time without waits for a CPU (see `children`), and for the CPU time of its
process: on a busy machine a mutant that spins reaches the latter many minutes earlier. The tests'
own timeouts of wall time do not apply, since other processes' load must not kill a mutant."""

Found = Callable[[Mutation, Outcome, str, int], None]


class Bench:
    """Tries `mutations`; `found(mutation, outcome, test, number of tests)` receives outcomes."""

    def __init__(
        self,
        mutations: list[Mutation],
        coverage: CoverageMap,
        found: Found,
        jobs: int,
        ends_at: float = math.inf,
    ) -> None:
        self._mutations, self._coverage = mutations, coverage
        self._found, self._jobs, self._ends_at = found, jobs, ends_at
        self._items: dict[str, pytest.Item] = {}
        self._failed = ""
        self._all_failed: set[str] = set()
        self._seconds: dict[str, float] = defaultdict(float)
        self._cpu_s: dict[str, float] = defaultdict(float)
        self._measuring: Coverage | None = None
        self._scratch = ""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings  # pytest must load its plugin first

        # A mutant that fails once is dead: no shrinking, nothing learnt from the mutant before.
        phases = [each for each in Phase if each not in (Phase.shrink, Phase.explain, Phase.reuse)]
        settings.register_profile("mutants", deadline=None, database=None, phases=phases)
        settings.load_profile("mutants")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, None]:
        random.seed(item.nodeid)
        if self._measuring is not None:
            self._measuring.switch_context(item.nodeid)
        started = time.process_time()
        yield
        self._cpu_s[item.nodeid] += time.process_time() - started

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed = report.nodeid
            self._all_failed.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        files = {nodeid.partition("::")[0] for nodeid in self._items}
        if not self._measure({file for file in files if not self._coverage.is_current(file)}):
            return True
        gone = self._coverage.failed(files) & self._items.keys()
        for name in sorted(gone):
            print(f"fails without any mutant, and is left out: {name}", flush=True)
        self._try_all(files)
        return True

    def _measure(self, files: set[str]) -> bool:
        """False if there was no time for it."""
        if not files:
            return True
        print(f"measuring which lines the tests of {len(files)} files run", flush=True)
        # File by file, each kept at once: a campaign that is cut off measures none of them again.
        works = (
            Work(
                file,
                lambda _, file=file: self._measured({file}),  # type: ignore[misc]
                min(MEASURE_S_MAX, self._ends_at - time.monotonic()),
            )
            for file in sorted(files)
        )
        for file, measured in run_all(works, 1):
            if measured is not None:
                self._coverage.put(measured)
            elif time.monotonic() >= self._ends_at:
                print(f"no mutant is tried: there is no time to measure {file}", flush=True)
                return False
            else:
                raise pytest.UsageError(f"{file} did not end in {MEASURE_S_MAX:.0f} s, or died")
        return True

    def _measured(self, files: set[str]) -> dict[str, Measured]:
        chosen = [each for name, each in self._items.items() if name.partition("::")[0] in files]
        self._measuring = Coverage(
            data_file=None, include=[f"{ROOT}/*/magnetar*/*"], config_file=False
        )
        # A file's tests may run no line of the product, as those of generated code.
        self._measuring.set_option("run:disable_warnings", ["no-data-collected"])
        self._measuring.start()
        self._run(chosen, stop=False)
        self._measuring.stop()
        data = self._measuring.get_data()
        found = {file: Measured(self._coverage.stamp(file)) for file in files}
        for name, took in self._seconds.items():
            measured = found[name.partition("::")[0]]
            measured.seconds[name] = took
            measured.costs_s[name] = self._cpu_s[name] + took * WAIT_COST
        for name in self._all_failed:
            found[name.partition("::")[0]].failed.add(name)
        for source in data.measured_files():
            path = str(Path(source).relative_to(ROOT))
            for line, tests in data.contexts_by_lineno(source).items():
                for name in tests:
                    if name:
                        lines = found[name.partition("::")[0]].lines
                        lines.setdefault(path, {}).setdefault(line, []).append(name)
        return found

    def _run(self, items: list[pytest.Item], *, stop: bool) -> int:
        """Runs tests in this process, quietly; how many."""
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        plugins = items[0].config.pluginmanager
        plugins.unregister(plugins.get_plugin("terminalreporter"))
        for number, item in enumerate(items):
            following = items[number + 1] if number + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if stop and self._failed:
                return number + 1
        return len(items)

    def _try_all(self, files: set[str]) -> None:
        by_line = self._coverage.tests_by_line(files)
        import_sources({each.file for each in self._mutations})
        live = LiveFunctions()
        gc.collect()
        gc.freeze()
        works = self._works(by_line, files, live)
        with tempfile.TemporaryDirectory(prefix="mutants-") as self._scratch:
            for (mutation, number), answer in run_all(works, self._jobs):
                outcome, test, ran = answer or ("timeout", "", number)
                self._found(mutation, outcome, test, ran)

    def _works(
        self,
        by_line: dict[str, dict[int, set[str]]],
        files: set[str],
        live: LiveFunctions,
    ) -> Iterable[Work[tuple[Mutation, int], tuple[Outcome, str, int]]]:
        seconds, costs_s = self._coverage.seconds(files), self._coverage.costs_s(files)
        for mutation in self._mutations:
            if time.monotonic() > self._ends_at:
                return
            lines = by_line.get(mutation.file, {})
            names = set().union(*(lines.get(line, set()) for line in mutation.lines))
            wider = set().union(*(lines.get(line, set()) for line in mutation.function_lines))
            if not wider & self._items.keys():
                self._found(mutation, "uncovered", "", 0)
                continue
            chosen = self._cheapest(names, costs_s, BUDGET_S)
            chosen += self._cheapest(wider - names, costs_s, WIDER_S)
            took_s = sum(seconds.get(each.nodeid, 0.0) for each in chosen)
            cost_s = sum(costs_s.get(each.nodeid, 0.0) for each in chosen)
            yield Work(
                (mutation, len(chosen)),
                partial(self._tried, mutation, chosen, live, _limit_s(cost_s)),
                _limit_s(took_s),
            )

    def _cheapest(
        self, names: set[str], costs_s: dict[str, float], left_s: float
    ) -> list[pytest.Item]:
        """One at least, where there is any."""
        chosen: list[pytest.Item] = []
        known = names & self._items.keys()
        for name in sorted(known, key=lambda each: (costs_s.get(each, 0.0), each)):
            left_s -= costs_s.get(name, 0.0)
            if left_s < 0 and chosen:
                break
            chosen.append(self._items[name])
        return chosen

    def _tried(
        self,
        mutation: Mutation,
        items: list[pytest.Item],
        live: LiveFunctions,
        cpu_s: float,
        slot: int,
    ) -> tuple[Outcome, str, int]:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu_s), math.ceil(cpu_s)))
        share = (ports.FREE_LAST - ports.FREE_FIRST + 1) // self._jobs
        ports.FREE_FIRST += slot * share  # type: ignore[misc]
        ports.FREE_LAST = ports.FREE_FIRST + share - 1  # type: ignore[misc]
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        items[0].config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        try:
            if not live.install(mutation.compiled()):
                return "invalid", "no live function has this code", 0
            ran = self._run(items, stop=True)
        except (SyntaxError, ValueError) as error:
            return "invalid", str(error), 0
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return ("killed" if self._failed else "survived"), self._failed, ran


def _limit_s(took_s: float) -> float:
    return LIMIT_S + LIMIT_FACTOR * took_s
