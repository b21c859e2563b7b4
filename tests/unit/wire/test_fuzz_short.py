"""The short form of the frame fuzzer; `make fuzz` runs the long one."""

import pytest
from tests.fuzz.fuzz_frames import check, mutated_frames

FRAMES = 20_000


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_frames(seed: int) -> None:
    seen = check(seed, FRAMES)
    assert seen["frames"] == FRAMES
    # The fuzzer reaches every kind of outcome; otherwise it would prove little.
    assert {"send", "odd send", "bad send", "ack", "flow", "command"} <= seen.keys()
    assert seen["unreadable"] > FRAMES // 100


def test_a_seed_always_gives_the_same_frames() -> None:
    assert list(mutated_frames(7, 200)) == list(mutated_frames(7, 200))
    assert list(mutated_frames(7, 200)) != list(mutated_frames(8, 200))
