"""Scenarios of the official Java client (`java/src`), each of them a test here.

The client of Pulsar 4.2 runs always, that of 4.0 in the long form. All scenarios share one JVM;
each has its own clients and its own namespace. A scenario that does not answer costs only its own
test: the JVM is then replaced.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .java_programs import (
    HERE,
    JAVA_TEST_TIMEOUT_S,
    JavaPrograms,
    LineProcess,
    compiled,
    jars,
    scenario_names,
)
from .support import Names, ServerAddress

SCENARIO_TIMEOUT_S = 150.0

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)


class Suite:
    """The JVM that runs scenarios, started again after one that hung."""

    def __init__(self, command: list[str], log_dir: Path) -> None:
        self._command = command
        self._log_dir = log_dir
        self._starts = 0
        self._process: LineProcess | None = None

    def ask(self, line: str) -> str:
        if self._process is None:
            self._starts += 1
            log = self._log_dir / f"suite-{self._starts}.log"
            self._process = LineProcess(self._command, log)
        try:
            return self._process.ask(line, SCENARIO_TIMEOUT_S)
        except AssertionError:
            self._process.kill()
            self._process = None
            raise

    def close(self) -> int:
        return self._process.close() if self._process else 0


@pytest.fixture(scope="module", params=["4.2", pytest.param("4.0", marks=pytest.mark.long)])
def suite(
    java: JavaPrograms,
    server: ServerAddress,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Suite]:
    client = java.client
    if request.param == "4.0":
        client = compiled(HERE / "src", jars("tools"), request.param)
    command = java.command(client, "InteropSuite", server.service_url, server.http_url)
    running = Suite(command, tmp_path_factory.mktemp("java"))
    yield running
    assert running.close() == 0


def test_all_scenarios_are_known(suite: Suite) -> None:
    assert sorted(suite.ask("list").split()) == sorted(scenario_names())


@pytest.mark.parametrize("scenario", scenario_names())
def test_scenario(suite: Suite, names: Names, scenario: str) -> None:
    result = json.loads(suite.ask(f"{names.path} {scenario}"))
    assert result["name"] == scenario
    assert result["ok"], result["error"]
