"""Scenarios of Java's admin client (`java/tools/AdminScenarios.java`), each of them a test here.

All share one JVM; each has its own namespace.
"""

import json
from collections.abc import Iterator

import pytest

from .java_programs import JAVA_TEST_TIMEOUT_S, JavaPrograms, LineProcess, admin_scenario_names
from .support import Names, ServerAddress

SCENARIO_TIMEOUT_S = 150.0

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)


@pytest.fixture(scope="module")
def scenarios(
    java: JavaPrograms, server: ServerAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LineProcess]:
    log = tmp_path_factory.mktemp("java-admin") / "scenarios.log"
    urls = (server.service_url, server.http_url)
    process = LineProcess(java.command(java.tools, "AdminScenarios", *urls), log)
    yield process
    assert process.close() == 0


@pytest.mark.parametrize("scenario", admin_scenario_names())
def test_scenario(scenarios: LineProcess, names: Names, scenario: str) -> None:
    result = json.loads(scenarios.ask(f"{names.path} {scenario}", SCENARIO_TIMEOUT_S))
    assert result == {"name": scenario, "error": ""}, result["error"]
