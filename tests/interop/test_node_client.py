"""Scenarios of a client for Node.js (`node/scenarios.js`), each of them a test here."""

import json
from collections.abc import Iterator

import pytest

from .java_programs import LineProcess
from .node_programs import NODE_TEST_TIMEOUT_S, node_scenario_names, prepare_node
from .support import Names, ServerAddress

SCENARIO_TIMEOUT_S = 120.0

pytestmark = [
    pytest.mark.timeout(NODE_TEST_TIMEOUT_S),
    # Debian's npm has hundreds of packages, which nothing else of the tests needs.
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def scenarios(
    server: ServerAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LineProcess]:
    log = tmp_path_factory.mktemp("node") / "scenarios.log"
    process = LineProcess([*prepare_node(), server.service_url], log)
    yield process
    assert process.close() == 0


@pytest.mark.parametrize("scenario", node_scenario_names())
def test_scenario(scenarios: LineProcess, names: Names, scenario: str) -> None:
    result = json.loads(scenarios.ask(f"{names.path} {scenario}", SCENARIO_TIMEOUT_S))
    assert result == {"name": scenario, "error": ""}, result["error"]
