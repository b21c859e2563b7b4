"""Official clients on a cluster whose processes are killed, paused and cut off: nothing is lost.

The short form has one fault of each kind and role or so; the long one goes on for 20 minutes on 20
topics. `CHAOS_SEED` repeats the faults of an earlier run.
"""

import os
import random
from pathlib import Path

import pytest
from tests.chaos.campaign import Result, run


def _seed() -> int:
    return int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 31))


def _judged(result: Result, seed: int) -> None:
    print(f"CHAOS_SEED={seed}\n{result.table()}")
    assert not result.violations, f"CHAOS_SEED={seed}: {result.violations}"
    assert not result.observations.errors, f"CHAOS_SEED={seed}: {result.observations.errors[:5]}"
    assert result.felt, "no fault was done"


@pytest.mark.timeout(480)
async def test_nothing_is_lost_in_half_a_minute_of_faults(tmp_path: Path) -> None:
    seed = _seed()
    result = await run(
        tmp_path, seconds=30, seed=seed, topics=6, rate=30, quiet_s=(0.5, 1.5), lasts_s=(0.3, 3.0)
    )
    _judged(result, seed)


@pytest.mark.long
@pytest.mark.timeout(2400)
async def test_nothing_is_lost_in_twenty_minutes_of_faults(tmp_path: Path) -> None:
    seed = _seed()
    _judged(await run(tmp_path, seconds=1200, seed=seed, topics=20, rate=50), seed)
