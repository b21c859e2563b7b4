"""The part of a managed ledger that lets go of what nobody needs any more.

Which ledgers may go is decided by `trimming`. They leave the record first, and their bytes go then
(`ledger_list`). At most REMOVALS_AT_ONCE_MAX of a process's logs write that at the same time.
"""

from collections.abc import Callable

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.managed_ledger.appender import Appender, AppenderState
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.cursors import Cursors
from magnetar.managed_ledger.entry_source import EntrySource
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.settings import Retention
from magnetar.managed_ledger.trimming import trimmable

log = get_logger("magnetar.managed_ledger")


class Retaining:
    """See the module's text. No object of its own: its fields are the managed ledger's."""

    __slots__ = ("_trimming", "retention")

    name: str
    retention: Retention | None
    _appender: Appender
    _context: Context
    _cursors: Cursors
    _index: LedgerIndex
    _list: LedgerList
    _source: EntrySource
    _trimming: bool

    def set_retention(self, size_bytes: int, time_ms: int) -> None:
        """How much of what is consumed is kept; -1 is no limit, 0 and 0 keep nothing.

        Until it is told, nothing is trimmed but by calls of `trim`, for which it then is 0 and 0.
        """
        self.retention = Retention(size_bytes, time_ms)
        self.trim_soon()

    def roll_if_aged(self) -> None:
        """Closes the newest ledger, in the background, where it has entries and is past its age.

        Appends see to that themselves; this is for a log that gets none any more, whose last
        ledger would be kept for ever.
        """
        self._appender.roll_if_aged()

    @property
    def has_to_trim(self) -> bool:
        """Whether `trim` has something to do. Costs little where the newest ledger is the only."""
        infos = self._index.infos
        if self.retention is None:
            return False
        if self._list.record.deleting:
            return True
        return bool(infos and infos[0].closed_ms and self._trimmable())

    def _consumed_rank(self) -> int:
        """The rank up to which every durable cursor has consumed."""
        if self._cursors.broken:
            return 0  # nobody knows what they still need
        marks = [c.mark_delete for c in self._cursors.live.values() if c.durable]
        return min((self._index.rank(*mark) for mark in marks), default=self._index.rank_end)

    def _trimmable(self, limit: Position | None = None) -> list[LedgerInfo]:
        retention = self.retention or Retention()
        clock = self._context.clock
        for info in self._index.infos:
            if clock.is_future(info.closed_ms):
                # It was closed by now, whatever a clock said that was ahead then: its time, which
                # holds up all that come behind it, begins at last.
                info.closed_ms = clock.now_ms()
        rank = self._consumed_rank()
        if limit is not None:
            rank = min(rank, self._index.rank(*limit))
        return trimmable(self._index, rank, retention, clock.judged_ms())

    async def trim_limit(self) -> Position | None:
        """How far retention may go, as far as compaction is concerned; None: compaction is off."""
        return await self._context.trim_limit(self.name, self._list.record.created_ms)

    async def trim(self) -> None:
        """Deletes the closed ledgers that no durable cursor needs and retention lets go."""
        if self._appender.state in (AppenderState.OPEN, AppenderState.TERMINATED):
            self._list.delete_retired_soon()
            if self._trimmable():
                await self._context.confirm(self.name)
                limit = await self.trim_limit()
                await self._remove(lambda: self._trimmable(limit))

    async def _remove(self, choose: Callable[[], list[LedgerInfo]]) -> None:
        if not choose():
            return
        async with self._context.removals:
            for info in await self._list.remove_ledgers(choose):
                self._source.forget(info.ledger_id)
        self._list.delete_retired_soon()

    def trim_soon(self) -> None:
        """Trims in the background, where retention is known and there is something to trim."""
        if self.retention is not None and not self._trimming and self._trimmable():
            self._trimming = True
            self._context.tasks.start(self._trim_now(), f"trim {self.name}")

    async def _trim_now(self) -> None:
        try:
            await self.trim()
        except MagnetarError as error:
            log.info("not trimmed now", managed_ledger=self.name, error=str(error))
        finally:
            self._trimming = False
