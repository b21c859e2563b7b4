"""Reads a subscription's entries in order: from the cache at once, from storage by one owned task.

A dispatcher calls `take`; what it returns is the dispatcher's to deliver, and the read position has
moved past it. An empty list means "not now": `on_ready` is called once there may be something. A
reader knows its dispatcher (`on_ready`) only while it is open, so that a closed pair is freed at
once instead of waiting for the garbage collector.

- Tailing: the managed ledger's cache answers synchronously; an append wakes the dispatcher through
  the append listener. No task, no await.
- Backlog: one read at a time runs in a task, and while the consumers work through its entries the
  next one runs already. A read starts with `read_entries_min` entries and doubles while the
  dispatcher empties the buffer.

Bounds: at most two reads of `read_entries_max` entries and `read_bytes_max` bytes are held.
A read that fails, for whatever reason, is retried with back-off for as long as the reader is open,
and `failure` shows it meanwhile: an entry that cannot be read is skipped only where
`skip_unreadable` says so.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.bookie.api import EntryCorrupt
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger

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
    """What is read: a managed ledger, or a `compacted.CompactedLog`."""

    @property
    def last_confirmed(self) -> Position: ...

    def add_append_listener(self, listener: Callable[[], None]) -> None: ...

    def remove_append_listener(self, listener: Callable[[], None]) -> None: ...

    def next_position(self, position: Position) -> Position: ...

    def read_cached(
        self, start: Position, entries_max: int, bytes_max: int
    ) -> list[Entry] | None: ...

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]: ...


class EntryReader:
    """The forward reads of one dispatcher."""

    def __init__(
        self,
        ledger: ManagedLedger,
        cursor: Cursor,
        tasks: TaskSet,
        limits: SubscriptionLimits,
    ) -> None:
        self.source: EntryLog = ledger
        """Where entries are read from; for `read_compacted` another than the log itself."""
        self._cursor = cursor
        self._tasks = tasks
        self._limits = limits
        self._on_ready: Callable[[], None] = _closed
        self._buffer: list[Entry] = []
        self._read_entries = limits.read_entries_min
        self._task: asyncio.Task[None] | None = None
        self._open = False
        self.failure: ReadFailure | None = None

    @property
    def reading(self) -> bool:
        """Whether a read from storage is under way (or waits to be retried)."""
        return self._task is not None

    @property
    def buffered(self) -> int:
        """Entries read ahead of the dispatcher."""
        return len(self._buffer)

    @property
    def caught_up(self) -> bool:
        """Whether nothing is left to read up to the last confirmed entry."""
        return (
            not self._buffer
            and self._task is None
            and self._cursor.read_position > self.source.last_confirmed
        )

    def open(self, on_ready: Callable[[], None]) -> None:
        """Starts listening for appends. Idempotent."""
        if not self._open:
            self._open = True
            self._on_ready = on_ready
            self.source.add_append_listener(self._on_ready)

    def close(self) -> None:
        """Stops listening and reading, and forgets what was read ahead. Idempotent."""
        if self._open:
            self._open = False
            self.source.remove_append_listener(self._on_ready)
            self._on_ready = _closed
        self._drop()

    def rewind(self, position: Position) -> None:
        """The next `take` starts at the first entry at or after `position`."""
        self._drop()
        self._cursor.read_position = position

    def skip_up_to(self, position: Position) -> None:
        """All up to `position` was acknowledged: it need not be read, or handed over."""
        target = max(self._cursor.read_position, self.source.next_position(position))
        if self._buffer:
            if self._buffer[0].position <= position:
                self.rewind(target)
        elif self._cursor.read_position != target:
            self.rewind(target)

    def take(self, entries_max: int) -> list[Entry]:
        """Up to `entries_max` entries in order, at once; none where there are none now."""
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
        position = self._cursor.read_position
        found = self.source.read_cached(position, entries_max, self._limits.read_bytes_max)
        if found is None:
            self._fetch()
            return []
        if found:
            self._advance(found[-1])
        return found

    def give_back(self, entries: list[Entry]) -> None:
        """Undoes the tail of the last `take`."""
        if entries:
            self._buffer[:0] = entries
            self._cursor.read_position = entries[0].position

    def _advance(self, last: Entry) -> None:
        self._cursor.read_position = Position(last.ledger_id, last.entry_id + 1)

    def _fetch(self) -> None:
        """Reads ahead of the buffer, unless a read runs or the end is reached."""
        if self._task is not None or not self._open:
            return
        if self._buffer:
            last = self._buffer[-1]
            start = Position(last.ledger_id, last.entry_id + 1)
        else:
            start = self._cursor.read_position
        if start <= self.source.last_confirmed:
            self._task = self._tasks.start(self._read(start), "read")

    async def _read(self, start: Position) -> None:
        me = asyncio.current_task()
        entries, delay_s = [], RETRY_MIN_S
        while self._task is me:
            try:
                # A read from the cache never waits. Connections notice that their buffers are full
                # only in a turn of the loop, so each read needs one.
                await asyncio.sleep(0)
                async with asyncio.timeout(READ_TIMEOUT_S):
                    entries = await self.source.read(
                        start, self._read_entries, self._limits.read_bytes_max
                    )
                self.failure = None
                break
            except Exception as error:  # noqa: BLE001 - else the subscription would stand still
                if isinstance(error, EntryCorrupt) and self._limits.skip_unreadable:
                    start = self._skip(start, error)
                    continue
                self._failed(start, error)
            await asyncio.sleep(delay_s * random.uniform(0.8, 1.2))
            delay_s = min(delay_s * 2, RETRY_MAX_S)
        if self._task is me:
            self._task = None
            if entries:
                self._buffer.extend(entries)
                self._on_ready()

    def _failed(self, position: Position, error: Exception) -> None:
        attempts = self.failure.attempts if self.failure else 0
        self.failure = ReadFailure(position, str(error) or type(error).__name__, attempts + 1)
        foreseen = isinstance(error, MagnetarError | TimeoutError)
        log.warning(
            "read failed, will be retried",
            cursor=self._cursor.name,
            position=str(position),
            attempts=attempts + 1,
            error=self.failure.error,
            exc_info=None if foreseen else error,
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


def _closed() -> None:
    """Stands for `on_ready` while the reader is closed."""
