"""The interface by which the ranges of a log are read, whichever process has the bookies."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from magnetar.bookie.api import StoredEntry
from magnetar.jobs.log.ranges import Range


class RangeReader(Protocol):
    """Reads ranges of a log."""

    def read(self, ranged: Range) -> Iterator[list[StoredEntry]]:
        """The range's entries in order, without those of aborted transactions, by groups."""


OpenReader = Callable[[], AbstractContextManager[RangeReader]]
"""Opens a reader for one part; can be pickled if tasks run in other processes."""
