"""Reads subscriptions' stored cursors from metadata and bookies, without writing anything.

A broker stores acknowledgments within a second, so the result is about a second old, and equals
the broker's state once nothing changes. A cursor ledger that its broker still writes is read up to
its durable end (`durable_end`). If the cursor got a new ledger meanwhile, its record is read again,
up to READ_ATTEMPTS times. An unreadable cursor has an `error`, and counts as needing everything.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import BookieError, NoSuchLedger
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.records import read_record
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.cursor_state import StoredState, corrupt, stored_state
from magnetar.managed_ledger.errors import CursorCorrupt
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.record import (
    NO_LEDGER,
    CursorRecord,
    cursor_name,
    cursors_prefix,
    decode_cursor,
    is_aborted_key,
)
from magnetar.metadata.store import Record
from magnetar_spark.jobs.backlog.gather.durable_end import durable_end

READ_ATTEMPTS: Final = 4
CURSORS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """A subscription's cursor. `state` is None if it could not be read, for the reason `error`."""

    name: str
    record: CursorRecord
    state: StoredState | None
    ledger: LedgerMetadata | None = None
    error: str = ""


async def stored_cursors(context: LedgerContext, name: str) -> list[StoredCursor]:
    """All durable cursors of a managed ledger, by name."""
    room = asyncio.Semaphore(CURSORS_AT_ONCE)
    records = [
        record
        for record in await context.store.list(cursors_prefix(name))
        if not is_aborted_key(record.key)
    ]

    async def read(record: Record) -> StoredCursor | None:
        async with room:
            return await _read(context, record)

    cursors = await asyncio.gather(*(read(record) for record in records))
    present = (cursor for cursor in cursors if cursor is not None)
    return sorted(present, key=lambda cursor: cursor.name)


async def _read(context: LedgerContext, stored: Record) -> StoredCursor | None:
    """None if the subscription was deleted meanwhile."""
    name, key = cursor_name(stored.key), stored.key
    record = decode_cursor(key, stored.value)
    error: MagnetarError | None = None
    for attempt in range(READ_ATTEMPTS):
        if record.ledger_id == NO_LEDGER:
            return StoredCursor(name, record, StoredState(record.mark_delete, {}, {}))
        try:
            return await _of_ledger(context, key, record)
        except (CursorCorrupt, BookieError) as failure:
            error = failure
        await context.back_off(attempt + 1)
        again = await context.store.get(key)
        if again is None:
            return None
        record = decode_cursor(key, again.value)
    return StoredCursor(name, record, None, error=str(error))


async def _of_ledger(context: LedgerContext, key: str, record: CursorRecord) -> StoredCursor:
    try:
        metadata, _ = await read_record(context, record.ledger_id)
    except NoSuchLedger as error:
        raise corrupt(key, record.ledger_id, 0, str(error)) from error
    end = await durable_end(context, metadata, size=False)
    reader = LedgerReader(metadata, end.last_entry, context)
    state = await stored_state(key, reader)
    return StoredCursor(cursor_name(key), record, state, metadata)


def acks_of(index: LedgerIndex, state: StoredState) -> AckState:
    """The acknowledgment state on the current log, as a broker restores it."""
    mark = min(Position(*state.mark_delete), index.last_confirmed)
    acks = AckState(index, mark, tracked=False)
    acks.restore(state.holes, state.batches)
    return acks
