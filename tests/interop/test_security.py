"""Each official client with each method of authentication, right and wrong in all ways.

What the clients see must be what they see of Pulsar, but for the listed differences.
"""

from collections.abc import Iterator

import pytest

from .go_programs import GO_TEST_TIMEOUT_S
from .java_programs import JAVA_TEST_TIMEOUT_S
from .security import answers, campaign, programs, servers
from .security.clients import Outcomes
from .security.credentials import realm
from .security.table import PERF_SCENARIOS, SCENARIOS

CLIENTS = ("go", "java-4.0", "java-4.2", "pulsar-admin", "pulsar-perf", "python")

# The first test prepares the programs and runs all clients.
pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S + GO_TEST_TIMEOUT_S)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcomes]]:
    """The outcomes with our server, by client."""
    made = programs.prepare()
    directory = tmp_path_factory.mktemp("security-of-clients")
    with realm(directory) as identities, servers.ours(identities, directory) as server:
        yield answers.normalized(campaign.run(server, identities, made, directory))


@pytest.mark.parametrize("client", CLIENTS)
def test_outcomes_are_those_of_pulsar(found: dict[str, Outcomes], client: str) -> None:
    assert found[client] == answers.expected_of_ours()[client]


def test_all_scenarios_were_tried(found: dict[str, Outcomes]) -> None:
    names = {scenario.name for scenario in SCENARIOS}
    of_perf = {scenario.name for scenario in PERF_SCENARIOS}
    assert {client: set(outcomes) for client, outcomes in found.items()} == {
        client: of_perf if client == "pulsar-perf" else names for client in CLIENTS
    }


def test_only_the_right_credentials_succeed(found: dict[str, Outcomes]) -> None:
    """Independent of the golden answers, which a mistake in the rig would spoil."""
    allowed = {scenario.name for scenario in SCENARIOS if scenario.succeeds}
    for client, outcomes in found.items():
        succeeded = {scenario for scenario, outcome in outcomes.items() if outcome == "ok"}
        assert succeeded == allowed & set(outcomes), client


def test_every_listed_difference_is_one() -> None:
    real = answers.of_pulsar()
    for row in answers.differences():
        differing = [
            (client, scenario)
            for client, outcomes in real.items()
            for scenario, outcome in outcomes.items()
            if row.covers(client, scenario) and outcome != row.ours
        ]
        assert differing, f"{row.clients} {row.scenarios} is as with Pulsar"
        assert row.why
