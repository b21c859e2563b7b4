"""The long form of the frame fuzzer: a million frames against the decoder."""

import os

import pytest
from tests.fuzz.fuzz_frames import check

FRAMES = 1_000_000


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_million_mutated_frames() -> None:
    count = int(os.environ.get("FUZZ_FRAMES", FRAMES))
    seen = check(int(os.environ.get("FUZZ_SEED", "1")), count)
    assert seen["frames"] == count
