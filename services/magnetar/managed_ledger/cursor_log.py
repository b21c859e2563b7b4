"""Keeps one cursor's state on disk: its metadata record and its cursor ledger.

The ledger is made when the first acks are to be written, so an idle cursor costs one record.
Each write is one record of the ledger (`cursor_codec_v1`): the whole state where that is small (no
holes), else what changed, and now and then the whole state in parts, so that what has to be read
back stays in proportion to the state. When the ledger has grown it is rolled: a new one begins with
a snapshot, the record is switched to it by compare-and-swap once that is durable, and then the old
one is deleted. Until the switch the new ledger stands in the record as to be deleted, so that a
crash leaves no ledger that nobody knows.

A former instance of this process may be about to make that switch while another instance reads the
record. So a ledger that the record retires is deleted only after a write of this instance: the
write changes the record's revision, and the switch then fails.

How it is read back: `cursor_reading`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from magnetar.bookie.api import BookieError
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.core.log import get_logger
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.cursor_codec_v1 import encode_delta, encode_snapshot
from magnetar.managed_ledger.cursor_reading import StoredState, corrupt, stored_state
from magnetar.managed_ledger.errors import CursorCorrupt, ManagedLedgerFenced
from magnetar.managed_ledger.guarded import Tenure
from magnetar.managed_ledger.record import NO_LEDGER, CursorRecord, cursor_key, encode
from magnetar.metadata.store import BadRevision, Put

SMALL_BATCHES_MAX: Final = 16
"""Up to this many remains, and without holes, a state is written whole each time."""
DELTA_BYTES_MAX: Final = 512 << 10
DELTAS_BYTES_MIN: Final = 256 << 10
"""Deltas are not summed up in a snapshot before they have this many bytes."""
LEDGER_BYTES_MIN: Final = 4 << 20
"""A cursor ledger is not rolled before it has this many bytes."""
LEDGER_SNAPSHOTS_MAX: Final = 4
"""… nor before it is as big as this many snapshots."""
WRITE_TIMEOUT_S: Final = 30.0
DELETE_ATTEMPTS_MAX: Final = 12
DELETE_RETRY_S: Final = 1.0
DELETE_RETRY_S_MAX: Final = 60.0

OnWritten = Callable[[MagnetarError | None], None]

log = get_logger("magnetar.managed_ledger.cursor")


class CursorLog:
    """See the module's text. One write at a time: its user waits for the end of the one before."""

    __slots__ = (
        "_base",
        "_context",
        "_deltas_bytes",
        "_lock",
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
        self, context: Context, tenure: Tenure, cursor: str, record: CursorRecord, revision: int
    ) -> None:
        self.record = record
        self._context = context
        self._tenure = tenure.branch()
        self.key = cursor_key(tenure.name, cursor)
        self._revision = revision
        self._writer: LedgerWriter | None = None
        self._lock: asyncio.Lock | None = None
        self._record_lock: asyncio.Lock | None = None
        self._unanswered: list[CursorRecord] = []  # what a write would have made of the record
        self._base: int | None = None
        self._snapshot_bytes = 0
        self._deltas_bytes = 0

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def ledger_id(self) -> int:
        return self.record.ledger_id

    @property
    def last_entry(self) -> int:
        """The last record of the ledger that this process wrote; -1 where it wrote none."""
        return -1 if self._writer is None else self._writer.last_add_confirmed

    @property
    def writing(self) -> bool:
        """Whether there is a ledger that this process writes to."""
        return self._writer is not None

    @property
    def ready(self) -> bool:
        """Whether `append` can be used; else the ledger is to be rolled first."""
        writer = self._writer
        if writer is None or writer.error is not None:
            return False
        bound = max(LEDGER_BYTES_MIN, LEDGER_SNAPSHOTS_MAX * self._snapshot_bytes)
        return writer.length_bytes < bound

    # -- its end

    def end(self, error: MagnetarError) -> None:
        """Nothing is written from now on: every write raises `error`."""
        self._tenure.end(error)

    def resume(self) -> None:
        """Undoes `end`: the cursor was not deleted."""
        self._tenure.resume()

    # -- writing

    def rebase(self) -> None:
        """Acks were undone (a reset): the next write is a snapshot."""
        self._base = None

    def append(self, state: AckState, on_written: OnWritten) -> None:
        """Writes what changed in `state` since the last write. Needs `ready`."""
        writer = self._writer
        assert writer is not None  # noqa: S101  (`ready`)
        fresh = state.take_fresh()
        if self._base is not None and (state.holes_count or len(state.batches) > SMALL_BATCHES_MAX):
            mark = state.mark_delete
            batches = {key: state.batches[key] for key in fresh.batches if key in state.batches}
            delta = encode_delta(self._base, mark, fresh.holes, batches)
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
        parts = encode_snapshot(self._base, state.mark_delete, state.holes, state.batches)
        self._snapshot_bytes = sum(map(len, parts))
        self._deltas_bytes = 0
        for part in parts[:-1]:
            writer.append([part], _ignore)
        # Completions come in order, and after a failure all fail: the last one speaks for all.
        writer.append([parts[-1]], lambda _, error: on_written(error))

    async def roll(self, state: AckState) -> None:
        """Begins a new ledger with the whole of `state`; what it had changed is then durable."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S), self.locked():
                await self._roll(state)
                retired = self.record.deleting
        except TimeoutError:
            raise PersistenceError(
                f"cursor {self.key}: its state was not durable within {WRITE_TIMEOUT_S:g} s"
            ) from None
        if retired:
            self._context.tasks.start(self._delete(retired), f"retire {self.key}")

    async def _roll(self, state: AckState) -> None:
        self._tenure.check()  # it may have ended while the roll waited for the lock
        # Whatever becomes of this: deltas build on the new ledger, and the record may name it.
        self._writer = None
        writer = await self._context.tasks.finish(self._create(), f"ledger of {self.key}")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        state.take_fresh()
        mark = state.mark_delete
        self._append_snapshot(writer, state, lambda error: _settle(done, error))
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
        """A new ledger, which the record names from then on."""
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
                except MagnetarError:  # also one that an attempt without an answer came before
                    self._unanswered = planned
                    raise
                self._revision = created.revision
                self.record = self._announced(created.ledger_id)
                if created.writer is not None:
                    return created.writer
                # One without a writer stays announced as to be deleted, and that is what it is.

    def _announced(self, ledger_id: int) -> CursorRecord:
        return msgspec.structs.replace(self.record, deleting=(*self.record.deleting, ledger_id))

    async def retire(self) -> None:
        """Deletes the ledgers that the record retired before this instance read it.

        The first write makes any write of a former instance fail, also one that is under way. The
        second spares the next instance the work. Raises ManagedLedgerFenced if the record changed.
        """
        async with self._context.removals, self.locked():
            retired = (await self._put({})).deleting
        if await self._delete(retired):
            async with self._context.removals, self.locked():
                await self._put({})

    async def _delete(self, retired: tuple[int, ...]) -> bool:
        """Whether the ledgers are gone; the next write of the record leaves them out.

        A deletion that fails is repeated, up to DELETE_ATTEMPTS_MAX times: a ledger that is gone
        from some bookies and still on record looks like a lost one. The next instance deletes what
        is left then.
        """
        for attempt in range(DELETE_ATTEMPTS_MAX):
            try:
                for ledger_id in retired:
                    self._tenure.check()
                    await self._context.ledgers.delete(ledger_id)
                break
            except MagnetarError as error:
                if self._tenure.error is not None:
                    return False
                log.info("ledgers not deleted yet", cursor=self.key, error=str(error))
            pause = min(DELETE_RETRY_S * 2**attempt, DELETE_RETRY_S_MAX)
            await asyncio.sleep(pause * self._context.rng.uniform(0.5, 1.0))
        else:
            return False
        left = tuple(i for i in self.record.deleting if i not in retired)
        self.record = msgspec.structs.replace(self.record, deleting=left)
        return True

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replaces the cursor's properties."""
        async with self.locked():
            await self._put({"properties": dict(properties)})

    async def record_use(self, used_ms: int, interval_ms: int) -> None:
        """Records when the cursor was last used, unless that is known about as well."""
        if used_ms - self.record.last_active_ms < interval_ms:
            return
        async with self.locked():
            await self._put({"last_active_ms": used_ms})

    async def close(self, state: AckState, *, dirty: bool) -> None:
        """Ends the ledger. What is `dirty` and fits the record is written there, without one."""
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
                        "deleting": tuple(self.ledger_ids),
                    }
                )
                state.take_fresh()

    async def _put(self, changes: dict[str, object]) -> CursorRecord:
        """Changes the record. Neither this nor `_create` is cut in the middle: see LedgerList."""
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
        """Writes the record again, unchanged, under `tenure`: the cursor's own has ended.

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
        """Held by each write of the record, which may outlast who asked for it."""
        if self._record_lock is None:
            self._record_lock = asyncio.Lock()
        return self._record_lock

    def _fenced(self, error: BadRevision) -> ManagedLedgerFenced:
        return ManagedLedgerFenced(f"cursor {self.key} has another owner: {error}")

    @property
    def ledger_ids(self) -> list[int]:
        """Every ledger that is this cursor's, or was and may still take space."""
        current = [] if self.record.ledger_id == NO_LEDGER else [self.record.ledger_id]
        return [*self.record.deleting, *current]

    def locked(self) -> asyncio.Lock:
        """Held while the record changes."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    # -- reading back

    async def load(self) -> StoredState:
        """The state as of the last write; fences its last writer.

        Raises CursorCorrupt. Raises ManagedLedgerFenced, or why this instance ended, if the state
        cannot be read and the record may be out of date.
        """
        if self.record.ledger_id == NO_LEDGER:
            return StoredState(self.record.mark_delete, {}, {})
        await self._tenure.confirm()
        try:
            return await self._stored()
        except CursorCorrupt:
            # A later owner retires the ledger and deletes it. Then the record that was read here is
            # out of date, and the cursor is whole.
            await self._tenure.confirm()
            raise

    async def _stored(self) -> StoredState:
        try:
            reader = await self._context.ledgers.open(self.record.ledger_id, recover=True)
        except BookieError as error:
            raise corrupt(self.key, self.record.ledger_id, 0, str(error)) from error
        return await stored_state(self.key, reader)


def _ignore(_first_entry: int, _error: MagnetarError | None) -> None:
    """For the parts of a snapshot before its last."""


def _settle(future: asyncio.Future[None], error: MagnetarError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
