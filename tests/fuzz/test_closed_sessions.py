"""Mutated frames against a closed broker open nothing; see tests/fuzz/closed_sessions.py."""

import os

import pytest
from tests.fuzz.closed_sessions import SEEDS, Counts, State, campaign, run

FRAMES_SHORT = 6_000
FRAMES_LONG = 1_000_000


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transactions", [False, True])
async def test_mutated_frames_open_no_closed_broker(transactions: bool) -> None:
    """An odd campaign has transactions."""
    seed = int(os.environ.get("FUZZ_SEED", "0")) * 2 * SEEDS
    await campaign(seed + transactions * SEEDS, FRAMES_SHORT // 2)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_a_million_mutated_frames_open_no_closed_broker() -> None:
    """Counts frames that sessions handled, and compares memory between campaigns."""
    frames = int(os.environ.get("FUZZ_FRAMES", FRAMES_LONG))
    run(State(Counts(), int(os.environ.get("FUZZ_SEED", "1"))), None, frames)
