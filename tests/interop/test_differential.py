"""Seeded scenarios on a standalone of ours, beside the observations recorded of Pulsar 4.2.4."""

from pathlib import Path

import pytest
from tests.support.server_process import ServerProcess

from .differential import golden
from .differential.compared import compared
from .differential.scenarios import COUNT, LATER_ROUND, ROUND, TRANSACTIONAL, scenario
from .differential.steps import Step
from .support import ServerAddress

# Of two of each theme; `python -m tests.interop.differential compare` runs all. Those that wait
# longest come first.
SEEDS = [*range(TRANSACTIONAL, TRANSACTIONAL + len(LATER_ROUND)), *range(2 * len(ROUND))]
TEST_TIMEOUT_S = 600


@pytest.mark.timeout(TEST_TIMEOUT_S)
def test_observations_are_those_of_pulsar_or_listed(tmp_path: Path) -> None:
    recorded = golden.recorded()
    seeds = [seed for seed in SEEDS if seed in recorded]
    with ServerProcess(tmp_path, environment={"MAGNETAR_TRANSACTIONS": "true"}) as process:
        server = ServerAddress(process.service_url, process.http_url)
        found, _ = compared(server, seeds, tmp_path / "client.log")
        assert process.terminate() == 0, process.log_tail()
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("pulsar", "ours", "covered"),
    [
        ({"a": 1, "b": 0}, {"a": 1, "b": -1}, True),
        ({"a": 1, "b": 0}, {"a": 2, "b": -1}, False),
        ({"a": 1, "b": 0}, {"a": 1, "b": 3}, False),
    ],
)
def test_a_listed_difference_of_one_field_covers_no_other(
    pulsar: object, ours: object, covered: bool
) -> None:
    listed = golden.Difference("why", "stats", '"b": 0', '"b": -1', only=True)
    one = scenario(0)
    assert listed.covers(one, Step("stats", "t"), pulsar, ours) is covered
    assert not listed.covers(one, Step("receive", "c"), pulsar, ours)


def test_recorded_steps_are_those_of_their_seeds() -> None:
    """All goldens are compared by `compare`, so none may be of steps that no seed has."""
    recorded = golden.recorded()
    assert set(recorded) <= set(range(COUNT))
    wrong = [seed for seed, row in recorded.items() if row[0] != scenario(seed).digest()]
    assert wrong == []
    steps = {seed: len(scenario(seed).steps) for seed in recorded}
    assert steps == {seed: len(found) for seed, (_, found) in recorded.items()}
