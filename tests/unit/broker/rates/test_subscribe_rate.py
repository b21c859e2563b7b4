"""How often one consumer may subscribe."""

import pytest

from magnetar.broker.rates.subscribe_rate import CONSUMERS_MAX, TEXT, SubscribeRate, host_of
from magnetar.core.errors import NotAllowed, ServerError

ONE, OTHER = ("127.0.0.1", "n", 1), ("127.0.0.1", "n", 2)


def test_so_often_in_a_period_and_again_in_the_next() -> None:
    rate = SubscribeRate(2, 30.0, 0.0)
    rate.check(ONE, 0.0)
    rate.check(ONE, 1.0)
    with pytest.raises(NotAllowed, match=TEXT) as refused:
        rate.check(ONE, 29.9)
    assert refused.value.code is ServerError.NOT_ALLOWED_ERROR
    rate.check(OTHER, 29.9)
    rate.check(ONE, 30.0)


def test_another_rate_holds_at_once() -> None:
    rate = SubscribeRate(1, 30.0, 0.0)
    rate.check(ONE, 0.0)
    rate.set(2, 30.0)
    rate.check(ONE, 1.0)
    with pytest.raises(NotAllowed):
        rate.check(ONE, 2.0)
    rate.set(2, 2.0)
    rate.check(ONE, 2.0)


@pytest.mark.parametrize("now_s", [-1e6, 1e9])
def test_a_clock_that_jumps_begins_a_period(now_s: float) -> None:
    rate = SubscribeRate(1, 30.0, 0.0)
    rate.check(ONE, 0.0)
    rate.check(ONE, now_s)
    with pytest.raises(NotAllowed):
        rate.check(ONE, now_s)


def test_the_number_of_counts_is_bounded() -> None:
    rate = SubscribeRate(1, 30.0, 0.0)
    for number in range(3 * CONSUMERS_MAX):
        rate.check(("h", "n", number), 0.0)
        assert len(rate._counts) <= CONSUMERS_MAX


@pytest.mark.parametrize(
    ("address", "host"), [("/127.0.0.1:40712", "127.0.0.1"), ("/::1:40712", "::1")]
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host
