"""The operator's clock, passed in so that tests can set it.

`monotonic` measures pauses and ages within the process. `utc` is for times that people read, and
for comparisons with times that others wrote. Waits use the event loop's own time.
"""

import datetime
from typing import Final

from magnetar.core.clock import Clock, SystemClock

SYSTEM: Final = SystemClock()

__all__ = ["SYSTEM", "Clock", "utc"]


def utc(clock: Clock) -> datetime.datetime:
    """The time of the wall clock, in UTC."""
    return datetime.datetime.fromtimestamp(clock.now_ms() / 1_000, datetime.UTC)
