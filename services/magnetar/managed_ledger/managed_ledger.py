"""A topic's log: ledgers in a row, of which the last may grow, and the cursors on them.

Parts: `LedgerIndex` (which entries there are), `Appender` (the writing end), `LedgerList` (the
metadata record and the deletion of ledgers), the cursors, and the process-wide `EntryCache`.
Opening an idle one writes nothing: the first append creates a ledger. All of it is the loop's.

Invariants: positions only grow, also over restarts; what was confirmed is readable until every
durable cursor has passed it and retention lets it go; one owner writes, and a second one's first
write fences the first. Follows ManagedLedgerImpl in what callers see.
"""

from collections.abc import Callable, Mapping

from magnetar.core.errors import Conflict, MagnetarError, NotFound
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.log import get_logger
from magnetar.ledger.settings import Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.appender import Appender, AppenderState, OnAppended
from magnetar.managed_ledger.cache import CachedRun
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.cursor import Cursor, mark_delete_before
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_source import EntrySource
from magnetar.managed_ledger.errors import CursorClosed
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.record import CursorRecord, cursor_key, encode
from magnetar.managed_ledger.restoring import restore_again
from magnetar.managed_ledger.retaining import Retaining
from magnetar.managed_ledger.settings import Retention
from magnetar.managed_ledger.stats import ManagedLedgerStats, managed_ledger_stats
from magnetar.managed_ledger.trimming import consumed
from magnetar.metadata.store import ABSENT, Put

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
        "broken_cursors",
        "name",
        "quorums",
    )

    def __init__(
        self,
        name: str,
        index: LedgerIndex,
        ledger_list: LedgerList,
        context: Context,
        on_closed: Callable[["ManagedLedger"], None],
    ) -> None:
        self.name = name
        self.retention: Retention | None = None
        self.quorums: Quorums | None = None
        """Of the ledgers that are created from now on; None: as the settings say."""
        self.broken_cursors: dict[str, tuple[CursorLog, MagnetarError]] = {}
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
        self._cursors: dict[str, Cursor] = {}
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
        return self._cursors

    @property
    def terminated_at(self) -> Position | None:
        """The last position of a terminated log."""
        return self._list.record.terminated_at

    @property
    def terminated(self) -> bool:
        return self._list.record.terminated_at is not None

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

    def owner_changed(self) -> None:
        self._on_fenced()

    def cursor_fenced(self, error: MagnetarError) -> None:
        self._appender.fence(error)

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
        self._check_open()
        mark = mark_delete_before(self._index, _named(initial), before_kept=before_kept)
        return await self._context.tasks.finish(
            self._open_cursor(name, mark, dict(properties or {})), f"cursor {name}"
        )

    async def _open_cursor(
        self, name: str, mark_delete: Position, properties: dict[str, str]
    ) -> Cursor:
        if name in self.broken_cursors:
            return await restore_again(self, name, self._index, self._context)
        async with self._list.locked():
            if (existing := self._cursors.get(name)) is not None:
                if not existing.durable:
                    raise Conflict(f"{name} is a non-durable cursor of {self.name}")
                return existing
            self._check_open()
            now_ms = self._context.clock.now_ms()
            record = CursorRecord(
                mark_delete=mark_delete,
                created_ms=now_ms,
                last_active_ms=now_ms,
                switched_ms=now_ms,
                properties=properties,
            )
            put = Put(cursor_key(self.name, name), encode(record), ABSENT)
            revision = await self._list.create_cursor(put)
            cursor_log = CursorLog(self._context, self.name, name, record, revision)
            return self.adopt(
                Cursor(name, self, self._index, record.mark_delete, self._context, cursor_log)
            )

    def new_non_durable_cursor(
        self, name: str, start: Position, *, before_kept: bool = False
    ) -> Cursor:
        """A cursor that lives in memory only, holds no data, and reads `start` first.

        `before_kept` as for `open_cursor`.
        """
        self._check_open()
        existing = self._cursors.get(name)
        if existing is not None and existing.durable:
            raise Conflict(f"{name} is a durable cursor of {self.name}")
        mark = mark_delete_before(self._index, start, before_kept=before_kept)
        return self.adopt(Cursor(name, self, self._index, mark, self._context, None))

    def adopt(self, cursor: Cursor) -> Cursor:
        """Takes a cursor that was created or read back into the list."""
        self._cursors[cursor.name] = cursor
        # Entries that no cursor will read need not be kept in memory.
        self._appender.caching = True
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Deletes the cursor and what it stored. Raises NotFound."""
        await self._context.tasks.finish(self._delete_cursor(name), f"cursor {name}")

    async def _delete_cursor(self, name: str) -> None:
        cursor = self._cursors.get(name)
        if cursor is None and name not in self.broken_cursors:
            raise NotFound(f"no cursor {name} in {self.name}")
        cursor_log = self.broken_cursors[name][0] if cursor is None else cursor.log
        if cursor_log is not None:
            await self._list.delete_cursor(cursor_log)
        if cursor is not None:
            cursor.abandon(CursorClosed(f"cursor {name} was deleted"))
        if self._cursors.get(name) is cursor:
            self._cursors.pop(name, None)
        self.broken_cursors.pop(name, None)
        self._appender.caching = bool(self._cursors)
        self._list.delete_retired_soon()
        self.trim_soon()

    def forget_cursor(self, cursor: Cursor) -> None:
        """Lets go of a non-durable cursor that nobody reads with any more. Idempotent."""
        if self._cursors.get(cursor.name) is cursor:
            del self._cursors[cursor.name]
            self._appender.caching = bool(self._cursors)
        cursor.abandon(CursorClosed(f"cursor {cursor.name} was deleted"))

    # -- trimming (see `retaining`)

    async def truncate(self) -> None:
        """Deletes everything readable now, whatever retention says; all cursors skip it."""
        self._check_open()
        await self._appender.roll_over()
        upto = self.last_confirmed
        for cursor in self._cursors.values():
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
        self._check_open()
        await self._appender.roll_over()

    async def terminate(self) -> Position:
        """Takes no more entries, ever; the position of the last one."""
        if self.terminated_at is not None:
            return self.terminated_at
        self._check_open()
        return await self._context.tasks.finish(self._terminate(), f"terminate {self.name}")

    async def _terminate(self) -> Position:
        await self._appender.finish(AppenderState.TERMINATED)
        await self._list.terminate(self.last_confirmed)
        return self.last_confirmed

    async def close(self) -> None:
        """Completes what was appended, writes the cursors, and lets go of everything. Idempotent.

        A fenced one only lets go.
        """
        try:
            await self._appender.finish(AppenderState.CLOSED)
            for cursor in list(self._cursors.values()):
                try:
                    await cursor.close()
                except MagnetarError as error:
                    log.warning("cursor not closed", cursor=cursor.name, error=str(error))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Lets go of everything without writing."""
        error = CursorClosed(f"{self.name} is closed")
        self._appender.close_now()
        for cursor in self._cursors.values():
            cursor.abandon(error)
        self._source.forget_all()
        self._on_closed(self)

    def _check_open(self) -> None:
        error = self._appender.error
        if error is not None and self._appender.state is not AppenderState.TERMINATED:
            raise error


def _named(initial: Position | str) -> Position:
    if isinstance(initial, Position):
        return initial
    return {"earliest": EARLIEST, "latest": LATEST}[initial]
