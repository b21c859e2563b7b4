"""Broker entry metadata (PIP-70): the broker's time and the message index before each entry."""

from collections.abc import Sequence

from magnetar.core.clock import Clock
from magnetar.wire.entry import split_entry, with_broker_entry_metadata
from magnetar.wire.events import SendRun


def last_index(entry: bytes) -> int:
    """Returns the index of the entry's last message, -1 if the entry carries none."""
    metadata = split_entry(entry).broker_entry_metadata
    return metadata.index if metadata is not None and metadata.HasField("index") else -1


class EntryStamp:
    """Adds broker entry metadata to the entries of a run, in place."""

    __slots__ = ("_clock", "_timestamp", "index")

    def __init__(self, clock: Clock, *, timestamp: bool, index: bool) -> None:
        self._clock = clock
        self._timestamp = timestamp
        self.index = index

    @classmethod
    def of(cls, fields: Sequence[str], clock: Clock) -> "EntryStamp | None":
        """Returns the stamp for these settings, None if there is nothing to add."""
        if not fields:
            return None
        return cls(clock, timestamp="timestamp" in fields, index="index" in fields)

    def __call__(self, run: SendRun, next_index: int) -> int:
        """Stamps the run from `next_index` on; returns the index after the run.

        An entry carries the index of its last message.
        """
        timestamp_ms = self._clock.now_ms() if self._timestamp else None
        stamped: list[bytes] = []
        for entry, messages in zip(run.entries, run.message_counts, strict=True):
            next_index += messages
            index = next_index - 1 if self.index else None
            stamped.append(with_broker_entry_metadata(entry, timestamp_ms, index))
        run.entries = stamped
        return next_index
