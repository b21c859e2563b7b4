"""Reads single entries again, for redelivery, in one owned task.

A dispatcher calls `take` first: it returns an entry that is in the ledger's cache or was read
already. The dispatcher `request`s the others; `on_ready` then names the positions that `take` has,
and those that turned out to be acknowledged. Adjacent positions are read together. A position whose
read fails is read again with back-off, and `failures` shows it. It is skipped (acknowledged) only
if the entry is corrupt and `skip_unreadable` is set.

Bounds: a read has at most `REPLAY_READ_ENTRIES_MAX` entries, and no read starts while
`read_bytes_max` bytes wait to be taken. Requested positions were pending at a consumer before, so
the caps on unacknowledged messages bound their number.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from magnetar.bookie.api import EntryCorrupt
from magnetar.broker.dispatch.reader import (
    READ_TIMEOUT_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    ReadFailure,
)
from magnetar.broker.dispatch.replay import PositionPair
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.core.backoff import backoff_s
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger

log = get_logger("magnetar.dispatch")

REPLAY_READ_ENTRIES_MAX: Final = 100

OnReady = Callable[[Sequence[PositionPair]], None]


class ReplayReader:
    """Reads single positions for one dispatcher."""

    def __init__(
        self,
        ledger: ManagedLedger,
        cursor: Cursor,
        tasks: TaskSet,
        limits: SubscriptionLimits,
    ) -> None:
        self._ledger = ledger
        self._cursor = cursor
        self._tasks = tasks
        self._limits = limits
        self._on_ready: OnReady = _closed
        self._wanted: dict[PositionPair, bool] = {}  # value: whether it is due to be read
        self._ready: dict[PositionPair, Entry] = {}
        self._ready_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._timers: dict[PositionPair, asyncio.TimerHandle] = {}
        self.failures: dict[PositionPair, ReadFailure] = {}

    def __len__(self) -> int:
        """The number of requested positions that are not ready yet."""
        return len(self._wanted)

    def __contains__(self, position: PositionPair) -> bool:
        return position in self._wanted

    @property
    def reading(self) -> bool:
        """Whether a read is in progress; one that waits for a retry does not count."""
        return self._task is not None

    def take(self, position: PositionPair) -> Entry | None:
        """Returns the entry if it is in memory, else None."""
        if self._ready:
            entry = self._ready.pop(position, None)
            if entry is not None:
                self._ready_bytes -= len(entry.data)
                self._start()
                return entry
        cached = self._ledger.read_cached(Position(*position), 1, self._limits.read_bytes_max)
        if cached and (cached[0].ledger_id, cached[0].entry_id) == position:
            return cached[0]
        return None

    def request(self, positions: Iterable[PositionPair]) -> None:
        """Reads these positions; `on_ready` is called in a later turn of the event loop."""
        for position in positions:
            self._wanted.setdefault(position, True)
        self._start()

    def forget(self, position: PositionPair) -> bool:
        """Drops a position that needs no redelivery; returns whether it was requested."""
        self.failures.pop(position, None)
        if entry := self._ready.pop(position, None):
            self._ready_bytes -= len(entry.data)
        return self._wanted.pop(position, None) is not None

    def forget_up_to(self, position: PositionPair) -> None:
        """Drops all positions up to and including `position`."""
        for settled in [at for at in (*self._wanted, *self._ready) if at <= position]:
            self.forget(settled)

    def open(self, on_ready: OnReady) -> None:
        """Reports to `on_ready` until `close`."""
        self._on_ready = on_ready

    def close(self) -> None:
        """Stops reading, and drops all positions and `on_ready`. Idempotent; `open` may follow."""
        self._on_ready = _closed
        self._wanted.clear()
        self._ready.clear()
        self._ready_bytes = 0
        self.failures.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()

    def _start(self) -> None:
        if (
            self._task is None
            and self._ready_bytes < self._limits.read_bytes_max
            and any(self._wanted.values())
        ):
            self._task = self._tasks.start(self._read_due(), "replay")

    async def _read_due(self) -> None:
        me = asyncio.current_task()
        try:
            while self._task is me and self._ready_bytes < self._limits.read_bytes_max:
                due = sorted(position for position, due in self._wanted.items() if due)
                if not due:
                    break
                await self._read_run(*adjacent_run(due[:REPLAY_READ_ENTRIES_MAX]), me)
        finally:
            ended = self._task is me
            if ended:
                self._task = None  # also after an error of the dispatcher, so that `take` reads on
        if ended:
            self._on_ready(())  # the dispatcher may have waited for the end of the reads

    async def _read_run(
        self, first: PositionPair, count: int, me: "asyncio.Task[None] | None"
    ) -> None:
        error: Exception | None = None
        entries: list[Entry] = []
        try:
            await asyncio.sleep(0)  # connections detect full buffers only in a turn of the loop
            async with asyncio.timeout(READ_TIMEOUT_S):
                entries = await self._ledger.read(
                    Position(*first), count, self._limits.read_bytes_max
                )
        except Exception as failed:  # noqa: BLE001 - without a retry the positions would be lost
            error = failed
        if self._task is not me:
            return
        ready = []
        for entry in entries:
            position = (entry.ledger_id, entry.entry_id)
            if self._wanted.pop(position, None) is not None:
                self.failures.pop(position, None)
                self._ready[position] = entry
                self._ready_bytes += len(entry.data)
                ready.append(position)
        if first in self._wanted and self._failed(first, error):
            ready.append(first)
        if ready:
            self._on_ready(ready)

    def _failed(self, position: PositionPair, error: Exception | None) -> bool:
        """Records a failed read; returns whether the position needs no further attempt."""
        if self._cursor.is_done(*position):
            self.forget(position)
            return True
        if isinstance(error, EntryCorrupt) and self._limits.skip_unreadable:
            log.error("unreadable entry skipped", cursor=self._cursor.name,
                      position=str(Position(*position)), error=str(error))  # fmt: skip
            self.forget(position)
            self._cursor.ack(*position)
            return True
        former = self.failures.get(position)
        attempts = former.attempts + 1 if former else 1
        text = repr(error) if error else "the entry is in no ledger"
        expected = isinstance(error, MagnetarError | TimeoutError | None)
        self.failures[position] = ReadFailure(Position(*position), text, attempts)
        log.warning("replay read failed, will be retried", cursor=self._cursor.name,
                    position=str(Position(*position)), attempts=attempts, error=text,
                    exc_info=None if expected else error)  # fmt: skip
        self._wanted[position] = False
        self._retry_in(position, backoff_s(attempts, RETRY_MIN_S, RETRY_MAX_S, random))
        return False

    def _retry_in(self, position: PositionPair, delay_s: float) -> None:
        if (former := self._timers.pop(position, None)) is not None:
            former.cancel()
        loop = asyncio.get_running_loop()
        self._timers[position] = loop.call_later(delay_s, self._due, position)

    def _due(self, position: PositionPair) -> None:
        self._timers.pop(position, None)
        if position in self._wanted:
            self._wanted[position] = True
            self._start()


def adjacent_run(ascending: Sequence[PositionPair]) -> tuple[PositionPair, int]:
    """The first position, and the number of positions without a gap from it on."""
    ledger_id, entry_id = ascending[0]
    count = 1
    while count < len(ascending) and ascending[count] == (ledger_id, entry_id + count):
        count += 1
    return (ledger_id, entry_id), count


def _closed(_positions: Sequence[PositionPair]) -> None:
    """Replaces `on_ready` while the reader is closed."""
