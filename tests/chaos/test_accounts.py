"""Transfers in transactions by official Java clients, on a cluster under faults: exactly once.

The short form has a few faults, the long one 20 minutes of them. `CHAOS_SEED` repeats the faults of
an earlier run.
"""

import os
import random
from pathlib import Path

import pytest
from tests.chaos.accounts import Result, run
from tests.interop.java_programs import JAVA_TEST_TIMEOUT_S

TEST_TIMEOUT_S = 480 + JAVA_TEST_TIMEOUT_S
LONG_TIMEOUT_S = 2_400


def _seed() -> int:
    return int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 31))


def _judged(result: Result, seed: int) -> None:
    print(f"CHAOS_SEED={seed}\n{result.summary()}")
    assert not result.contradictions, f"CHAOS_SEED={seed}: {result.contradictions}"
    assert result.books.orders, "no order was written"
    assert result.books.aborted, "no transaction was aborted on purpose"
    assert result.faults, "no fault was done"


@pytest.mark.interop
@pytest.mark.timeout(TEST_TIMEOUT_S)
async def test_every_order_counts_once_when_processes_are_killed(tmp_path: Path) -> None:
    seed = _seed()
    result = await run(
        tmp_path,
        seconds=15,
        seed=seed,
        rate=10,
        quiet_s=(0.5, 1.5),
        lasts_s=(0.3, 2.0),
        kinds=("kill",),
        roles=("broker", "broker", "bookie"),
    )
    _judged(result, seed)


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(LONG_TIMEOUT_S)
async def test_every_order_counts_once_in_twenty_minutes_of_faults(tmp_path: Path) -> None:
    seed = _seed()
    _judged(await run(tmp_path, seconds=1200, seed=seed, rate=10), seed)
