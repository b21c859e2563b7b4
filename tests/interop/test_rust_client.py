"""Scenarios of the Rust client (`rust/src`), each of them a test here."""

import json
from collections.abc import Iterator

import pytest

from .java_programs import LineProcess
from .rust_programs import BUILD_TIMEOUT_S, prepare_rust, rust_scenario_names
from .support import Names, ServerAddress

SCENARIO_TIMEOUT_S = 120.0

pytestmark = [
    pytest.mark.timeout(BUILD_TIMEOUT_S),
    # The crate has 150 dependencies, whose build takes minutes of CPU.
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def scenarios(
    server: ServerAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LineProcess]:
    log = tmp_path_factory.mktemp("rust") / "scenarios.log"
    process = LineProcess([str(prepare_rust()), server.service_url, server.http_url], log)
    yield process
    assert process.close() == 0


@pytest.mark.parametrize("scenario", rust_scenario_names())
def test_scenario(scenarios: LineProcess, names: Names, scenario: str) -> None:
    result = json.loads(scenarios.ask(f"{names.path} {scenario}", SCENARIO_TIMEOUT_S))
    assert result == {"name": scenario, "error": ""}, result["error"]
