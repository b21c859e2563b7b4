"""Resource groups: the shares of brokers add up to the rate, and follow their demands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.rates.resource_groups import (
    EQUAL_SHARE,
    GROUPS_MAX,
    ResourceGroup,
    ResourceGroups,
    demand,
    share,
    with_group,
    without_group,
)
from magnetar.core.errors import NotFound, PreconditionFailed

LIMITS = st.floats(0.001, 1e12)
DEMANDS = st.lists(st.floats(0.0, 1e12), min_size=1, max_size=20)


@given(LIMITS, DEMANDS)
def test_shares_add_up_to_the_rate(limit: float, demands: list[float]) -> None:
    shares = [share(limit, own, demands[:at] + demands[at + 1 :]) for at, own in enumerate(demands)]
    assert sum(shares) == pytest.approx(limit)
    assert min(shares) >= limit * EQUAL_SHARE / len(demands) * (1 - 1e-9), "none is starved"


@given(LIMITS, st.lists(st.floats(0.1, 1e12), min_size=1, max_size=20))
def test_a_broker_that_begins_exceeds_the_rate_by_the_equal_share(
    limit: float, demands: list[float]
) -> None:
    begins = share(limit, None, demands)
    assert begins == pytest.approx(limit * EQUAL_SHARE / (len(demands) + 1))
    assert share(limit, None, []) == limit, "the only broker has all of it at once"


def test_no_limit_is_none_for_all() -> None:
    assert share(-1, 5.0, [1.0]) == -1
    assert share(0, None, []) == 0


@given(st.floats(10.0, 1e6), st.floats(0.0, 1.0))
def test_two_greedy_brokers_end_with_equal_shares(limit: float, first: float) -> None:
    demands = [limit * first, limit * (1 - first)]
    for _ in range(60):
        shares = [share(limit, demands[at], [demands[1 - at]]) for at in (0, 1)]
        demands = [demand(part, 1.0, limit, part, waited=True) for part in shares]
    assert shares[0] == pytest.approx(limit / 2, rel=0.05)


def test_an_idle_brokers_share_goes_to_a_busy_one() -> None:
    assert share(100.0, 100.0, [0.0]) == pytest.approx(90.0)
    assert demand(50, 5.0, 100.0, 40.0, waited=False) == 10.0
    assert demand(50, 5.0, 100.0, 40.0, waited=True) == 80.0
    assert demand(1_000, 5.0, 100.0, 40.0, waited=True) == 100.0, "at most the whole rate"
    assert demand(1_000, 5.0, -1.0, -1.0, waited=False) == 200.0


def test_groups_are_created_changed_and_bounded() -> None:
    stored = with_group(None, "g", {"publish_rate_in_msgs": 5})
    stored = with_group(stored, "g", {"dispatch_rate_in_bytes": 7})
    assert stored.groups == {"g": ResourceGroup(5, -1, -1, 7)}
    assert without_group(stored, "g") == ResourceGroups(1)
    for absent in (None, stored):
        with pytest.raises(NotFound, match="ResourceGroup does not exist"):
            without_group(absent, "h")
    full = ResourceGroups(1, {f"g{number}": ResourceGroup() for number in range(GROUPS_MAX)})
    assert with_group(full, "g0", {"publish_rate_in_msgs": 5})
    with pytest.raises(PreconditionFailed, match="At most"):
        with_group(full, "another", {})
