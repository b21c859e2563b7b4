"""Reads a subscription's entries in order: from the cache at once, from storage by one owned task.

A dispatcher calls `take` and delivers the returned entries; the read position has moved past them.
An empty list means "not now": the reader calls `on_ready` once there may be entries. A reader
refers to its dispatcher (`on_ready`) only while it is open, so that a closed pair is freed at once,
without the garbage collector.

- Tailing: the managed ledger's cache answers synchronously, and the append listener wakes the
  dispatcher. No task, no await.
- Backlog: a task runs one read at a time, and reads ahead while the consumers work. A read starts
  with `read_entries_min` entries and doubles each time the dispatcher empties the buffer.

A failed read is retried with back-off for as long as the reader is open, and `failure` shows it
meanwhile. An unreadable entry is skipped only if it is corrupt and `skip_unreadable` is set.

Delayed entries, and acked ones next to them, are skipped without being read if the next read would
start with them; others are returned, and the dispatcher skips them.

Bounds: the reader holds at most two reads of `read_entries_max` entries and `read_bytes_max` bytes.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.bookie.api import EntryCorrupt
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.id_runs import run_end
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position_set import PositionSet

log = get_logger("magnetar.dispatch")

READ_TIMEOUT_S: Final = 30.0
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 60.0


@dataclass(slots=True)
class ReadFailure:
    """A position that could not be read, as statistics show it."""

    position: Position
    error: str
    attempts: int


class EntryLog(Protocol):
    """The log that a reader reads: a managed ledger or a `CompactedLog`."""

    @property
    def last_confirmed(self) -> Position:
        """The position of the last confirmed entry."""

    @property
    def horizon(self) -> Position | None:
        """The first entry of an open transaction, from which on nothing is delivered."""

    def add_append_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each append."""

    def remove_append_listener(self, listener: Callable[[], None]) -> None:
        """Undoes `add_append_listener`."""

    def next_position(self, position: Position) -> Position:
        """Returns the position after `position` that has or will have an entry."""

    def read_cached(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry] | None:
        """Returns entries from `start` that are in memory, None if they must be read."""

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Reads entries from `start` (inclusive); at least one if one exists."""


class EntryReader:
    """Reads the entries of one dispatcher in order."""

    def __init__(
        self,
        ledger: ManagedLedger,
        cursor: Cursor,
        tasks: TaskSet,
        limits: SubscriptionLimits,
    ) -> None:
        self.source: EntryLog = ledger
        """The log to read: the managed ledger, or a `CompactedLog` for `read_compacted`."""
        self._cursor = cursor
        self._tasks = tasks
        self._limits = limits
        self._on_ready: Callable[[], None] = _closed
        self._buffer: list[Entry] = []
        self._read_entries = limits.read_entries_min
        self._task: asyncio.Task[None] | None = None
        self._open = False
        self.failure: ReadFailure | None = None
        self.delayed: PositionSet | None = None
        """The entries of the topic that are delayed; None if there never was one."""

    @property
    def reading(self) -> bool:
        """Whether a read from storage is in progress or waits for a retry."""
        return self._task is not None

    @property
    def buffered(self) -> int:
        """The number of entries read ahead of the dispatcher."""
        return len(self._buffer)

    @property
    def caught_up(self) -> bool:
        """Whether the dispatcher has taken all entries up to the last confirmed one."""
        return not self._buffer and self._task is None and self._is_last(self._cursor.read_position)

    def _is_last(self, start: Position) -> bool:
        """Whether nothing can be delivered now from `start` on."""
        horizon = self.source.horizon
        return start > self.source.last_confirmed or (horizon is not None and start >= horizon)

    def open(self, on_ready: Callable[[], None]) -> None:
        """Starts listening for appends. Idempotent."""
        if not self._open:
            self._open = True
            self._on_ready = on_ready
            self.source.add_append_listener(self._on_ready)

    def close(self) -> None:
        """Stops listening and reading, and drops the buffer. Idempotent."""
        if self._open:
            self._open = False
            self.source.remove_append_listener(self._on_ready)
            self._on_ready = _closed
        self._drop()

    def rewind(self, position: Position) -> None:
        """Makes the next `take` start at the first entry at or after `position`."""
        self._drop()
        self._cursor.read_position = position

    def skip_up_to(self, position: Position) -> None:
        """Skips all entries up to `position`, which are acknowledged."""
        target = max(self._cursor.read_position, self.source.next_position(position))
        if self._buffer:
            if self._buffer[0].position <= position:
                self.rewind(target)
        elif self._cursor.read_position != target:
            self.rewind(target)

    def take(self, entries_max: int) -> list[Entry]:
        """Returns up to `entries_max` entries in order, at once; an empty list if none is ready."""
        buffer = self._buffer
        if buffer:
            entries = buffer[:entries_max]
            del buffer[:entries_max]
            if not buffer:
                self._read_entries = min(self._read_entries * 2, self._limits.read_entries_max)
            self._advance(entries[-1])
            if len(buffer) < self._read_entries >> 1:
                self._fetch()
            return entries
        if self._task is not None:
            return []
        entries_max = min(entries_max, self._limits.read_entries_max)
        if self.delayed is not None and self.delayed:
            self._skip_delayed(self.delayed)
        position = self._cursor.read_position
        horizon = self.source.horizon
        if horizon is not None and position >= horizon:
            return []
        cached = self.source.read_cached(position, entries_max, self._limits.read_bytes_max)
        if cached is None:
            self._fetch()
            return []
        if horizon is not None:
            cached = _before(cached, horizon)
        if cached:
            self._advance(cached[-1])
        return cached

    def _skip_delayed(self, delayed: PositionSet) -> None:
        """Moves the read position behind delayed and acked entries; the buffer is empty."""
        cursor, source = self._cursor, self.source
        start = position = cursor.read_position
        holes, last = cursor.holes, source.last_confirmed
        while position <= last:
            # The entry at or after the position, which may be behind the last one of its ledger.
            position = source.next_position(Position(position.ledger_id, position.entry_id - 1))
            ledger_id, entry_id = position
            skipped = delayed.ledgers.get(ledger_id)
            if position > last or skipped is None:
                break
            if (acked := holes.get(ledger_id)) is not None:
                skipped = skipped | acked
            if entry_id not in skipped:
                break
            position = source.next_position(Position(ledger_id, run_end(skipped, entry_id)))
        if position != start:
            cursor.read_position = position

    def give_back(self, entries: list[Entry]) -> None:
        """Returns the tail of the last `take`, which the next one gets first."""
        if entries:
            self._buffer[:0] = entries
            self._cursor.read_position = entries[0].position

    def _advance(self, last: Entry) -> None:
        self._cursor.read_position = Position(last.ledger_id, last.entry_id + 1)

    def _fetch(self) -> None:
        """Starts a read behind the buffer, unless one runs or the log ends there."""
        if self._task is not None or not self._open:
            return
        if self._buffer:
            last = self._buffer[-1]
            start = Position(last.ledger_id, last.entry_id + 1)
        else:
            start = self._cursor.read_position
        if not self._is_last(start):
            self._task = self._tasks.start(self._read(start), "read")

    async def _read(self, start: Position) -> None:
        me = asyncio.current_task()
        entries, backoff = [], Backoff(RETRY_MIN_S, RETRY_MAX_S, random)
        while self._task is me:
            try:
                # A read from the cache never awaits, but connections detect full buffers only in a
                # turn of the event loop.
                await asyncio.sleep(0)
                async with asyncio.timeout(READ_TIMEOUT_S):
                    entries = await self.source.read(
                        start, self._read_entries, self._limits.read_bytes_max
                    )
                self.failure = None
                break
            except Exception as error:  # noqa: BLE001 - without a retry the subscription would stop
                if isinstance(error, EntryCorrupt) and self._limits.skip_unreadable:
                    start = self._skip(start, error)
                    continue
                self._failed(start, error)
            await asyncio.sleep(backoff.failed_s())
        if self._task is me:
            self._task = None
            if (horizon := self.source.horizon) is not None:
                entries = _before(entries, horizon)
            if entries:
                self._buffer.extend(entries)
                self._on_ready()

    def _failed(self, position: Position, error: Exception) -> None:
        attempts = self.failure.attempts if self.failure else 0
        self.failure = ReadFailure(position, str(error) or type(error).__name__, attempts + 1)
        expected = isinstance(error, MagnetarError | TimeoutError)
        log.warning(
            "read failed, will be retried",
            cursor=self._cursor.name,
            position=str(position),
            attempts=attempts + 1,
            error=self.failure.error,
            exc_info=None if expected else error,
        )

    def _skip(self, position: Position, error: EntryCorrupt) -> Position:
        log.error(
            "unreadable entry skipped", cursor=self._cursor.name, position=str(position),
            path=error.path, offset=error.offset,
        )  # fmt: skip
        self._cursor.ack(position.ledger_id, position.entry_id)
        return self.source.next_position(position)

    def _drop(self) -> None:
        self._buffer.clear()
        self.failure = None
        self._read_entries = self._limits.read_entries_min
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()


def _before(entries: list[Entry], horizon: Position) -> list[Entry]:
    """Returns the entries before the horizon; the same list if all are."""
    if not entries or (entries[-1].ledger_id, entries[-1].entry_id) < horizon:
        return entries
    return [entry for entry in entries if (entry.ledger_id, entry.entry_id) < horizon]


def _closed() -> None:
    """Replaces `on_ready` while the reader is closed."""
