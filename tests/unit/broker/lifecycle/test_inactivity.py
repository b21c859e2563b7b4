"""Topics and subscriptions that count as unused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.lifecycle.inactivity import (
    Inactive,
    Use,
    in_use,
    inactive_of,
    should_delete,
    should_delete_subscription,
)
from magnetar.managed_ledger.settings import Retention

NOTHING = Retention(0, 0)
NOW = 10_000_000


def test_the_policy() -> None:
    value = {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    }
    assert inactive_of(value) == Inactive(True, True, 60_000)


@pytest.mark.parametrize("caught_up", [False, True])
@pytest.mark.parametrize("subscriptions", [0, 1])
@pytest.mark.parametrize("backlog", [False, True])
def test_the_two_modes(caught_up: bool, subscriptions: int, backlog: bool) -> None:
    use = Use(False, subscriptions, backlog and subscriptions > 0, 0)
    goes = should_delete(use, Inactive(True, caught_up, 1_000), NOTHING, NOW)
    if caught_up:
        assert goes == (not use.backlog)
    else:
        assert goes == (subscriptions == 0)


@given(
    st.builds(Use, st.booleans(), st.integers(0, 2), st.booleans(), st.integers(NOW - 5_000, NOW)),
    st.builds(Inactive, st.booleans(), st.booleans(), st.integers(0, 5_000)),
    st.builds(Retention, st.integers(-1, 1), st.integers(-1, 5_000)),
)
def test_what_is_used_or_kept_never_goes(use: Use, policy: Inactive, retention: Retention) -> None:
    idle_ms = NOW - use.last_active_ms
    expected = (
        policy.deletes
        and not in_use(use, policy)
        and idle_ms >= policy.after_ms
        and retention.time_ms != -1
        and idle_ms >= retention.time_ms
    )
    assert should_delete(use, policy, retention, NOW) == expected
    if use.attached:
        assert not should_delete(use, policy, retention, NOW)


def test_a_topic_goes_at_the_very_end_of_its_retention() -> None:
    use, policy = Use(False, 0, False, NOW - 5_000), Inactive(True, False, 1_000)
    assert should_delete(use, policy, Retention(-1, 5_000), NOW)
    assert not should_delete(use, policy, Retention(-1, 5_001), NOW)


def test_subscriptions() -> None:
    def goes(minutes: int, *, attached: bool = False, unused_ms: int = 60_001) -> bool:
        return should_delete_subscription(
            minutes, attached=attached, last_active_ms=NOW - unused_ms, now_ms=NOW
        )

    assert goes(1)
    assert not goes(1, unused_ms=60_000)
    assert not goes(1, attached=True)
    assert not goes(0)
