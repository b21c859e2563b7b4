"""A cursor: the position of one subscription in a managed ledger, and its acknowledgments.

Acks change memory at once (`AckState`). A durable cursor's changes are written to its log
(`CursorLog`) when an ack receipt waits for them (`when_durable`), and otherwise PERSIST_INTERVAL_S
later. One write is under way at a time; receipts requested meanwhile share the next one. If a write
fails, a new cursor ledger with the whole state replaces the old one; only if that fails too do the
receipts get an error, and the timer retries. If another owner has taken over, the cursor is fenced
for good.

`read_position` is the dispatcher's, in memory only: the next entry to read. Positions mean what
they mean in ManagedCursorImpl. See `cursor_log` for the stored form; Pulsar caps the ack holes that
it stores, this cursor does not.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from pyroaring import BitMap

from magnetar.bookie.api import LedgerFenced
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.core.futures import settle
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.log import get_logger
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.errors import (
    CursorClosed,
    ManagedLedgerClosed,
    ManagedLedgerFenced,
)
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.record import NO_LEDGER

FLUSH_TIMEOUT_S: Final = 30.0
RANGES_SHOWN_MAX: Final = 1_000

OnDurable = Callable[[MagnetarError | None], None]

log = get_logger("magnetar.managed_ledger.cursor")


class CursorOwner(Protocol):
    """The managed ledger of a cursor."""

    @property
    def aborted(self) -> AckState | None:
        """The aborted entries of the log, which count as acked for every cursor."""

    def trim_soon(self) -> None:
        """Called when mark-delete has passed the end of a ledger."""

    def cursor_fenced(self, error: MagnetarError) -> None:
        """Called when a write of the cursor shows another owner."""


class Cursor(AckState):
    """One subscription's position and acks. Created by its managed ledger."""

    __slots__ = (
        "_context",
        "_covered",
        "_error",
        "_log",
        "_owner",
        "_scheduled",
        "_waiters",
        "_writing",
        "last_active_ms",
        "name",
        "pending_read_ops",
        "properties",
        "read_position",
    )

    def __init__(
        self,
        name: str,
        owner: CursorOwner,
        index: LedgerIndex,
        mark_delete: Position,
        context: Context,
        cursor_log: CursorLog | None,
    ) -> None:
        super().__init__(index, mark_delete, tracked=cursor_log is not None)
        self.name = name
        self.properties: Mapping[str, str] = (
            {} if cursor_log is None else (cursor_log.record.properties)
        )
        self.read_position = index.next_position(*mark_delete)
        # The last use of a cursor with a ledger is not recorded: it counts as used now, so that it
        # does not expire as inactive.
        self.last_active_ms = (
            cursor_log.record.last_active_ms
            if cursor_log is not None and cursor_log.ledger_id == NO_LEDGER
            else context.clock.now_ms()
        )
        self.pending_read_ops = 0
        self._owner = owner
        self._context = context
        self._log = cursor_log
        self._waiters: list[OnDurable] | None = None
        self._covered: list[OnDurable] | None = None
        self._writing = False
        self._scheduled = False
        self._error: MagnetarError | None = None

    @property
    def durable(self) -> bool:
        """Whether the acks are stored, and keep entries from being trimmed."""
        return self._log is not None

    @property
    def log(self) -> CursorLog | None:
        return self._log

    @property
    def state(self) -> str:
        """The state in Pulsar's internal stats."""
        if isinstance(self._error, ManagedLedgerFenced | LedgerFenced):
            return "Fenced"
        if self._error is not None:
            return "Closed"
        if self._log is None or self._log.last_entry < 0:
            return "NoLedger"
        return "Open"

    def _touched(self) -> None:
        self._dirty = True
        if self._log is not None and self._error is None:
            self._context.timer.add(self)

    def _ledger_consumed(self) -> None:
        if self._log is not None:
            self._owner.trim_soon()

    def when_durable(self, on_durable: OnDurable) -> None:
        """Calls back once all acks made so far are on disk, or with the error. Never at once."""
        if self._error is not None or self._log is None or not (self._dirty or self._writing):
            asyncio.get_running_loop().call_soon(on_durable, self._error)
        elif not self._dirty:
            self._covered = _with(self._covered, on_durable)
        else:
            self._waiters = _with(self._waiters, on_durable)
            self._schedule()

    def _schedule(self) -> None:
        # In the loop's next turn: the acks of one socket read share a record.
        if not self._scheduled and not self._writing:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.persist)

    def persist(self) -> None:
        """Starts writing the changes, unless a write is under way."""
        self._scheduled = False
        if self._writing or not self._dirty or self._log is None or self._error is not None:
            return
        self._writing = True
        self._covered, self._waiters = self._waiters, None
        if self._log.ready:
            self._log.append(self, self._written)
        else:
            self._roll()

    def _written(self, error: MagnetarError | None) -> None:
        if error is None or isinstance(error, LedgerFenced):
            self._finish(error)
        else:
            log.warning(
                "cursor write failed, rolling its ledger", cursor=self.name, error=str(error)
            )
            self._roll()

    def _roll(self) -> None:
        if self._context.tasks.start(self._roll_ledger(), f"roll cursor {self.name}") is None:
            self._finish(CursorClosed(f"cursor {self.name}: the broker is stopping"))

    async def _roll_ledger(self) -> None:
        assert self._log is not None  # noqa: S101  (only a durable cursor persists)
        error: MagnetarError | None = PersistenceError(f"cursor {self.name}: write was interrupted")
        try:
            await self._log.roll(self)
            error = None
        except MagnetarError as failure:
            log.warning("acks not written, will retry", cursor=self.name, error=str(failure))
            error = failure
        finally:
            self._finish(error)

    def _finish(self, error: MagnetarError | None) -> None:
        """Completes a write: answers its receipts, and schedules later changes."""
        self._writing = False
        covered, self._covered = self._covered, None
        if not self._dirty and self._waiters:
            # Requested after this write began, but before it took its state: it covers them.
            covered, self._waiters = [*(covered or ()), *self._waiters], None
        if isinstance(error, ManagedLedgerFenced | LedgerFenced):
            self._give_up(error)
            self._owner.cursor_fenced(error)
        elif error is not None:
            # Also if the cursor has ended: it may resume, and must then write this state.
            self._dirty = True
            if isinstance(error, CursorClosed | ManagedLedgerClosed):
                self._give_up(error)
        for on_durable in covered or ():
            on_durable(error)
        if self._waiters:
            self._schedule()
        elif self._dirty and self._error is None:
            self._context.timer.add(self)

    def _give_up(self, error: MagnetarError) -> None:
        """Answers all receipts with the error, also those of the write under way.

        The next instance may have read the record before that write, so it must not be
        acknowledged.
        """
        self._error = self._error or error
        waiters = [*(self._covered or ()), *(self._waiters or ())]
        self._covered = self._waiters = None
        for on_durable in waiters:
            on_durable(error)

    @contextmanager
    def _fencing(self) -> Iterator[None]:
        """Gives up and notifies the owner if a write shows another owner."""
        try:
            yield
        except ManagedLedgerFenced as error:
            self._give_up(error)
            self._owner.cursor_fenced(error)
            raise

    async def flush(self) -> None:
        """Returns once all acks made so far are on disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_durable(lambda error: settle(done, error))
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await done
        except TimeoutError:
            raise PersistenceError(
                f"cursor {self.name}: acks were not durable within {FLUSH_TIMEOUT_S:g} s"
            ) from None

    def store_payload(self, on_durable: OnDurable) -> None:
        """Writes the state with the present payload; calls back as `when_durable` does."""
        self._dirty = True
        self.when_durable(on_durable)

    def payload_covers(self, position: Position) -> None:
        """Advances mark-delete without a write: the stored payload has the position.

        Mark-delete permits trimming, so it must not pass entries that only a payload in memory
        covers. After a restart, the user of the cursor repeats the call.
        """
        dirty, self._dirty = self._dirty, True  # no `_touched`, which would write everything again
        self.ack_cumulative(position)
        self._dirty = dirty

    async def reset(self, position: Position, *, before_kept: bool = False) -> None:
        """Seeks: `position` is the next entry to read; acks at and after it are dropped.

        Durable when this returns. A position before the first kept entry means that entry, unless
        `before_kept` is set.
        """
        self._check_open()
        self._reset(mark_delete_before(self._index, position, before_kept=before_kept))
        if (aborted := self._owner.aborted) is not None:
            self.skip_all_of(aborted)
        self.read_position = self._index.next_position(*self.mark_delete)
        if self._log is not None:
            self._log.rebase()
            await self.flush()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replaces the properties; durable when this returns."""
        self._check_open()
        if self._log is not None:
            with self._fencing():
                await self._log.set_properties(properties)
        self.properties = dict(properties)

    async def record_use(self, interval_ms: int) -> None:
        """Records `last_active_ms` if the recorded time is older by at least `interval_ms`."""
        if self._error is not None or self._log is None:
            return
        with self._fencing():
            await self._log.record_use(self.last_active_ms, interval_ms)

    async def retire(self) -> None:
        """Deletes the cursor ledgers that a former instance retired."""
        assert self._log is not None  # noqa: S101  (only a durable cursor has some)
        try:
            with self._fencing():
                await self._log.retire()
        except MagnetarError as error:
            log.info("cursor ledgers not deleted now", cursor=self.name, error=str(error))

    async def close(self) -> None:
        """Writes pending changes and closes the cursor ledger. Idempotent.

        An ack that arrives while the ledger is closed is not stored: `when_durable` answers it with
        CursorClosed.
        """
        if self._error is not None:
            return
        error = CursorClosed(f"cursor {self.name} is closed")
        try:
            if self._log is not None:
                # Without a ledger, mark-delete alone fits the record and needs none.
                if (
                    self._writing
                    or self._log.writing
                    or self._needs_ledger
                    or (self._dirty and self.payload is not None)
                ):
                    await self.flush()
                # Acks since then that need a ledger are dropped: the record cannot hold them.
                dirty = self._dirty and not self._needs_ledger and self.payload is None
                self._stop(error)
                with self._fencing():
                    await self._log.close(self, dirty=dirty)
        finally:
            self.abandon(error)

    @property
    def _needs_ledger(self) -> bool:
        """Whether the state is more than the record can hold."""
        return bool(self._holes or self._batches or self._pending)

    def abandon(self, error: MagnetarError) -> None:
        """Stops without writing: the cursor was deleted, closed, or has another owner.

        A write under way stops before its next step.
        """
        self._stop(error)
        if self._log is not None:
            self._log.end(error)

    def resume(self, error: MagnetarError) -> None:
        """Undoes `abandon(error)`, after a deletion that did not happen."""
        if self._error is error and self._log is not None:
            self._log.resume()
            self._error = None
            if self._dirty:
                self._touched()

    def _stop(self, error: MagnetarError) -> None:
        if self._error is None:
            self._context.timer.discard(self)
            self._give_up(error)

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def ack_cumulative(self, position: Position | tuple[int, int]) -> None:
        super().ack_cumulative(position)
        self.skip_acked()

    def ack_entries(self, ledger_id: int, entries: BitMap) -> None:
        super().ack_entries(ledger_id, entries)
        self.skip_acked()

    def skip_entries(self, ledger_id: int, entries: BitMap) -> None:
        super().skip_entries(ledger_id, entries)
        self.skip_acked()

    def skip_acked(self) -> None:
        """Moves `read_position` behind mark-delete if mark-delete has overtaken it."""
        if self.read_position <= (self._md_ledger, self._md_entry):
            self.read_position = self._index.next_position(self._md_ledger, self._md_entry)

    @property
    def entries_since_first_unacked(self) -> int:
        """The number of entries between mark-delete and `read_position`."""
        read = self._index.previous_position(*self.read_position)
        return max(self._index.rank(*read) - self._index.rank(*self.mark_delete), 0)

    def individually_deleted(self) -> str:
        """Returns the acked ranges beyond mark-delete in Pulsar's form, `[(3:1..3:4],(3:6..3:9]]`.

        At most RANGES_SHOWN_MAX of them; `ranges_count` has the total.
        """
        shown: list[str] = []
        for after, last in self.ranges():
            if len(shown) == RANGES_SHOWN_MAX:
                break
            shown.append(f"({after}..{last}]")
        return f"[{','.join(shown)}]"


def mark_delete_before(
    index: LedgerIndex, position: Position, *, before_kept: bool = False
) -> Position:
    """Returns the mark-delete of a cursor that reads `position` next."""
    first = index.first_position
    if position <= first:
        if before_kept:
            return max(EARLIEST, Position(position.ledger_id, position.entry_id - 1))
        return first
    if position > index.last_confirmed:
        return index.last_confirmed
    return index.previous_position(*position)


def _with(waiters: list[OnDurable] | None, on_durable: OnDurable) -> list[OnDurable]:
    if waiters is None:
        return [on_durable]
    waiters.append(on_durable)
    return waiters
