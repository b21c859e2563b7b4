"""Checks times for Spark, which has the years 1 to 9999: a time beyond is refused, not wrapped."""

from typing import Any, Final

import numpy as np

from magnetar.core.errors import PersistenceError
from magnetar_spark.decode.builders import Numbers

US_PER_MS: Final = 1_000
US_PER_S: Final = 1_000_000
S_PER_DAY: Final = 86_400
MS_PER_DAY: Final = 1_000 * S_PER_DAY
DAYS_MIN: Final = -719_162
DAYS_MAX: Final = 2_932_896
US_MIN: Final = DAYS_MIN * S_PER_DAY * US_PER_S
US_MAX: Final = (DAYS_MAX + 1) * S_PER_DAY * US_PER_S - 1


def beyond(value: Any, unit: str) -> PersistenceError:
    """The error for a time in `unit` since 1970 that Spark cannot represent."""
    return PersistenceError(
        f"the time {value} {unit} since 1970 is not within the years 1 to 9999, all that Spark's "
        "types hold: set allowDifferentTopicSchemas to true to have the values as they are"
    )


def within(values: Numbers, low: int, high: int, unit: str) -> Numbers:
    """The values, if all are from `low` to `high`. Raises PersistenceError."""
    outside = (values < low) | (values > high)
    if outside.any():
        raise beyond(int(values[int(np.argmax(outside))]), unit)
    return values


def micros(value: int, unit_us: int) -> int:
    """Converts a time in units of `unit_us` µs since 1970 to µs. Raises PersistenceError."""
    time_us = value * unit_us
    if not US_MIN <= time_us <= US_MAX:
        raise beyond(value, "ms" if unit_us == US_PER_MS else "µs")
    return time_us


def days(value: int) -> int:
    """A date as days since 1970. Raises PersistenceError."""
    if not DAYS_MIN <= value <= DAYS_MAX:
        raise beyond(value, "days")
    return value
