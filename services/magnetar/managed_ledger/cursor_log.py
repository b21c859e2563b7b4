"""Stores one cursor's state: its metadata record and its cursor ledger.

The ledger is created for the first acks, so an idle cursor costs one record. Each write is one
record of the ledger (`cursor_codec_v3`): the whole state if it is small (no ack holes), else a
delta, and occasionally the whole state in parts, so that reading back costs in proportion to the
state. A ledger that has grown is rolled: the new one starts with a snapshot; once that is durable,
a compare-and-swap switches the record to it, and then the old one is deleted. Until the switch, the
record lists the new ledger for deletion, so a crash leaves no ledger that no record names.

A former instance of this process may be about to make that switch while another instance reads the
record. So retired ledgers are deleted only after a write of this instance: the write changes the
record's revision, and the switch then fails.

`cursor_state` reads the state back.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from magnetar.bookie.api import BookieError
from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.core.futures import settle
from magnetar.core.log import get_logger
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.cursor_codec_v3 import encode_delta, encode_snapshot
from magnetar.managed_ledger.cursor_state import StoredState, corrupt, stored_state
from magnetar.managed_ledger.errors import CursorCorrupt, ManagedLedgerFenced
from magnetar.managed_ledger.record import NO_LEDGER, CursorRecord
from magnetar.managed_ledger.tenure import Tenure
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision, Put

SMALL_BATCHES_MAX: Final = 16
"""With at most this many remains and no ack holes, every write is a snapshot."""
DELTA_BYTES_MAX: Final = 512 << 10
DELTAS_BYTES_MIN: Final = 256 << 10
"""Deltas are not replaced by a snapshot before they have this many bytes."""
LEDGER_BYTES_MIN: Final = 4 << 20
"""A cursor ledger is not rolled before it has this many bytes,"""
LEDGER_SNAPSHOTS_MAX: Final = 4
"""… nor before it is as large as this many snapshots."""
WRITE_TIMEOUT_S: Final = 30.0
DELETE_ATTEMPTS_MAX: Final = 12
DELETE_RETRY_S: Final = 1.0
DELETE_RETRY_S_MAX: Final = 60.0

OnWritten = Callable[[MagnetarError | None], None]

log = get_logger("magnetar.managed_ledger.cursor")


class CursorLog:
    """The stored state of one cursor. One write at a time: callers wait for the previous one."""

    __slots__ = (
        "_base",
        "_context",
        "_deltas_bytes",
        "_lock",
        "_planned",
        "_record_lock",
        "_revision",
        "_snapshot_bytes",
        "_tenure",
        "_unanswered",
        "_writer",
        "key",
        "record",
    )

    def __init__(
        self, context: Context, tenure: Tenure, key: str, record: CursorRecord, revision: int
    ) -> None:
        self.record = record
        self._context = context
        self._tenure = tenure.branch()
        self.key = key
        self._revision = revision
        self._writer: LedgerWriter | None = None
        self._lock: asyncio.Lock | None = None
        self._record_lock: asyncio.Lock | None = None
        self._unanswered: list[CursorRecord] = []  # records of writes without an answer
        self._base: int | None = None
        self._snapshot_bytes = 0
        self._deltas_bytes = 0
        self._planned: frozenset[int] = frozenset()
        """Ledgers that `deleting` lists until `keep_ledger`; they are not deleted meanwhile."""

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def ledger_id(self) -> int:
        return self.record.ledger_id

    @property
    def last_entry(self) -> int:
        """The last record that this process wrote to the ledger; -1 if none."""
        return -1 if self._writer is None else self._writer.last_add_confirmed

    @property
    def writing(self) -> bool:
        """Whether this process has an open cursor ledger."""
        return self._writer is not None

    @property
    def ready(self) -> bool:
        """Whether `append` may be called; otherwise roll the ledger first."""
        writer = self._writer
        if writer is None or writer.error is not None:
            return False
        bound = max(LEDGER_BYTES_MIN, LEDGER_SNAPSHOTS_MAX * self._snapshot_bytes)
        return writer.length_bytes < bound

    def end(self, error: MagnetarError) -> None:
        """Makes every later write raise `error`."""
        self._tenure.end(error)

    def resume(self) -> None:
        """Undoes `end`, after a deletion that did not happen."""
        self._tenure.resume()

    def rebase(self) -> None:
        """Makes the next write a snapshot, after acks were undone (a reset)."""
        self._base = None

    def append(self, state: AckState, on_written: OnWritten) -> None:
        """Writes the changes of `state` since the last write. Needs `ready`."""
        writer = self._writer
        assert writer is not None  # noqa: S101  (`ready`)
        fresh = state.take_fresh()
        small = not state.holes_count and len(state.batches) <= SMALL_BATCHES_MAX
        whole = state.payload is not None or (small and not fresh.pending)
        if self._base is not None and not whole:
            mark = state.mark_delete
            batches = {key: state.batches[key] for key in fresh.batches if key in state.batches}
            delta = encode_delta(self._base, mark, fresh.holes, batches, fresh.pending)
            bound = max(DELTAS_BYTES_MIN, self._snapshot_bytes)
            if len(delta) <= DELTA_BYTES_MAX and self._deltas_bytes + len(delta) <= bound:
                self._deltas_bytes += len(delta)
                writer.append([delta], lambda _, error: on_written(error))
                return
        self._append_snapshot(writer, state, on_written)

    def _append_snapshot(
        self, writer: LedgerWriter, state: AckState, on_written: OnWritten
    ) -> None:
        self._base = writer.next_entry
        payload = b"" if state.payload is None else state.payload()
        pending = {} if state.pending is None else state.pending.by_txn
        parts = encode_snapshot(
            *(self._base, state.mark_delete, state.holes, state.batches, pending), payload=payload
        )
        self._snapshot_bytes = sum(map(len, parts))
        self._deltas_bytes = 0
        for part in parts[:-1]:
            writer.append([part], _ignore)
        # Completions come in order, and all fail after a failure: the last one counts.
        writer.append([parts[-1]], lambda _, error: on_written(error))

    async def roll(self, state: AckState) -> None:
        """Starts a new ledger with the whole of `state`, which is then durable."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S), self.locked():
                await self._roll(state)
                retired = self._retired()
        except TimeoutError:
            raise PersistenceError(
                f"cursor {self.key}: its state was not durable within {WRITE_TIMEOUT_S:g} s"
            ) from None
        if retired:
            self._context.tasks.start(self._delete(retired), f"retire {self.key}")

    async def _roll(self, state: AckState) -> None:
        self._tenure.check()  # it may have ended while the roll waited for the lock
        # Even if this fails: later deltas need a new ledger, and the record may name this one.
        self._writer = None
        writer = await self._context.tasks.finish(self._create(), f"ledger of {self.key}")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        state.take_fresh()
        mark = state.mark_delete
        self._append_snapshot(writer, state, lambda error: settle(done, error))
        await done
        retired = {*self.record.deleting, self.record.ledger_id}
        retired -= {writer.ledger_id, NO_LEDGER}
        now_ms = self._context.clock.now_ms()
        await self._put(
            {
                "ledger_id": writer.ledger_id,
                "mark_delete": mark,
                "last_active_ms": now_ms,
                "switched_ms": now_ms,
                "deleting": tuple(sorted(retired)),
            }
        )
        self._writer = writer

    async def _create(self) -> LedgerWriter:
        """Creates a ledger that the record lists for deletion until the switch."""
        async with self.recording():
            await self.find_out()
            while True:
                planned: list[CursorRecord] = []

                def announce(ledger_id: int, planned: list[CursorRecord] = planned) -> Put:
                    planned.append(self._announced(ledger_id))
                    return Put(self.key, encode(planned[-1]), self._revision)

                try:
                    created = await self._tenure.create({"magnetar.cursor": self.key}, announce)
                except BadRevision as error:
                    raise self._fenced(error) from error
                except MagnetarError:  # an earlier attempt without an answer may have landed
                    self._unanswered = planned
                    raise
                self._revision = created.revision
                self.record = self._announced(created.ledger_id)
                if created.writer is not None:
                    return created.writer
                # Without a writer, the ledger stays listed for deletion: create another.

    def _announced(self, ledger_id: int) -> CursorRecord:
        return msgspec.structs.replace(self.record, deleting=(*self.record.deleting, ledger_id))

    async def retire(self) -> None:
        """Deletes the ledgers that the record retired before this instance read it.

        The first write makes any write of a former instance fail, even one under way. The second
        spares the next instance the work. Raises ManagedLedgerFenced if the record changed.
        """
        async with self._context.removals, self.locked():
            await self._put({})
            retired = self._retired()
        if await self._delete(retired):
            async with self._context.removals, self.locked():
                await self._put({})

    async def _delete(self, retired: tuple[int, ...]) -> bool:
        """Deletes retired ledgers; returns whether they are gone. The next write omits them.

        A failed deletion is retried up to DELETE_ATTEMPTS_MAX times: a ledger that is gone from
        some bookies and still on record looks like a lost one. After that, the next instance
        deletes the rest.
        """
        backoff = Backoff(DELETE_RETRY_S, DELETE_RETRY_S_MAX, self._context.rng)
        for _ in range(DELETE_ATTEMPTS_MAX):
            try:
                for ledger_id in retired:
                    self._tenure.check()
                    await self._context.ledgers.delete(ledger_id)
                break
            except MagnetarError as error:
                if self._tenure.error is not None:
                    return False
                log.info(
                    "cursor ledgers not deleted, will retry", cursor=self.key, error=str(error)
                )
            await asyncio.sleep(backoff.failed_s())
        else:
            return False
        left = tuple(i for i in self.record.deleting if i not in retired)
        self.record = msgspec.structs.replace(self.record, deleting=left)
        return True

    def _retired(self) -> tuple[int, ...]:
        """Returns the ledgers that may be deleted."""
        return tuple(i for i in self.record.deleting if i not in self._planned)

    async def create_kept(self) -> LedgerWriter:
        """Creates a ledger for the payload; `keep_ledger` or `drop_kept` must follow.

        Until then the record lists it for deletion, so a crash leaves no ledger without a record.
        """
        async with self.locked():
            self._tenure.check()
            writer = await self._context.tasks.finish(self._create(), f"ledger of {self.key}")
            self._planned |= {writer.ledger_id}
            return writer

    async def keep_ledger(self, ledger_id: int) -> None:
        """Records that the payload may refer to a ledger of `create_kept`, which is closed."""
        async with self.locked():
            left = tuple(i for i in self.record.deleting if i != ledger_id)
            await self._put({"kept": (*self.record.kept, ledger_id), "deleting": left})
            self._planned -= {ledger_id}

    async def drop_kept(self, ledger_ids: Collection[int]) -> None:
        """Deletes ledgers that no stored payload refers to."""
        async with self.locked():
            dropped = set(ledger_ids)
            left = tuple(i for i in self.record.kept if i not in dropped)
            deleting = tuple(sorted({*self.record.deleting, *dropped}))
            self._planned -= dropped
            await self._put({"kept": left, "deleting": deleting})
        await self._delete(tuple(dropped))

    async def open_kept(self, ledger_id: int) -> LedgerReader:
        """Returns a reader of a kept ledger. Raises BookieError."""
        return await self._context.ledgers.open(ledger_id, recover=False)

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replaces the cursor's properties."""
        async with self.locked():
            await self._put({"properties": dict(properties)})

    async def record_use(self, used_ms: int, interval_ms: int) -> None:
        """Records the time of last use, unless the recorded one is recent enough."""
        if used_ms - self.record.last_active_ms < interval_ms:
            return
        async with self.locked():
            await self._put({"last_active_ms": used_ms})

    async def close(self, state: AckState, *, dirty: bool) -> None:
        """Closes the ledger. Without a ledger, `dirty` state is written to the record."""
        async with self.locked():
            writer, self._writer = self._writer, None
            if writer is not None:
                await writer.close()
            elif dirty:
                await self._put(
                    {
                        "mark_delete": state.mark_delete,
                        "last_active_ms": self._context.clock.now_ms(),
                        "ledger_id": NO_LEDGER,
                        "deleting": tuple(i for i in self.ledger_ids if i not in self.record.kept),
                    }
                )
                state.take_fresh()

    async def _put(self, changes: dict[str, object]) -> CursorRecord:
        """Changes the record. Not cancellable, like `_create`: see LedgerList."""
        return await self._context.tasks.finish(self._put_whole(changes), f"record {self.key}")

    async def _put_whole(self, changes: dict[str, object]) -> CursorRecord:
        async with self.recording():
            await self.find_out()
            record = msgspec.structs.replace(self.record, **changes)
            try:
                await self._write(record, self._tenure)
            except BadRevision as error:
                raise self._fenced(error) from error
            return record

    async def keep(self, tenure: Tenure) -> None:
        """Writes the record unchanged under `tenure`, because the cursor's own has ended.

        Needs `recording`. Raises BadRevision.
        """
        await self._write(self.record, tenure)

    async def _write(self, record: CursorRecord, tenure: Tenure) -> None:
        put = Put(self.key, encode(record), self._revision)
        try:
            self._revision = await tenure.write([put])
        except BadRevision:
            raise
        except MagnetarError:  # an attempt before the one that raised may have landed
            self._unanswered = [record]
            raise
        self.record = record

    async def find_out(self) -> None:
        """Reads the record if the outcome of the last write is unknown. Needs `recording`."""
        if not self._unanswered:
            return
        stored = await self._context.store.get(self.key)
        unanswered, self._unanswered = self._unanswered, []
        for record in unanswered:
            if stored is not None and stored.value == encode(record):
                self.record, self._revision = record, stored.revision

    def recording(self) -> asyncio.Lock:
        """Held during each write of the record, which may outlive a cancelled caller."""
        if self._record_lock is None:
            self._record_lock = asyncio.Lock()
        return self._record_lock

    def _fenced(self, error: BadRevision) -> ManagedLedgerFenced:
        return ManagedLedgerFenced(f"cursor {self.key} has another owner: {error}")

    @property
    def ledger_ids(self) -> list[int]:
        """The current ledger, kept ones, and retired ones that may still take space."""
        current = [] if self.record.ledger_id == NO_LEDGER else [self.record.ledger_id]
        return [*self.record.deleting, *self.record.kept, *current]

    def locked(self) -> asyncio.Lock:
        """Held while the record changes."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    async def load(self) -> StoredState:
        """Returns the state as of the last write; fences its last writer.

        Raises CursorCorrupt. If the state cannot be read and the record may be out of date, raises
        ManagedLedgerFenced, or the error that ended this instance.
        """
        if self.record.ledger_id == NO_LEDGER:
            return StoredState(self.record.mark_delete, {}, {})
        await self._tenure.confirm()
        try:
            return await self._stored()
        except CursorCorrupt:
            # A later owner may have retired and deleted the ledger. Then the record that was read
            # here is out of date, and the cursor is undamaged.
            await self._tenure.confirm()
            raise

    async def _stored(self) -> StoredState:
        try:
            reader = await self._context.ledgers.open(self.record.ledger_id, recover=True)
        except BookieError as error:
            raise corrupt(self.key, self.record.ledger_id, 0, str(error)) from error
        return await stored_state(self.key, reader)


def _ignore(_first_entry: int, _error: MagnetarError | None) -> None:
    """The callback for all parts of a snapshot but the last."""
