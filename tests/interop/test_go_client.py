"""Scenarios of Go's client (`go/scenarios`), each of them a test here."""

import json
from collections.abc import Iterator

import pytest

from .go_programs import GO_TEST_TIMEOUT_S, go_scenario_names, prepare_go
from .java_programs import LineProcess
from .support import Names, ServerAddress

SCENARIO_TIMEOUT_S = 120.0

pytestmark = pytest.mark.timeout(GO_TEST_TIMEOUT_S)


@pytest.fixture(scope="module")
def scenarios(
    server: ServerAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LineProcess]:
    log = tmp_path_factory.mktemp("go-scenarios") / "scenarios.log"
    command = [str(prepare_go("scenarios")), server.service_url, server.http_url]
    process = LineProcess(command, log)
    yield process
    assert process.close() == 0


@pytest.mark.parametrize("scenario", go_scenario_names("scenarios"))
def test_scenario(scenarios: LineProcess, names: Names, scenario: str) -> None:
    result = json.loads(scenarios.ask(f"{names.path} {scenario}", SCENARIO_TIMEOUT_S))
    assert result == {"name": scenario, "error": ""}, result["error"]
