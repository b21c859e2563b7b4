"""Times in records: waits are kept, and times of a wrong clock delay nothing."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.autorecovery.records import is_due
from magnetar.autorecovery.repair.next_step import remaining_ms
from magnetar.autorecovery.settings import AutorecoverySettings

SETTINGS = AutorecoverySettings(open_ledger_grace_s=30.0, backoff_max_s=300.0)
LONGEST_MS = int(SETTINGS.backoff_max_s * 1000)
NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 24 * 3600 * 1000


@given(st.integers(-YEAR_MS, LONGEST_MS))
def test_a_wait_within_the_bound_is_kept(ahead_ms: int) -> None:
    assert remaining_ms(NOW_MS + ahead_ms, NOW_MS, SETTINGS) == ahead_ms


@given(st.integers(LONGEST_MS + 1, 10 * YEAR_MS))
def test_a_time_beyond_the_longest_wait_counts_as_passed(ahead_ms: int) -> None:
    assert remaining_ms(NOW_MS + ahead_ms, NOW_MS, SETTINGS) == 0


def test_work_that_was_done_in_the_future_is_due() -> None:
    assert is_due(NOW_MS + YEAR_MS, NOW_MS, 3600)
    assert is_due(NOW_MS + 1, NOW_MS, 3600)
    assert not is_due(NOW_MS, NOW_MS, 3600)
    assert not is_due(NOW_MS - 3_599_999, NOW_MS, 3600)
    assert is_due(NOW_MS - 3_600_000, NOW_MS, 3600)
    assert is_due(0, NOW_MS, 3600)
