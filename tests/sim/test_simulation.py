"""A few hundred seeds of the whole system, as `make sim` runs any number of them."""

import os
import subprocess
import sys

import pytest

SEEDS = 200
SEEDS_TRACED = 6


def sim(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )


@pytest.mark.timeout(900)
def test_seeds() -> None:
    run = sim("--seeds", str(SEEDS), timeout_s=890)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]


@pytest.mark.timeout(600)
def test_a_seed_gives_the_same_run_in_every_process() -> None:
    """Twice, in processes whose memory is laid out differently."""
    arguments = ("--seeds", str(SEEDS_TRACED), "--jobs", "1", "--hashes")
    first, second = (sim(*arguments, timeout_s=290) for _ in range(2))
    assert first.returncode == 0, first.stdout[-8000:] + first.stderr[-4000:]
    hashes = [line for line in first.stdout.splitlines() if line.startswith("trace ")]
    assert len(hashes) == SEEDS_TRACED
    assert hashes == [line for line in second.stdout.splitlines() if line.startswith("trace ")]
