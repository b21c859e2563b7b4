"""The metadata record of one managed ledger, and the writes that include it.

All writes are serialized here and use compare-and-swap. Memory follows the store, and every write
contains the current state of all ledgers. A write and its effect on memory are never separated: a
caller that is cancelled meanwhile (its client left, its deadline passed) does not cancel them.
Otherwise the next write would meet the revision of the last one, and take itself for fenced.

A ledger leaves the record before its bytes are deleted: its id moves to `deleting`, and the first
write after the deletion drops it, so an interrupted deletion is resumed. A ledger that cannot be
deleted now stays there and does not delay the others.

Every write uses the instance's `Tenure`, which retries it while its outcome is unknown. If the
outcome stays unknown, the next write reads the record first.
"""

import asyncio
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from magnetar.core.errors import Conflict, MagnetarError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.ledger.settings import Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.context import Checks, Context
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.record import LedgerItem, ManagedLedgerRecord, managed_ledger_key
from magnetar.managed_ledger.tenure import Tenure
from magnetar.metadata.records import encode
from magnetar.metadata.store import (
    BadRevision,
    Check,
    Delete,
    MetadataUnavailable,
    Operation,
    Put,
)

T = TypeVar("T")

OnFenced = Callable[[ManagedLedgerFenced], None]

log = get_logger("magnetar.managed_ledger")


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A write of unknown outcome, and its effect on memory if it landed."""

    record: ManagedLedgerRecord
    removed: Collection[int] = frozenset()
    """Ledgers that it removes from the list."""
    unlisted: tuple[int, ...] = ()
    """A ledger that it creates: without a writer, the ledger stays empty."""


class LedgerList:
    """Reads and writes the record of one managed ledger."""

    __slots__ = (
        "_context",
        "_created",
        "_deleting",
        "_index",
        "_lock",
        "_on_fenced",
        "_record",
        "_revision",
        "_tenure",
        "_unanswered",
        "_unlisted",
        "name",
    )

    def __init__(
        self,
        tenure: Tenure,
        record: ManagedLedgerRecord,
        revision: int,
        index: LedgerIndex,
        context: Context,
    ) -> None:
        self.name = tenure.name
        self._tenure = tenure
        self._record = record
        self._revision = revision
        self._index = index
        self._context = context
        self._lock: asyncio.Lock | None = None
        # Empty ledgers that have left the index, but not yet the record.
        self._unlisted: tuple[int, ...] = ()
        self._deleting = False
        self._on_fenced: OnFenced | None = None
        self._unanswered: list[_Unanswered] = []
        # Cursors whose creation was not answered, by key.
        self._created: dict[str, Put] = {}

    @property
    def record(self) -> ManagedLedgerRecord:
        """The record as last read or written."""
        return self._record

    def when_fenced(self, on_fenced: OnFenced) -> None:
        """Calls `on_fenced` when a write shows another owner."""
        self._on_fenced = on_fenced

    def locked(self) -> asyncio.Lock:
        """Held while the record, or the set of cursors, changes."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    async def create_ledger(self, quorums: Quorums | None) -> LedgerWriter:
        """Creates the next ledger and adds it to record and index, in one transaction."""
        return await self._whole(self._create_ledger(quorums))

    async def _create_ledger(self, quorums: Quorums | None) -> LedgerWriter:
        async with self.locked():
            await self._find_out()
            while True:
                created_ms = self._context.clock.now_ms()
                planned: dict[int, ManagedLedgerRecord] = {}

                def with_ledger(
                    ledger_id: int,
                    created_ms: int = created_ms,
                    planned: dict[int, ManagedLedgerRecord] = planned,
                ) -> Put:
                    self._index.check_new(ledger_id)
                    new = LedgerItem(ledger_id, created_ms)
                    planned[ledger_id] = self._changed(ledgers=(*_items(self._index.infos), new))
                    return self._put(planned[ledger_id])

                try:
                    with self._fencing():
                        created = await self._tenure.create(
                            {"magnetar.managed-ledger": self.name}, with_ledger, quorums
                        )
                except MagnetarError:  # an earlier attempt without an answer may have landed
                    self._unanswered = [
                        _Unanswered(record, unlisted=(ledger_id,))
                        for ledger_id, record in planned.items()
                    ]
                    raise
                self._written(planned[created.ledger_id], created.revision)
                if created.writer is not None:
                    self._index.add(LedgerInfo(created.ledger_id, created_ms))
                    return created.writer
                # The record lists it, empty for good: create another in its place.
                self._unlisted = (*self._unlisted, created.ledger_id)

    async def remove_ledgers(
        self,
        choose: Callable[[], list[LedgerInfo]],
        properties: Callable[[], Mapping[str, str]],
        checks: Checks = (),
    ) -> list[LedgerInfo]:
        """Removes the ledgers that `choose` returns, a head of the list, from record and index.

        The same write adds the result of `properties` to the log's properties. Raises Conflict if
        one of `checks` does not hold.
        """
        return await self._whole(self._remove_ledgers(choose, properties, checks))

    async def _remove_ledgers(
        self,
        choose: Callable[[], list[LedgerInfo]],
        properties: Callable[[], Mapping[str, str]],
        checks: Checks,
    ) -> list[LedgerInfo]:
        async with self.locked():
            await self._find_out()
            removed = choose()
            if not removed:
                return []
            gone = {info.ledger_id for info in removed}
            last = max(Position(info.ledger_id, info.entries - 1) for info in removed)
            await self._write(
                self._changed(
                    ledgers=_items(i for i in self._index.infos if i.ledger_id not in gone),
                    properties={**self._record.properties, **properties()},
                    last_position=last,
                    deleting=(*self._record.deleting, *sorted(gone)),
                ),
                removed=gone,
                checks=checks,
            )
            self._index.remove(gone)
            return removed

    def drop_empty(self, ledger_id: int) -> None:
        """Removes an empty, closed ledger from the index; the next write removes it from the
        record.

        Until then it is the record's last ledger, which an opening finds empty again.
        """
        self._index.remove({ledger_id})
        self._unlisted = (*self._unlisted, ledger_id)

    def delete_retired_soon(self) -> None:
        """Starts deleting the ledgers that the record lists for deletion."""
        if self._record.deleting and not self._deleting and self._tenure.error is None:
            self._deleting = True
            self._context.tasks.start(self._delete_retired(), f"retire {self.name}")

    async def _delete_retired(self) -> None:
        try:
            while gone := await self._deleted_of(self._record.deleting):
                # After the ledgers' own records: an offload of one of them cannot commit any more.
                await self._context.cold.delete(self.name, gone)
                left = tuple(i for i in self._record.deleting if i not in gone)
                self._record = msgspec.structs.replace(self._record, deleting=left)
        except MagnetarError as error:
            # They stay in the record: the next trim or opening deletes them.
            log.info(
                "ledgers not deleted, will retry with the next trim",
                managed_ledger=self.name,
                error=str(error),
            )
        finally:
            self._deleting = False

    async def _deleted_of(self, retired: tuple[int, ...]) -> set[int]:
        """Deletes retired ledgers; returns those that are gone.

        Raises MetadataUnavailable, or the error that ended this instance. No write of a former
        instance can list these ledgers again, because they left the record for good. So they may be
        deleted although this instance has not written the record.
        """
        gone: set[int] = set()
        for ledger_id in retired:
            self._tenure.check()
            try:
                await self._context.ledgers.delete(ledger_id)
            except MetadataUnavailable:
                raise
            except MagnetarError as error:
                log.info(
                    "ledger not deleted now",
                    managed_ledger=self.name,
                    ledger=ledger_id,
                    error=str(error),
                )
            else:
                gone.add(ledger_id)
        return gone

    async def set_properties(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Replaces the properties by the result of `change`."""
        await self._whole(
            self._write_changed(lambda: self._changed(properties=change(self._record.properties)))
        )

    async def terminate(self, position: Position) -> None:
        """Records the last position, unless one is recorded."""
        await self._whole(self._terminate(position))

    async def _terminate(self, position: Position) -> None:
        async with self.locked():
            await self._find_out()
            if self._record.terminated_at is None:
                await self._write(self._changed(terminated_at=position))

    async def create_cursor(self, put: Put) -> tuple[Put, int]:
        """Writes a new cursor's record; returns the written record and its revision. Needs
        `locked`.

        If an earlier attempt without an answer landed, that is the cursor. The transaction checks
        the managed ledger's record, so none lands after its deletion.
        """
        await self._find_out()
        check = Check(managed_ledger_key(self.name), self._revision)
        with self._fencing():
            try:
                revision = await self._tenure.write([put, check])
            except MetadataUnavailable:
                self._created[put.key] = put
                raise
            except BadRevision as error:
                if error.key != put.key:
                    raise
                earlier = self._created.pop(put.key, None)
                stored = await self._context.store.get(put.key)
                if earlier is None or stored is None or stored.value != earlier.value:
                    raise
                return earlier, stored.revision
            self._created.pop(put.key, None)
            return put, revision

    async def delete_cursor(self, cursor_log: CursorLog) -> None:
        """Deletes a cursor's record; this record then lists its ledgers for deletion.

        Needs `cursor_log.locked`. Raises MetadataUnavailable if the outcome is unknown.
        """
        async with cursor_log.recording(), self.locked():
            await cursor_log.find_out()
            await self._find_out()
            operations: list[Operation] = [Delete(cursor_log.key, cursor_log.revision)]
            ledger_ids = cursor_log.ledger_ids
            record = self._changed(deleting=(*self._record.deleting, *ledger_ids))
            if ledger_ids:
                operations.append(self._put(record))
            else:  # so that it lands under this instance only
                operations.insert(0, Check(managed_ledger_key(self.name), self._revision))
            # The record's own write first: it shows whether an unanswered attempt landed.
            operations.reverse()
            try:
                with self._fencing():
                    revision = await self._tenure.write(operations)
            except MetadataUnavailable:
                if ledger_ids:
                    self._unanswered = [_Unanswered(record)]
                raise
            if ledger_ids:
                self._written(record, revision)

    async def keep_cursor(self, cursor_log: CursorLog) -> bool:
        """Returns whether a cursor exists whose deletion had an unknown outcome.

        If it does, its record is written again, so the deletion cannot land any more. Needs
        `cursor_log.locked`.
        """
        async with cursor_log.recording(), self.locked():
            await cursor_log.find_out()
            if await self._context.store.get(cursor_log.key) is None:
                await self._find_out()
                return False
            with self._fencing():
                await cursor_log.keep(self._tenure)
            return True

    async def _whole(self, coroutine: Coroutine[None, None, T]) -> T:
        return await self._context.tasks.finish(coroutine, f"record {self.name}")

    async def _write_changed(self, changed: Callable[[], ManagedLedgerRecord]) -> None:
        async with self.locked():
            await self._find_out()
            await self._write(changed())

    def _changed(
        self,
        *,
        ledgers: tuple[LedgerItem, ...] | None = None,
        properties: dict[str, str] | None = None,
        last_position: Position | None = None,
        terminated_at: Position | None = None,
        deleting: tuple[int, ...] | None = None,
    ) -> ManagedLedgerRecord:
        record = self._record
        retired = record.deleting if deleting is None else deleting
        return ManagedLedgerRecord(
            created_ms=record.created_ms,
            modified_ms=self._context.clock.now_ms(),
            ledgers=_items(self._index.infos) if ledgers is None else ledgers,
            properties=record.properties if properties is None else properties,
            last_position=record.last_position if last_position is None else last_position,
            terminated_at=record.terminated_at if terminated_at is None else terminated_at,
            deleting=(*retired, *self._unlisted),
        )

    def _put(self, record: ManagedLedgerRecord) -> Put:
        return Put(managed_ledger_key(self.name), encode(record), self._revision)

    async def _write(
        self,
        record: ManagedLedgerRecord,
        *,
        removed: Collection[int] = frozenset(),
        checks: Checks = (),
    ) -> None:
        try:
            with self._fencing():
                revision = await self._checked_write([self._put(record), *checks])
        except MetadataUnavailable:
            self._unanswered = [_Unanswered(record, removed)]
            raise
        self._written(record, revision)

    async def _checked_write(self, operations: Sequence[Operation]) -> int:
        """Writes the record. Raises Conflict if a check of another key does not hold."""
        try:
            return await self._tenure.write(operations)
        except BadRevision as error:
            if error.key == managed_ledger_key(self.name):
                raise
            raise Conflict(f"{self.name} was changed meanwhile, please retry: {error}") from error

    async def _find_out(self) -> None:
        """Reads the record if the outcome of the last write is unknown. Needs `locked`.

        If the write landed, memory follows. If another process wrote, the next write fails by the
        revision.
        """
        if not self._unanswered:
            return
        stored = await self._context.store.get(managed_ledger_key(self.name))
        unanswered, self._unanswered = self._unanswered, []
        for write in unanswered:
            if stored is not None and stored.value == encode(write.record):
                self._written(write.record, stored.revision)
                self._index.remove(set(write.removed))
                self._unlisted = (*self._unlisted, *write.unlisted)

    def _written(self, record: ManagedLedgerRecord, revision: int) -> None:
        self._record, self._revision = record, revision
        self._unlisted = tuple(i for i in self._unlisted if i not in record.deleting)

    @contextmanager
    def _fencing(self) -> Iterator[None]:
        """Raises BadRevision as ManagedLedgerFenced, and notifies the managed ledger of the
        fencing."""
        try:
            yield
        except BadRevision as error:
            fenced = ManagedLedgerFenced(f"{self.name} has another owner: {error}")
            self._tenure.end(fenced)
            self._notify_fenced(fenced)
            raise fenced from error
        except ManagedLedgerFenced as error:
            self._tenure.end(error)
            self._notify_fenced(error)
            raise

    def _notify_fenced(self, error: ManagedLedgerFenced) -> None:
        if self._on_fenced is not None:
            self._on_fenced(error)


def _items(infos: Iterable[LedgerInfo]) -> tuple[LedgerItem, ...]:
    """Returns the list for the record; a ledger that may grow is listed without its size."""
    return tuple(
        LedgerItem(info.ledger_id, info.created_ms, info.closed_ms, info.entries, info.size_bytes)
        if info.closed_ms
        else LedgerItem(info.ledger_id, info.created_ms)
        for info in infos
    )
