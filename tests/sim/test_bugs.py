"""The simulation finds every planted bug: a checker that has caught nothing proves nothing."""

import pytest
from tests.sim.bugs import all_bugs
from tests.sim.test_simulation import sim

BUGS_MIN = 40
HUNT_SEEDS = 400


def test_there_are_bugs_to_find() -> None:
    bugs = all_bugs()
    assert len(bugs) >= BUGS_MIN
    assert all(bug.story for bug in bugs.values())


@pytest.mark.timeout(1800)
def test_every_bug_is_found_from_its_recorded_seed_on() -> None:
    run = sim("--prove", timeout_s=1790)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_bug_is_found_within_a_few_seeds() -> None:
    """As if no seed were known."""
    run = sim("--hunt", "--seeds", str(HUNT_SEEDS), "--base", "0", timeout_s=3600)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]
