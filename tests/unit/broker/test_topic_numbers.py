"""A topic's counters and the numbers of its policies: units, bounds and defaults."""

from typing import Any

import pytest

from magnetar.broker.rates.rate import Rate, dispatch_rate
from magnetar.broker.topic.counters import (
    ENTRY_SIZE_BOUNDS_BYTES,
    WRITE_LATENCY_BOUNDS_MS,
    TopicCounters,
)


def test_entries_are_counted_by_size_and_latency_at_pulsars_bounds() -> None:
    counters = TopicCounters()
    assert counters.entry_size_counts == []
    sizes = [128, 129, 512, 1_048_576, 1_048_577]
    counters.published([bytes(size) for size in sizes], 9, sum(sizes), 0.001)
    assert (counters.messages_in, counters.entries_in) == (9, 5)
    assert counters.bytes_in == sum(sizes)
    assert counters.entry_size_counts == [1, 2, 0, 0, 0, 0, 0, 1, 1]
    assert len(counters.entry_size_counts) == len(ENTRY_SIZE_BOUNDS_BYTES) + 1
    assert counters.write_latency_counts == [0, 5, 0, 0, 0, 0, 0, 0, 0, 0]
    assert counters.write_latency_total_ms == pytest.approx(5)
    counters.published([b"x"] * 3, 3, 3, 2.0)
    assert counters.entry_size_counts[0] == 4
    assert counters.write_latency_counts[-1] == 3
    assert len(counters.write_latency_counts) == len(WRITE_LATENCY_BOUNDS_MS) + 1
    assert counters.write_latency_total_ms == pytest.approx(6_005)


def test_a_rate_is_the_mean_of_one_period() -> None:
    counters = TopicCounters()
    counters.published([b"abc"], 20, 30, 0.0)
    counters.renew_rates(10)
    assert (counters.message_rate_in, counters.bytes_rate_in) == (2, 3)
    counters.published([b"abc"], 5, 10, 0.0)
    counters.renew_rates(5)
    assert (counters.message_rate_in, counters.bytes_rate_in) == (1, 2)
    counters.renew_rates(5)
    assert (counters.message_rate_in, counters.bytes_rate_in) == (0, 0)


@pytest.mark.parametrize(
    ("value", "rate", "limits"),
    [
        (None, Rate(-1, -1, 1, False), False),
        ({}, Rate(-1, -1), False),
        ({"dispatchThrottlingRateInMsg": 0, "dispatchThrottlingRateInByte": 0}, Rate(0, 0), False),
        ({"dispatchThrottlingRateInMsg": 1}, Rate(1, -1), True),
        ({"dispatchThrottlingRateInByte": 1}, Rate(-1, 1), True),
        (
            {"dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": 9},
            Rate(5, -1, 9),
            True,
        ),
        ({"ratePeriodInSecond": 0, "relativeToPublishRate": True}, Rate(-1, -1, 1, True), False),
    ],
)
def test_a_dispatch_rate_limits_if_a_number_is_above_0(
    value: dict[str, Any] | None, rate: Rate, limits: bool
) -> None:
    found = dispatch_rate(value)
    assert found == rate
    assert found.limits is limits
