"""The cursors of one managed ledger: creates, restores and deletes them.

A cursor that cannot be read back does not prevent opening the topic: it is `broken`, and keeps the
entries after its record's mark-delete. It is read again for each subscriber, and from time to time,
because the cause may have passed (the bookies of its ledger were unavailable).

A deletion ends the cursor before it deletes the record, so no write of the cursor meets a deleted
record. If the deletion fails, the cursor resumes. If its outcome is unknown, the cursor stays ended
and its acks get no receipt until the store has shown whether it still exists: a background task
checks, and so does every caller that opens or deletes the cursor.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.core.backoff import Backoff
from magnetar.core.errors import Conflict, MagnetarError, NotFound
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.cursor import Cursor, CursorOwner
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.errors import CursorClosed, CursorCorrupt, ManagedLedgerFenced
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.record import (
    ABORTED_CURSOR,
    PAYLOAD_CURSORS,
    CursorRecord,
    aborted_key,
    cursor_key,
    cursor_name,
    decode_cursor,
    is_aborted_key,
)
from magnetar.managed_ledger.tenure import Tenure
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, MetadataUnavailable, Put, Record

SETTLE_RETRY_S: Final = 0.5
SETTLE_RETRY_S_MAX: Final = 30.0

log = get_logger("magnetar.managed_ledger")


class CursorsOwner(CursorOwner, Protocol):
    """The managed ledger of the cursors."""

    def check_open(self) -> None:
        """Raises the reason if the managed ledger accepts no new cursors."""

    def cursors_changed(self) -> None:
        """Called after a cursor was added or removed."""


class Cursors:
    """The cursors of one managed ledger by name: live, broken and in doubt."""

    __slots__ = (
        "_context",
        "_index",
        "_list",
        "_owner",
        "_tenure",
        "aborted",
        "broken",
        "doubted",
        "live",
        "on_settled",
    )

    def __init__(
        self,
        owner: CursorsOwner,
        tenure: Tenure,
        index: LedgerIndex,
        ledger_list: LedgerList,
        context: Context,
    ) -> None:
        self.live: dict[str, Cursor] = {}
        self.aborted: Cursor | None = None
        """The aborted entries of transactions; not a cursor of a subscription."""
        self.broken: dict[str, tuple[CursorLog, MagnetarError]] = {}
        self.doubted: dict[str, tuple[CursorLog, CursorClosed]] = {}
        """Cursors that may have been deleted; they are `live` or `broken` as well."""
        self.on_settled: Callable[[str], None] = lambda _name: None
        self._owner = owner
        self._tenure = tenure
        self._index = index
        self._list = ledger_list
        self._context = context

    async def open(self, name: str, mark_delete: Position, properties: dict[str, str]) -> Cursor:
        """Returns the durable cursor of this name; creates it if it does not exist."""
        await self._settle_and_notify(name)
        if name in self.broken:
            return await self._restore_again(name)
        async with self._list.locked():
            if (existing := self.live.get(name)) is not None:
                if not existing.durable:
                    raise Conflict(f"{name} is a non-durable cursor of {self._tenure.name}")
                return existing
            self._owner.check_open()
            now_ms = self._context.clock.now_ms()
            record = CursorRecord(
                mark_delete=mark_delete,
                created_ms=now_ms,
                last_active_ms=now_ms,
                switched_ms=now_ms,
                properties=properties,
                initial=mark_delete,
            )
            put = Put(cursor_key(self._tenure.name, name), encode(record), ABSENT)
            put, revision = await self._list.create_cursor(put)
            record = decode_cursor(put.key, put.value)
            cursor_log = CursorLog(self._context, self._tenure, put.key, record, revision)
            return self.adopt(self._cursor(name, record.mark_delete, cursor_log))

    async def restore(self, name: str) -> Cursor:
        """Returns an existing durable cursor, and reads it again if it is broken.

        Raises NotFound, and CursorCorrupt if it is still unreadable.
        """
        await self._settle_and_notify(name)
        if name in self.broken:
            return await self._restore_again(name)
        cursor = self.live.get(name)
        if cursor is None or not cursor.durable:
            raise NotFound(f"cursor {name} does not exist")
        return cursor

    async def open_aborted(self) -> Cursor:
        """Returns the aborted entries; creates their record with the first ones."""
        async with self._list.locked():
            if self.aborted is None:
                self._owner.check_open()
                now_ms = self._context.clock.now_ms()
                # Every kept entry up to its mark-delete is an aborted one.
                mark = self._index.first_position
                record = CursorRecord(mark, now_ms, now_ms, now_ms)
                put = Put(aborted_key(self._tenure.name), encode(record), ABSENT)
                put, revision = await self._list.create_cursor(put)
                record = decode_cursor(put.key, put.value)
                cursor_log = CursorLog(self._context, self._tenure, put.key, record, revision)
                self._tenure.check()
                self.aborted = self._cursor(ABORTED_CURSOR, record.mark_delete, cursor_log)
            return self.aborted

    def new_non_durable(self, name: str, mark_delete: Position) -> Cursor:
        """Returns a new cursor that exists in memory only."""
        self._owner.check_open()
        existing = self.live.get(name)
        if existing is not None and existing.durable:
            raise Conflict(f"{name} is a durable cursor of {self._tenure.name}")
        return self.adopt(self._cursor(name, mark_delete, None))

    def adopt(self, cursor: Cursor) -> Cursor:
        """Adds a created or restored cursor, unless the instance has ended."""
        self._tenure.check()
        if self.aborted is not None and cursor.name not in PAYLOAD_CURSORS:
            cursor.skip_all_of(self.aborted)
        self.live[cursor.name] = cursor
        self._owner.cursors_changed()
        return cursor

    def _cursor(self, name: str, mark_delete: Position, cursor_log: CursorLog | None) -> Cursor:
        return Cursor(name, self._owner, self._index, mark_delete, self._context, cursor_log)

    async def load(self, stored: Record) -> None:
        """Restores the cursor of a record, when the managed ledger is opened."""
        record = decode_cursor(stored.key, stored.value)
        cursor_log = CursorLog(self._context, self._tenure, stored.key, record, stored.revision)
        if is_aborted_key(stored.key):
            await self._load_aborted(cursor_log)
        else:
            await self._restore(cursor_name(stored.key), cursor_log)

    async def _load_aborted(self, cursor_log: CursorLog) -> None:
        """Restores the aborted entries. Raises CursorCorrupt: without them, none may be read."""
        aborted = await self._loaded(ABORTED_CURSOR, cursor_log)
        self._tenure.check()
        self.aborted = aborted
        for cursor in self.skipping():
            cursor.skip_all_of(aborted)
        self._retire(aborted, cursor_log)

    async def _restore(self, name: str, cursor_log: CursorLog) -> Cursor | None:
        """Returns the cursor as last written; None if it is broken."""
        try:
            cursor = await self._loaded(name, cursor_log)
        except CursorCorrupt as error:
            log.error("cursor cannot be read", error=str(error))
            self.broken[name] = (cursor_log, error)
            return None
        self.adopt(cursor)
        self.broken.pop(name, None)
        self._retire(cursor, cursor_log)
        return cursor

    def _retire(self, cursor: Cursor, cursor_log: CursorLog) -> None:
        if cursor_log.record.deleting:
            self._context.tasks.start(cursor.retire(), f"retire {cursor_log.key}")

    async def _loaded(self, name: str, cursor_log: CursorLog) -> Cursor:
        """Returns the cursor as last written; raises CursorCorrupt."""
        state = await cursor_log.load()
        mark = state.mark_delete
        if mark > self._index.last_confirmed:
            # A later owner may have written the record; it covers that owner's entries.
            await self._tenure.confirm()
            # Only confirmed entries can be acked: the managed ledger lost some.
            log.error(
                "cursor is beyond the last entry",
                cursor=cursor_log.key,
                mark_delete=str(mark),
                last_confirmed=str(self._index.last_confirmed),
            )
            mark = self._index.last_confirmed
        cursor = self._cursor(name, Position(*mark), cursor_log)
        cursor.restore(state.holes, state.batches, state.pending)
        if state.payload:
            cursor.payload = lambda: state.payload
        cursor.skip_acked()
        return cursor

    async def _restore_again(self, name: str) -> Cursor:
        """Restores a broken cursor; raises CursorCorrupt if it is still unreadable."""
        cursor_log, _ = self.broken[name]
        async with cursor_log.locked():
            cursor = self.live.get(name)
            if cursor is None and name in self.broken:
                try:
                    cursor = await self._restore(name, cursor_log)
                except ManagedLedgerFenced as error:
                    self._owner.cursor_fenced(error)  # an idle topic would not find out otherwise
                    raise
                if cursor is None:
                    raise self.broken[name][1]
        if cursor is None:
            raise NotFound(f"cursor {name} was deleted meanwhile")
        return cursor

    async def delete(self, name: str) -> None:
        """Deletes the cursor with its ledgers.

        Raises NotFound, and MetadataUnavailable if the outcome is unknown.
        """
        while await self._settle(name) is not False:  # False: an earlier deletion took effect
            cursor = self.live.get(name)
            if cursor is not None and cursor.log is None:
                self.forget(cursor)
                return
            cursor_log = self._log_of(name)
            async with cursor_log.locked():
                if self._log_of(name) is not cursor_log:
                    raise NotFound(f"cursor {name} was deleted meanwhile")
                # The deletion that held the lock may have no known outcome: settle it first.
                if name not in self.doubted:
                    await self._delete(name, cursor_log)
                    return

    async def _delete(self, name: str, cursor_log: CursorLog) -> None:
        error = CursorClosed(f"cursor {name} was deleted")
        self._end(name, cursor_log, error)
        try:
            await self._list.delete_cursor(cursor_log)
        except MetadataUnavailable:
            self.doubted[name] = cursor_log, error
            self._context.tasks.start(self._settle_later(name), f"settle {cursor_log.key}")
            raise
        except MagnetarError:
            self._resume(name, cursor_log, error)
            raise
        self._drop(name)

    def forget(self, cursor: Cursor) -> None:
        """Drops a non-durable cursor. Idempotent."""
        if self.live.get(cursor.name) is cursor:
            del self.live[cursor.name]
            self._owner.cursors_changed()
        cursor.abandon(CursorClosed(f"cursor {cursor.name} was deleted"))

    def abandon(self, error: MagnetarError) -> None:
        """Ends all cursors without writing."""
        for cursor in self.all():
            cursor.abandon(error)

    def all(self) -> list[Cursor]:
        """The live cursors, and the aborted entries."""
        return [*self.live.values(), *(() if self.aborted is None else (self.aborted,))]

    def skipping(self) -> list[Cursor]:
        """The live cursors that skip aborted entries."""
        return [cursor for cursor in self.live.values() if cursor.name not in PAYLOAD_CURSORS]

    def _log_of(self, name: str) -> CursorLog:
        cursor = self.live.get(name)
        cursor_log = None if cursor is None else cursor.log
        if cursor_log is None and name in self.broken:
            cursor_log = self.broken[name][0]
        if cursor_log is None:
            raise NotFound(f"no cursor {name} in {self._tenure.name}")
        return cursor_log

    def _end(self, name: str, cursor_log: CursorLog, error: CursorClosed) -> None:
        cursor_log.end(error)
        if (cursor := self.live.get(name)) is not None:
            cursor.abandon(error)

    def _resume(self, name: str, cursor_log: CursorLog, error: CursorClosed) -> None:
        cursor_log.resume()
        if (cursor := self.live.get(name)) is not None:
            cursor.resume(error)

    def _drop(self, name: str) -> None:
        self.live.pop(name, None)
        self.broken.pop(name, None)
        self._owner.cursors_changed()
        self._list.delete_retired_soon()
        self._owner.trim_soon()

    async def _settle_and_notify(self, name: str) -> None:
        """Settles a doubt. Only the caller that ends it notifies: a later deletion is another
        doubt."""
        if await self._settle(name) is not None:
            self.on_settled(name)

    async def _settle(self, name: str) -> bool | None:
        """Returns whether a cursor in doubt exists, after resuming or dropping it.

        Returns None if the cursor is not in doubt.
        """
        doubt = self.doubted.get(name)
        if doubt is None:
            return None
        cursor_log, error = doubt
        async with cursor_log.locked():
            if self.doubted.get(name) is not doubt:
                return None  # another caller has settled it
            exists = await self._list.keep_cursor(cursor_log)
            del self.doubted[name]
            if exists:
                self._resume(name, cursor_log, error)
            else:
                self._drop(name)
        return exists

    async def _settle_later(self, name: str) -> None:
        backoff = Backoff(SETTLE_RETRY_S, SETTLE_RETRY_S_MAX, self._context.rng)
        while name in self.doubted and self._tenure.error is None:
            await asyncio.sleep(backoff.failed_s())
            try:
                await self._settle_and_notify(name)
            except MagnetarError as error:
                log.info("cursor in doubt, will check again", cursor=name, error=str(error))
