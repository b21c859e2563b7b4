"""Stores the time index of a topic with the cursor `magnetar.delayed`.

The payload of the cursor's own ledger is a snapshot: the position up to which the index is
complete, the new moments, and the ledgers of the runs. So it is as durable as acks. Mark-delete is
that position: entries after it stay until the next snapshot, and the topic's next owner reads only
those. A snapshot is due after a number of entries, which bounds that reading, and after a time.

A run's ledger is on record before a snapshot names it, and it is deleted only after a stored
snapshot no longer does.

The cursor is created before the first delayed message is stored: a topic without any costs nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final

from magnetar.broker.topic.delayed.codec_v1 import (
    IndexInvalid,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from magnetar.broker.topic.delayed.operations import Operation, Operations
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.ids import LATEST, Position
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import DELAYED_CURSOR

SNAPSHOT_ENTRIES: Final = 10_000
"""Entries of the topic that make a snapshot due,"""
SNAPSHOT_MOMENTS_PER_ENTRY: Final = 2
"""… and one more for this many moments that a snapshot contains, so that its cost per entry is
bounded."""
SNAPSHOT_INTERVAL_S: Final = 120.0
"""The time after which a snapshot is due if the topic has new entries."""

Contents = Callable[[], tuple[Sequence[int], bytes]]
"""Returns the ledgers of the runs, and the stored form of the moments in memory."""

log = get_logger("magnetar.topic.delayed")


class IndexUnreadable(ServiceNotReady):
    """The index cannot be read now, so the topic would deliver delayed messages early."""


class IndexStore:
    """The stored index of one topic."""

    __slots__ = (
        "_clock",
        "_contents",
        "_dropping",
        "_due_at",
        "_encoded",
        "_ledger",
        "_new_runs",
        "_operations",
        "_taken_at",
        "_taken_s",
        "_tasks",
        "_writing",
        "cursor",
        "size_bytes",
    )

    def __init__(
        self,
        ledger: ManagedLedger,
        contents: Contents,
        clock: SteadyClock,
        tasks: TaskSet,
        operations: Operations,
    ) -> None:
        self.cursor: Cursor | None = None
        self.size_bytes = 0
        """The size of the last snapshot."""
        self._ledger = ledger
        self._contents = contents
        self._operations = operations
        self._clock = clock
        self._tasks = tasks
        self._encoded: tuple[Position, int, frozenset[int]] | None = None
        self._new_runs: set[int] = set()
        """Runs that no stored snapshot names yet; they must not be deleted meanwhile."""
        self._taken_at = 0
        self._taken_s = clock.monotonic()
        self._due_at = ledger.entries_added + SNAPSHOT_ENTRIES
        self._writing = self._dropping = False

    @property
    def log(self) -> CursorLog:
        """The log of the cursor, which owns the ledgers of runs."""
        assert self.cursor is not None and self.cursor.log is not None  # noqa: S101, PT018
        return self.cursor.log

    def load(self) -> Snapshot | None:
        """Returns the stored index and attaches to the cursor; None if there is no cursor.

        Raises IndexUnreadable. The ledger's entries after the position are to be replayed.
        """
        if (broken := self._ledger.broken_cursors.get(DELAYED_CURSOR)) is not None:
            raise unreadable(self._ledger.name, broken[1])
        cursor = self._ledger.cursors.get(DELAYED_CURSOR)
        if cursor is None:
            return None
        snapshot = Snapshot(cursor.mark_delete, [], [])
        if cursor.payload is not None:
            try:
                snapshot = decode_snapshot(cursor.payload())
            except IndexInvalid as error:
                raise unreadable(self._ledger.name, error) from error
        cursor.payload_covers(snapshot.position)
        self.cursor = cursor
        return snapshot

    async def create(self) -> None:
        """Creates the cursor after the last entry, if there is none. Raises MagnetarError."""
        if self.cursor is None:
            self.cursor = await self._ledger.open_cursor(DELAYED_CURSOR, initial=LATEST)

    def begin(self, replayed: int) -> None:
        """Stores the present index from now on: it is complete up to the last entry.

        `replayed` is the number of entries that the stored index does not cover yet.
        """
        self._taken_at = self._ledger.entries_added - replayed
        self._due_at = self._taken_at + SNAPSHOT_ENTRIES
        if self.cursor is not None:
            self._ledger.carry_payload(self.cursor, self._payload)
        self._ledger.add_append_listener(self._entries_confirmed)

    def end(self) -> None:
        """Stores no more snapshots."""
        self._ledger.remove_append_listener(self._entries_confirmed)

    def _payload(self) -> bytes:
        position = self._ledger.last_confirmed
        runs, moments = self._contents()
        self._encoded = (position, self._ledger.entries_added, frozenset(runs))
        payload = encode_snapshot(position, runs, moments)
        self.size_bytes = len(payload)
        return payload

    def _entries_confirmed(self) -> None:
        if self._ledger.entries_added >= self._due_at:
            self.take()

    @property
    def entries_since(self) -> int:
        """The number of entries that the last snapshot does not cover."""
        return self._ledger.entries_added - self._taken_at

    def sweep(self) -> None:
        """Takes a snapshot if one is due by time."""
        due_s = self._taken_s + SNAPSHOT_INTERVAL_S
        if self.entries_since and due_s <= self._clock.monotonic():
            self.take()

    def take(self) -> None:
        """Starts storing the present index, unless a write is under way."""
        if self.cursor is None or self._writing:
            return
        self._writing = True
        in_memory = self.size_bytes // 16
        self._due_at = (
            self._ledger.entries_added + SNAPSHOT_ENTRIES + in_memory // SNAPSHOT_MOMENTS_PER_ENTRY
        )
        self.cursor.store_payload(self._stored)

    def _stored(self, error: MagnetarError | None) -> None:
        self._writing = False
        if error is not None:
            log.warning(
                "snapshot of the index of delayed messages not stored, will retry; until then "
                "more entries must be replayed when the topic is loaded",
                topic=self._ledger.name,
                error=str(error),
            )
            return
        if self._encoded is None or self.cursor is None:
            return
        position, self._taken_at, runs = self._encoded
        self._taken_s = self._clock.monotonic()
        self.cursor.payload_covers(position)
        self._new_runs -= runs
        if not self._dropping and self._unused(runs):
            self._dropping = True
            dropping = self._drop(runs)
            if self._tasks.start(dropping, f"runs of {self._ledger.name}") is None:
                self._dropping = False

    def _unused(self, runs: frozenset[int]) -> list[int]:
        """Returns the kept ledgers that the stored snapshot does not name."""
        return [i for i in self.log.record.kept if i not in runs and i not in self._new_runs]

    async def _drop(self, runs: frozenset[int]) -> None:
        self._operations.begun(Operation.DELETE)
        try:
            await self.log.drop_kept(self._unused(runs))
            self._operations.succeeded(Operation.DELETE)
        except MagnetarError as error:  # the next snapshot tries again
            self._operations.failed(Operation.DELETE)
            log.info("ledgers of the index not deleted", topic=self._ledger.name, error=str(error))
        finally:
            self._dropping = False

    def run_created(self, ledger_id: int) -> None:
        """Protects a new run from deletion until a stored snapshot names it."""
        self._new_runs.add(ledger_id)

    def run_dropped(self, ledger_id: int) -> None:
        """Ends `run_created` of a run that could not be written."""
        self._new_runs.discard(ledger_id)


def unreadable(name: str, reason: Exception) -> IndexUnreadable:
    """Returns the error of an index that cannot be read."""
    return IndexUnreadable(
        f"The time index of the delayed messages of {name} cannot be read: {reason}. Retry once "
        "all bookies are up. If the index is lost, set the policy delayedDelivery of the topic to "
        "active: false, which delivers its delayed messages at once"
    )
