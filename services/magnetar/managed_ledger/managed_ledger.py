"""A topic's log: ledgers in a row, of which the last may grow, and the cursors on them.

Parts: `LedgerIndex` (which entries there are), `Appender` (the writing end), `LedgerList` (the
metadata record and the deletion of ledgers), `Cursors`, and the process-wide `EntryCache`. Every
write of a record goes through the instance's `Tenure`, which `close` and `abandon` end.
Opening an idle one writes nothing: the first append creates a ledger. All of it is the loop's.

Invariants: positions only grow, also over restarts; what was confirmed is readable until every
durable cursor has passed it and retention lets it go; one owner writes, and a second one's first
write fences the first. Follows ManagedLedgerImpl in what callers see.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.log import get_logger
from magnetar.ledger.settings import Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.appender import Appender, AppenderState, OnAppended
from magnetar.managed_ledger.cache import CachedRun
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.cursor import Cursor, mark_delete_before
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.cursors import Cursors
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_source import EntrySource
from magnetar.managed_ledger.errors import CursorClosed, ManagedLedgerClosed
from magnetar.managed_ledger.guarded import Tenure
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.retaining import Retaining
from magnetar.managed_ledger.settings import Retention
from magnetar.managed_ledger.stats import ManagedLedgerStats, managed_ledger_stats
from magnetar.managed_ledger.trimming import consumed
from magnetar.metadata.store import MetadataUnavailable, Record

TERMINATE_RETRY_S: Final = 0.5
TERMINATE_RETRY_S_MAX: Final = 30.0

log = get_logger("magnetar.managed_ledger")


class ManagedLedger(Retaining):
    """See the module's text. Opened by a `ManagedLedgerFactory`."""

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
        "name",
        "quorums",
        "tenure",
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
        self.quorums: Quorums | None = None
        """Of the ledgers that are created from now on; None: as the settings say."""
        self.tenure = tenure
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

    # -- what there is

    @property
    def properties(self) -> Mapping[str, str]:
        return self._list.record.properties

    @property
    def last_confirmed(self) -> Position:
        """The greatest readable position; (ledger, -1) or EARLIEST where there never was one."""
        return self._index.last_confirmed

    @property
    def first_position(self) -> Position:
        """Just before the first kept entry."""
        return self._index.first_position

    @property
    def trimmed_to(self) -> Position:
        """The greatest position that was in the log and is there no more."""
        return self._list.record.last_position

    @property
    def entries_total(self) -> int:
        return self._index.entries

    @property
    def bytes_total(self) -> int:
        return self._index.size_bytes

    @property
    def entries_added(self) -> int:
        """How many entries were appended since this was opened."""
        return self._index.rank_end - self._rank_opened

    @property
    def index(self) -> LedgerIndex:
        """Which entries there are. To read, not to change."""
        return self._index

    @property
    def ledgers(self) -> list[LedgerInfo]:
        """The ledgers in order. To read, not to change."""
        return self._index.infos

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        return self._cursors.live

    @property
    def broken_cursors(self) -> Mapping[str, tuple[CursorLog, MagnetarError]]:
        """Cursors whose stored state cannot be read, and why."""
        return self._cursors.broken

    @property
    def terminated_at(self) -> Position | None:
        """The last position of a terminated log, once it is on record."""
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
        """Whether another owner took over: this instance is of no use any more."""
        return self._appender.state is AppenderState.FENCED

    @property
    def state(self) -> str:
        """As in Pulsar's internal stats."""
        appender = self._appender
        if appender.state is not AppenderState.OPEN:
            return appender.state
        if appender.rolling:
            return "CreatingLedger" if appender.writer is None else "ClosingLedger"
        return "ClosedLedger" if appender.writer is None else "LedgerOpened"

    @property
    def pending_appends(self) -> int:
        """Groups that were appended and are not completed."""
        return self._appender.pending

    # -- appending

    def append(self, entries: list[bytes], on_appended: OnAppended) -> None:
        """Appends one or more entries as a group, all in one ledger and next to each other.

        `on_appended(ledger id, first entry id, None)` once they are durable, or (-1, -1, error);
        in the order of the calls, on the loop's thread, never from inside the call.
        """
        self._appender.append(entries, on_appended)

    def add_append_listener(self, listener: Callable[[], None]) -> None:
        """Has `listener` called after `last_confirmed` moved: once for all that one fsync moved."""
        self._appender.listeners = (*self._appender.listeners, listener)

    def remove_append_listener(self, listener: Callable[[], None]) -> None:
        kept = tuple(other for other in self._appender.listeners if other != listener)
        self._appender.listeners = kept

    def when_fenced(self, on_fenced: Callable[[], None]) -> None:
        """Has `on_fenced` called when it shows that another owner took over."""
        self._on_fenced = on_fenced

    def owner_changed(self, error: MagnetarError) -> None:
        self.tenure.end(error)
        self._on_fenced()

    def when_settled(self, on_settled: Callable[[str], None]) -> None:
        """Has `on_settled` called with a cursor's name when a doubt about it has ended."""
        self._cursors.on_settled = on_settled

    def cursor_fenced(self, error: MagnetarError) -> None:
        self.tenure.end(error)
        self._appender.fence(error)

    def cursors_changed(self) -> None:
        # Entries that no cursor will read need not be kept in memory.
        self._appender.caching = bool(self._cursors.live)

    # -- for the appender

    async def create_ledger(self) -> LedgerWriter:
        writer = await self._list.create_ledger(self.quorums)
        self._list.delete_retired_soon()
        return writer

    def ledger_ended(self, info: LedgerInfo) -> None:
        if not info.entries:
            self._list.drop_empty(info.ledger_id)
            self._source.forget(info.ledger_id)
        self._source.sweep()
        self.trim_soon()

    def run_of(self, ledger_id: int, first_entry: int) -> CachedRun:
        return self._source.run_of(ledger_id, first_entry)

    # -- reading

    def read_cached(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry] | None:
        """Entries from `start` (inclusive) on that are in memory, of one ledger.

        None where the first is not, so that `read` is needed; [] where there is none yet.
        """
        return self._source.read_cached(start, entries_max, bytes_max)

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Entries from `start` (inclusive) on, at least one where there is one, of one ledger.

        Ends of ledgers and what was trimmed are skipped.
        """
        return await self._source.read(start, entries_max, bytes_max)

    async def read_entry(self, position: Position) -> Entry:
        """One entry; raises NotFound where there is none at this position."""
        return await self._source.read_entry(position)

    async def find_by(
        self,
        predicate: Callable[[bytes], bool],
        after: Position = EARLIEST,
        *,
        published_before_ms: int | None = None,
    ) -> Position | None:
        """The last entry behind `after` for which `predicate` holds, where it holds for a head.

        A binary search that reads about log2(entries) of them. With `published_before_ms`, by which
        the predicate goes, an offloaded entry is not read: its file tells when it was published.
        """
        return await self._source.find_by(predicate, after, published_before_ms)

    # -- positions

    def next_position(self, position: Position) -> Position:
        """The first entry after `position`, or where the next one will be or sort after."""
        return self._index.next_position(*position)

    def previous_position(self, position: Position) -> Position:
        """The last entry before `position`, or `first_position`."""
        return self._index.previous_position(*position)

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries are after `after` and at or before `upto`."""
        return max(self._index.rank(*upto) - self._index.rank(*after), 0)

    # -- cursors

    async def open_cursor(
        self,
        name: str,
        *,
        initial: Position | str = LATEST,
        properties: Mapping[str, str] | None = None,
        before_kept: bool = False,
    ) -> Cursor:
        """The durable cursor of this name. One that is new reads `initial` first.

        `initial` is a position, "earliest" or "latest". With `before_kept` it may stand before
        what is kept: an artefact has what was trimmed. Raises CursorCorrupt and Conflict.
        """
        self.check_open()
        mark = mark_delete_before(self._index, _named(initial), before_kept=before_kept)
        return await self._context.tasks.finish(
            self._cursors.open(name, mark, dict(properties or {})), f"cursor {name}"
        )

    def new_non_durable_cursor(
        self, name: str, start: Position, *, before_kept: bool = False
    ) -> Cursor:
        """A cursor that lives in memory only, holds no data, and reads `start` first.

        `before_kept` as for `open_cursor`.
        """
        mark = mark_delete_before(self._index, start, before_kept=before_kept)
        return self._cursors.new_non_durable(name, mark)

    async def load_cursor(self, stored: Record) -> None:
        """Restores the cursor of a record, when this is opened."""
        await self._cursors.load(stored)

    def cursor_in_doubt(self, name: str) -> bool:
        """Whether the cursor may have been deleted, and the store has not said so yet."""
        return name in self._cursors.doubted

    async def delete_cursor(self, name: str) -> None:
        """Deletes the cursor, broken or not, and what it stored.

        Raises NotFound, and MetadataUnavailable if the outcome is unknown: the cursor is then in
        doubt, until `when_settled` says otherwise.
        """
        await self._context.tasks.finish(self._cursors.delete(name), f"cursor {name}")

    def forget_cursor(self, cursor: Cursor) -> None:
        """Drops a non-durable cursor that nobody reads with any more. Idempotent."""
        self._cursors.forget(cursor)

    # -- trimming (see `retaining`)

    async def truncate(self) -> None:
        """Deletes everything readable now, whatever retention says; all cursors skip it."""
        self.check_open()
        await self._appender.roll_over()
        upto = self.last_confirmed
        for cursor in self._cursors.live.values():
            cursor.ack_cumulative(upto)
        rank = self._index.rank(*upto)
        await self._remove(lambda: consumed(self._index, min(rank, self._consumed_rank())))

    # -- properties and life

    def stats(self) -> ManagedLedgerStats:
        """A snapshot for people."""
        return managed_ledger_stats(self)

    async def set_properties(self, updates: Mapping[str, str]) -> None:
        """Adds or replaces properties; durable when this returns."""
        await self._list.set_properties(lambda before: {**before, **updates})

    async def delete_property(self, key: str) -> None:
        """Removes a property if it is there."""
        await self._list.set_properties(
            lambda before: {name: value for name, value in before.items() if name != key}
        )

    async def roll_over(self) -> None:
        """Closes the newest ledger; the next append begins a new one."""
        self.check_open()
        await self._appender.roll_over()

    async def terminate(self) -> Position:
        """Takes no more entries, ever; the position of the last one.

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
        delay_s = TERMINATE_RETRY_S
        while self.terminated_at is None and self.tenure.error is None:
            await asyncio.sleep(delay_s * self._context.rng.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, TERMINATE_RETRY_S_MAX)
            try:
                await self._list.terminate(self.last_confirmed)
            except MagnetarError as error:
                log.info("end not recorded yet", managed_ledger=self.name, error=str(error))
        self._terminating = False
        self._appender.notify()  # drained consumers hear of the end

    async def close(self) -> None:
        """Completes what was appended, writes the cursors, and ends this instance. Idempotent.

        When it returns, no write of this instance is under way. A fenced instance only ends.
        """
        try:
            await self._appender.finish(AppenderState.CLOSED)
            if self._appender.state is AppenderState.TERMINATED and self.terminated_at is None:
                try:
                    await self._list.terminate(self.last_confirmed)
                except MagnetarError as error:
                    log.warning("end not recorded", managed_ledger=self.name, error=str(error))
            for cursor in list(self._cursors.live.values()):
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
        """Ends this instance without writing: what is under way stops before its next write."""
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


def _named(initial: Position | str) -> Position:
    if isinstance(initial, Position):
        return initial
    return {"earliest": EARLIEST, "latest": LATEST}[initial]
