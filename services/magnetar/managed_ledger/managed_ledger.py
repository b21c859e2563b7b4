"""A managed ledger: the ledgers of one topic in order, of which the last may grow, and its cursors.

Its parts are `LedgerIndex` (which entries exist), `Appender` (the writing end), `LedgerList` (the
metadata record and the deletion of ledgers), `Cursors`, and the process-wide `EntryCache`. Every
write of a record goes through the instance's `Tenure`, which `close` and `abandon` end. Opening an
idle managed ledger writes nothing: the first append creates a ledger. All methods belong to the
event loop's thread.

Invariants: positions only grow, also across restarts. A confirmed entry is readable until every
durable cursor has passed it and retention trims it. One owner writes, and a second owner's first
write fences the first. Callers see the semantics of ManagedLedgerImpl.

Trimming: `trim_plan` chooses the ledgers. They leave the record first, then their bytes are deleted
(`ledger_list`). At most REMOVALS_AT_ONCE_MAX managed ledgers of a process write that at once.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from pyroaring import BitMap

from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.log import get_logger
from magnetar.ledger.settings import Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.appender import Appender, AppenderState, OnAppended
from magnetar.managed_ledger.cache import CachedRun
from magnetar.managed_ledger.context import Checks, Context
from magnetar.managed_ledger.cursor import Cursor, mark_delete_before
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.cursors import Cursors
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_source import EntrySource
from magnetar.managed_ledger.errors import CursorClosed, ManagedLedgerClosed
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.settings import Retention
from magnetar.managed_ledger.tenure import Tenure
from magnetar.managed_ledger.trim_plan import consumed, trimmable
from magnetar.metadata.store import MetadataUnavailable, Record

TERMINATE_RETRY_S: Final = 0.5
TERMINATE_RETRY_S_MAX: Final = 30.0

log = get_logger("magnetar.managed_ledger")


class ManagedLedger:
    """The entries and cursors of one topic. Opened by a `ManagedLedgerFactory`."""

    __slots__ = (
        "_appender",
        "_context",
        "_cursors",
        "_index",
        "_list",
        "_on_closed",
        "_on_fenced",
        "_rank_opened",
        "_source",
        "_terminating",
        "_trimming",
        "horizon",
        "name",
        "quorums",
        "retention",
        "tenure",
        "trim_properties",
    )

    def __init__(
        self,
        tenure: Tenure,
        index: LedgerIndex,
        ledger_list: LedgerList,
        context: Context,
        on_closed: Callable[["ManagedLedger"], None],
    ) -> None:
        self.name = name = tenure.name
        self.retention: Retention | None = None
        self.horizon: Position | None = None
        """Consumers get no entry at or after it; None: no open transaction has an entry."""
        self.quorums: Quorums | None = None
        """The spread of ledgers created from now on; None: the settings decide."""
        self.tenure = tenure
        self.trim_properties: Callable[[], Mapping[str, str]] = dict
        """What each trim adds to the properties, in the same write."""
        self._index = index
        self._list = ledger_list
        self._context = context
        self._on_closed = on_closed
        self._on_fenced: Callable[[], None] = lambda: None
        self._appender = Appender(self, name, index, context)
        if ledger_list.record.terminated_at is not None:
            self._appender.terminated()
        self._source = EntrySource(name, index, self._appender, context)
        ledger_list.when_fenced(self._appender.fence)
        self._cursors = Cursors(self, tenure, index, ledger_list, context)
        self._terminating = False
        self._rank_opened = index.rank_end
        self._trimming = False

    @property
    def properties(self) -> Mapping[str, str]:
        return self._list.record.properties

    @property
    def last_confirmed(self) -> Position:
        """The last readable position; (ledger, -1) or EARLIEST if there never was one."""
        return self._index.last_confirmed

    @property
    def last_visible(self) -> Position:
        """The last position that consumers may read now."""
        if self.horizon is None:
            return self._index.last_confirmed
        return self._index.previous_position(*self.horizon)

    def move_horizon(self, horizon: Position | None) -> None:
        """Sets the horizon, and wakes the readers that waited for it."""
        if horizon != self.horizon:
            self.horizon = horizon
            self._appender.notify()

    @property
    def first_position(self) -> Position:
        """The position just before the first kept entry."""
        return self._index.first_position

    @property
    def trimmed_to(self) -> Position:
        """The last position that was trimmed."""
        return self._list.record.last_position

    @property
    def entries_total(self) -> int:
        return self._index.entries

    @property
    def bytes_total(self) -> int:
        return self._index.size_bytes

    @property
    def entries_added(self) -> int:
        """The number of entries appended since this instance was opened."""
        return self._index.rank_end - self._rank_opened

    @property
    def index(self) -> LedgerIndex:
        """The index of entries. Read-only."""
        return self._index

    @property
    def ledgers(self) -> list[LedgerInfo]:
        """The ledgers in order. Read-only."""
        return self._index.infos

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        return self._cursors.live

    @property
    def broken_cursors(self) -> Mapping[str, tuple[CursorLog, MagnetarError]]:
        """Cursors with an unreadable stored state, and the reasons."""
        return self._cursors.broken

    @property
    def terminated_at(self) -> Position | None:
        """The last position of a terminated managed ledger, once it is on record."""
        return self._list.record.terminated_at

    @property
    def terminated(self) -> bool:
        """Whether appends are refused for good; `terminated_at` follows."""
        return self.terminated_at is not None or self._appender.state is AppenderState.TERMINATED

    @property
    def created_ms(self) -> int:
        return self._list.record.created_ms

    @property
    def fenced(self) -> bool:
        """Whether another owner took over: this instance is unusable."""
        return self._appender.state is AppenderState.FENCED

    @property
    def state(self) -> str:
        """The state in Pulsar's internal stats."""
        appender = self._appender
        if appender.state is not AppenderState.OPEN:
            return appender.state
        if appender.rolling:
            return "CreatingLedger" if appender.writer is None else "ClosingLedger"
        return "ClosedLedger" if appender.writer is None else "LedgerOpened"

    @property
    def pending_appends(self) -> int:
        """The number of appended groups that are not completed."""
        return self._appender.pending

    def append(self, entries: list[bytes], on_appended: OnAppended) -> None:
        """Appends one or more entries as a group, contiguous in one ledger.

        Calls `on_appended(ledger id, first entry id, None)` once they are durable, or (-1, -1,
        error); in the order of the calls, on the loop's thread, never from inside the call.
        """
        self._appender.append(entries, on_appended)

    def add_append_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after `last_confirmed` moved, once per fsync."""
        self._appender.listeners = (*self._appender.listeners, listener)

    def remove_append_listener(self, listener: Callable[[], None]) -> None:
        """Removes a listener of `add_append_listener`."""
        kept = tuple(other for other in self._appender.listeners if other != listener)
        self._appender.listeners = kept

    def when_fenced(self, on_fenced: Callable[[], None]) -> None:
        """Calls `on_fenced` when another owner has taken over."""
        self._on_fenced = on_fenced

    def owner_changed(self, error: MagnetarError) -> None:
        """See `AppenderOwner.owner_changed`."""
        self.tenure.end(error)
        self._on_fenced()

    def when_settled(self, on_settled: Callable[[str], None]) -> None:
        """Calls `on_settled` with a cursor's name when a doubt about it is settled."""
        self._cursors.on_settled = on_settled

    def cursor_fenced(self, error: MagnetarError) -> None:
        """See `CursorOwner.cursor_fenced`."""
        self.tenure.end(error)
        self._appender.fence(error)

    def cursors_changed(self) -> None:
        """See `CursorsOwner.cursors_changed`."""
        # Without cursors, no entry will be read: do not cache any. A cursor with a payload reads
        # only while the topic is loaded.
        self._appender.caching = any(
            cursor.payload is None for cursor in self._cursors.live.values()
        )

    async def create_ledger(self) -> LedgerWriter:
        """See `AppenderOwner.create_ledger`."""
        writer = await self._list.create_ledger(self.quorums)
        self._list.delete_retired_soon()
        return writer

    def ledger_ended(self, info: LedgerInfo) -> None:
        """See `AppenderOwner.ledger_ended`."""
        if not info.entries:
            self._list.drop_empty(info.ledger_id)
            self._source.forget(info.ledger_id)
        self._source.sweep()
        self.trim_soon()

    def run_of(self, ledger_id: int, first_entry: int) -> CachedRun:
        """See `AppenderOwner.run_of`."""
        return self._source.run_of(ledger_id, first_entry)

    def read_cached(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry] | None:
        """Returns cached entries of one ledger from `start` (inclusive) on.

        None if the first is not cached, so `read` is needed; [] if it does not exist yet.
        """
        return self._source.read_cached(start, entries_max, bytes_max)

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Returns entries of one ledger from `start` (inclusive) on, at least one if any exists.

        Skips ends of ledgers and trimmed entries.
        """
        return await self._source.read(start, entries_max, bytes_max)

    async def read_entry(self, position: Position) -> Entry:
        """Returns one entry; raises NotFound if there is none at this position."""
        return await self._source.read_entry(position)

    async def find_by(
        self,
        predicate: Callable[[bytes], bool],
        after: Position = EARLIEST,
        *,
        published_before_ms: int | None = None,
    ) -> Position | None:
        """Returns the last entry after `after` for which `predicate` holds, if it holds for a head.

        A binary search that reads about log2(entries) entries. With `published_before_ms`, the time
        that `predicate` tests, an offloaded entry is not read: its file has the publish time.
        """
        return await self._source.find_by(predicate, after, published_before_ms)

    def next_position(self, position: Position) -> Position:
        """Returns the first entry after `position`, or a position that sorts before it."""
        return self._index.next_position(*position)

    def previous_position(self, position: Position) -> Position:
        """Returns the last entry before `position`, or `first_position`."""
        return self._index.previous_position(*position)

    def entries_between(self, after: Position, upto: Position) -> int:
        """Returns the number of entries after `after` up to and including `upto`."""
        return max(self._index.rank(*upto) - self._index.rank(*after), 0)

    async def open_cursor(
        self,
        name: str,
        *,
        initial: Position = LATEST,
        properties: Mapping[str, str] | None = None,
        before_kept: bool = False,
    ) -> Cursor:
        """Returns the durable cursor of this name; a new one reads `initial` first.

        With `before_kept`, `initial` may be before the first kept entry: an artifact has the
        trimmed ones. Raises CursorCorrupt and Conflict.
        """
        self.check_open()
        mark = mark_delete_before(self._index, initial, before_kept=before_kept)
        return await self._context.tasks.finish(
            self._cursors.open(name, mark, dict(properties or {})), f"cursor {name}"
        )

    async def restore_cursor(self, name: str) -> Cursor:
        """Returns an existing durable cursor, and reads it again if it is broken.

        Raises NotFound, and CursorCorrupt if it is still unreadable.
        """
        self.check_open()
        return await self._context.tasks.finish(self._cursors.restore(name), f"cursor {name}")

    def carry_payload(self, cursor: Cursor, payload: Callable[[], bytes]) -> None:
        """Stores `payload()` with every write of the cursor. Such a cursor reads no new entries."""
        cursor.payload = payload
        self.cursors_changed()

    def new_non_durable_cursor(
        self, name: str, start: Position, *, before_kept: bool = False
    ) -> Cursor:
        """Returns a cursor in memory that prevents no trimming, and reads `start` first.

        `before_kept` as for `open_cursor`.
        """
        mark = mark_delete_before(self._index, start, before_kept=before_kept)
        return self._cursors.new_non_durable(name, mark)

    async def load_cursor(self, stored: Record) -> None:
        """Restores the cursor of a record while the managed ledger is opened."""
        await self._cursors.load(stored)

    def cursor_in_doubt(self, name: str) -> bool:
        """Whether the cursor may have been deleted, with an unknown outcome."""
        return name in self._cursors.doubted

    async def delete_cursor(self, name: str) -> None:
        """Deletes the cursor, broken or not, with its stored state.

        Raises NotFound, and MetadataUnavailable if the outcome is unknown: the cursor is then in
        doubt until it is settled (`when_settled`).
        """
        await self._context.tasks.finish(self._cursors.delete(name), f"cursor {name}")

    def forget_cursor(self, cursor: Cursor) -> None:
        """Drops an unused non-durable cursor. Idempotent."""
        self._cursors.forget(cursor)

    @property
    def aborted(self) -> Cursor | None:
        """See `CursorOwner.aborted`."""
        return self._cursors.aborted

    def is_aborted(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the entry belongs to an aborted transaction. False for a trimmed entry."""
        aborted = self._cursors.aborted
        return (
            aborted is not None
            and 0 <= entry_id <= self._index.last_entry_of(ledger_id)
            and aborted.is_acked(ledger_id, entry_id)
        )

    async def abort_entries(self, entries: Mapping[int, BitMap]) -> None:
        """Makes entries unreadable for good: durable, then acked on every cursor. Idempotent.

        Retention trims them like others. `entries` has the entry ids by ledger.
        """
        aborted = await self._context.tasks.finish(
            self._cursors.open_aborted(), f"aborted entries of {self.name}"
        )
        for ledger_id, ids in entries.items():
            aborted.ack_entries(ledger_id, ids)
        await aborted.flush()
        for cursor in self._cursors.skipping():
            for ledger_id, ids in entries.items():
                cursor.skip_entries(ledger_id, ids)

    def set_retention(self, size_bytes: int, time_ms: int) -> None:
        """Sets how much consumed data is kept; -1 is no limit, 0 and 0 keep nothing.

        Before the first call, only `trim` trims, with 0 and 0.
        """
        self.retention = Retention(size_bytes, time_ms)
        self.trim_soon()

    def roll_if_aged(self) -> None:
        """Closes the newest ledger, in the background, if it has entries and is past its age.

        Appends roll ledgers over themselves. This is for a topic without appends, whose last ledger
        would otherwise be kept forever.
        """
        self._appender.roll_if_aged()

    @property
    def has_to_trim(self) -> bool:
        """Whether `trim` has work. Cheap if the newest ledger is the only one."""
        infos = self._index.infos
        if self.retention is None:
            return False
        if self._list.record.deleting:
            return True
        return bool(infos and infos[0].closed_ms and self._trimmable())

    def _consumed_rank(self) -> int:
        """Returns the rank up to which every durable cursor has consumed."""
        if self._cursors.broken:
            return 0  # their mark-delete positions are unknown
        marks = [cursor.mark_delete for cursor in self._cursors.live.values() if cursor.durable]
        return min((self._index.rank(*mark) for mark in marks), default=self._index.rank_end)

    def _trimmable(self, limit: Position | None = None) -> list[LedgerInfo]:
        """Returns the ledgers that retention trims now."""
        retention = self.retention or Retention()
        clock = self._context.clock
        for info in self._index.infos:
            if clock.is_future(info.closed_ms):
                # A clock that was ahead recorded its close. Start its retention time now: otherwise
                # it would delay the trimming of all later ledgers.
                info.closed_ms = clock.now_ms()
        rank = self._consumed_rank()
        if limit is not None:
            rank = min(rank, self._index.rank(*limit))
        return trimmable(self._index, rank, retention, clock.judged_ms())

    async def trim_limit(self) -> Position | None:
        """Returns how far compaction allows trimming; None if compaction is off."""
        return await self._context.trim_limit(self.name, self._list.record.created_ms)

    async def trim(self) -> None:
        """Deletes the closed ledgers that no durable cursor needs and retention does not keep."""
        if self._appender.state in (AppenderState.OPEN, AppenderState.TERMINATED):
            self._list.delete_retired_soon()
            if self._trimmable():
                await self._context.confirm(self.name)
                limit, checks = await self._context.checked_trim_limit(self.name, self.created_ms)
                await self._remove(lambda: self._trimmable(limit), checks)

    async def _remove(self, choose: Callable[[], list[LedgerInfo]], checks: Checks = ()) -> None:
        if not choose():
            return
        async with self._context.removals:
            for info in await self._list.remove_ledgers(choose, self.trim_properties, checks):
                self._source.forget(info.ledger_id)
        if self._cursors.aborted is not None:
            self._cursors.aborted.forget_trimmed()
        self._list.delete_retired_soon()

    def trim_soon(self) -> None:
        """Trims in the background if retention is known and ledgers are trimmable."""
        if self.retention is not None and not self._trimming and self._trimmable():
            self._trimming = True
            self._context.tasks.start(self._trim_now(), f"trim {self.name}")

    async def _trim_now(self) -> None:
        try:
            await self.trim()
        except MagnetarError as error:
            log.info("not trimmed, will retry", managed_ledger=self.name, error=str(error))
        finally:
            self._trimming = False

    async def truncate(self) -> None:
        """Deletes all current entries, regardless of retention; all cursors skip them."""
        self.check_open()
        await self._appender.roll_over()
        upto = self.last_confirmed
        for cursor in list(self._cursors.live.values()):
            if cursor.payload is not None:  # it must be stored before its entries are deleted
                cursor.store_payload(lambda _error: None)
                await cursor.flush()
            cursor.ack_cumulative(upto)
        rank = self._index.rank(*upto)
        await self._remove(lambda: consumed(self._index, min(rank, self._consumed_rank())))

    async def set_properties(self, updates: Mapping[str, str]) -> None:
        """Adds or replaces properties; durable when this returns."""
        await self._list.set_properties(lambda before: {**before, **updates})

    async def delete_property(self, key: str) -> None:
        """Deletes a property if it exists."""
        await self._list.set_properties(
            lambda before: {name: value for name, value in before.items() if name != key}
        )

    async def roll_over(self) -> None:
        """Closes the newest ledger; the next append opens another."""
        self.check_open()
        await self._appender.roll_over()

    async def close_failed_ledger(self) -> None:
        """Closes the newest ledger if an append to it has failed; raises PersistenceError.

        Until then, the next owner may find entries there that were never confirmed.
        """
        if self._appender.has_failed:
            await self._appender.roll_over()
        if self._appender.has_failed:
            raise PersistenceError(f"{self.name}: the ledger of a failed append is not closed yet")

    async def terminate(self) -> Position:
        """Refuses all later appends, forever; returns the position of the last entry.

        If the store does not answer, this raises MetadataUnavailable, appends stay refused, and the
        end is recorded in the background.
        """
        if self.terminated_at is not None:
            return self.terminated_at
        self.check_open()
        return await self._context.tasks.finish(self._terminate(), f"terminate {self.name}")

    async def _terminate(self) -> Position:
        await self._appender.finish(AppenderState.TERMINATED)
        try:
            await self._list.terminate(self.last_confirmed)
        except MetadataUnavailable:
            if not self._terminating and self.tenure.error is None:
                self._terminating = True
                self._context.tasks.start(self._terminate_later(), f"terminate {self.name}")
            raise
        return self.last_confirmed

    async def _terminate_later(self) -> None:
        backoff = Backoff(TERMINATE_RETRY_S, TERMINATE_RETRY_S_MAX, self._context.rng)
        while self.terminated_at is None and self.tenure.error is None:
            await asyncio.sleep(backoff.failed_s())
            try:
                await self._list.terminate(self.last_confirmed)
            except MagnetarError as error:
                log.info(
                    "termination not recorded, will retry",
                    managed_ledger=self.name,
                    error=str(error),
                )
        self._terminating = False
        self._appender.notify()  # informs drained consumers of the end

    async def close(self) -> None:
        """Completes pending appends, writes the cursors, and ends this instance. Idempotent.

        When it returns, no write of this instance is under way. A fenced instance only ends.
        """
        try:
            await self._appender.finish(AppenderState.CLOSED)
            if self._appender.state is AppenderState.TERMINATED and self.terminated_at is None:
                try:
                    await self._list.terminate(self.last_confirmed)
                except MagnetarError as error:
                    log.warning(
                        "termination not recorded", managed_ledger=self.name, error=str(error)
                    )
            for cursor in self._cursors.all():
                try:
                    await cursor.close()
                except MagnetarError as error:
                    log.warning("cursor not closed", cursor=cursor.name, error=str(error))
        finally:
            self._end()
            try:
                await self.tenure.settled()
            finally:
                self._on_closed(self)

    def abandon(self) -> None:
        """Ends this instance without writing: a task under way stops before its next write."""
        self._end()
        self._on_closed(self)

    def _end(self) -> None:
        self.tenure.end(ManagedLedgerClosed(f"{self.name} is closed"))
        self._appender.close_now()
        self._cursors.abandon(CursorClosed(f"{self.name} is closed"))
        self._source.forget_all()

    def check_open(self) -> None:
        """Raises the reason if this instance is closed or fenced."""
        error = self._appender.error
        if error is not None and self._appender.state is not AppenderState.TERMINATED:
            raise error
