"""The deadline by progress: what counts as going on, and what does not."""

from magnetar.wire.progress import PROGRESS_BYTES_MIN, Progress

STALL_S = 10.0


def stalled(*seen: tuple[float, int]) -> list[bool]:
    progress = Progress(STALL_S)
    return [progress.stalled(now, unfinished_bytes) for now, unfinished_bytes in seen]


def test_no_frame_is_never_late() -> None:
    assert not any(stalled((0, 0), (100, 0), (1000, 0)))


def test_a_frame_that_rests_is_late() -> None:
    assert stalled((0, 5), (10, 5), (10.1, 5)) == [False, False, True]


def test_a_trickle_is_late() -> None:
    assert stalled((0, 1), (5, 2), (10.1, 3)) == [False, False, True]
    least = PROGRESS_BYTES_MIN
    assert not any(stalled((0, 1), (9, 1 + least), (18, 1 + 2 * least), (27, 1 + 3 * least)))


def test_another_frame_begins_again() -> None:
    assert not any(stalled((0, 500), (9, 20), (18, 10), (27, 5)))
    assert not any(stalled((0, 5), (9, 0), (18, 5), (27, 5)))


def test_nothing_counts_while_nobody_reads() -> None:
    progress = Progress(STALL_S)
    assert not progress.stalled(0, 5)
    progress.restart()
    assert not progress.stalled(100, 5)
    assert progress.stalled(111, 5)
