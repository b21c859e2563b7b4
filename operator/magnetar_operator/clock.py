"""The operator's time, passed in rather than looked up, so that a test can own it.

`monotonic` is for pauses and ages that the process keeps itself, `utc` for what people read and
what is compared with times that others wrote. Waits go by the event loop's own time.
"""

import datetime
from typing import Final

from magnetar.core.clock import Clock, SystemClock

SYSTEM: Final = SystemClock()

__all__ = ["SYSTEM", "Clock", "utc"]


def utc(clock: Clock) -> datetime.datetime:
    """The wall clock."""
    return datetime.datetime.fromtimestamp(clock.now_ms() / 1_000, datetime.UTC)
