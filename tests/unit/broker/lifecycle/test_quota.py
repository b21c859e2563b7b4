"""What a quota says of sizes and ages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.lifecycle.quota import Quota, QuotaAction, QuotaType, quotas_of

HOLD, EVICT = QuotaAction.HOLD, QuotaAction.EVICT


def test_the_limits_of_a_policy() -> None:
    value = {
        "message_age": {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"},
        "destination_storage": {"limitSize": 10, "limitTime": -1, "policy": "producer_exception"},
    }
    assert quotas_of(value) == (
        Quota(QuotaType.SIZE, 10, QuotaAction.EXCEPTION),
        Quota(QuotaType.AGE, 60, EVICT),
    )
    assert quotas_of(None) == ()


@pytest.mark.parametrize(
    ("kind", "fields", "limits"),
    [
        ("destination_storage", {"limitSize": -1}, []),
        ("destination_storage", {"limitSize": 0}, [0]),
        ("destination_storage", {"limit": 7}, [7]),
        ("message_age", {"limitTime": -1}, []),
        ("message_age", {"limitTime": 0}, []),
        ("message_age", {"limitSize": 5}, []),
        ("message_age", {"limit": 5}, []),
        ("destination_storage", {"limitSize": 5, "limit": 7}, [5]),
    ],
)
def test_limits_that_are_none(kind: str, fields: dict[str, int], limits: list[int]) -> None:
    found = quotas_of({kind: {**fields, "policy": "producer_request_hold"}})
    assert [quota.limit for quota in found] == limits


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_a_size_at_the_limit_is_above_it(limit: int, size: int) -> None:
    quota = Quota(QuotaType.SIZE, limit, HOLD)
    assert quota.exceeded_by_size(size) == (size >= limit)
    assert not quota.exceeded_by_age(0, size)
    # What an eviction leaves is below the limit, so that it is not repeated at once.
    if limit:
        assert not quota.exceeded_by_size(quota.reduced)


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(0, 10**13))
def test_an_age(limit: int, oldest_ms: int, now_ms: int) -> None:
    quota = Quota(QuotaType.AGE, limit, EVICT)
    assert quota.exceeded_by_age(oldest_ms, now_ms) == (now_ms - oldest_ms > limit * 1000)
    assert not quota.exceeded_by_age(None, now_ms)
    assert not quota.exceeded_by_size(now_ms)
    # What made the quota exceeded is evicted.
    if quota.exceeded_by_age(oldest_ms, now_ms):
        assert oldest_ms < quota.evicted_before_ms(now_ms)
    assert not quota.exceeded_by_age(quota.evicted_before_ms(now_ms), now_ms)
