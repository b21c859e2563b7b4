"""Opens and deletes a managed ledger.

Opening reads the record, closes the newest ledger if the last owner did not (which fences that
owner), and restores the cursors (`Cursors`). It writes nothing unless a ledger had to be closed or
a deletion finished, so opening idle topics is cheap.

Deletion first marks the record; any process that finds the mark finishes the deletion.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.errors import MetadataError, NotFound
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.errors import ManagedLedgerClosed
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import (
    NO_LEDGER,
    LedgerItem,
    ManagedLedgerRecord,
    cursors_prefix,
    decode_cursor,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.managed_ledger.tenure import Tenure
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, BadRevision, Check, Delete, Put

CURSORS_LOADED_AT_ONCE_MAX: Final = 32
ATTEMPTS_MAX: Final = 8


async def open_managed_ledger(
    name: str,
    context: Context,
    *,
    create: bool,
    checks: Sequence[Check] = (),
    on_closed: Callable[[ManagedLedger], None],
) -> ManagedLedger:
    """Opens the managed ledger; raises NotFound if it does not exist and `create` is false.

    It is created in a transaction with `checks`; raises BadRevision of one that does not hold.
    """
    # Before any read, so that the state is read under this claim.
    tenure = await Tenure.begin(context, name)
    try:
        return await _opened(tenure, context, create, checks, on_closed)
    except BaseException:
        # Tasks of the half-opened instance must not run beside the next instance.
        tenure.end(ManagedLedgerClosed(f"{name} could not be opened"))
        raise


async def _opened(
    tenure: Tenure,
    context: Context,
    create: bool,
    checks: Sequence[Check],
    on_closed: Callable[[ManagedLedger], None],
) -> ManagedLedger:
    record, revision = await _record(tenure, context, create=create, checks=checks)
    index = LedgerIndex(record.last_position)
    ledger_list = LedgerList(tenure, record, revision, index, context)
    await _load_ledgers(record, index, ledger_list, tenure, context)
    managed_ledger = ManagedLedger(tenure, index, ledger_list, context, on_closed)
    cursors = await context.store.list(cursors_prefix(tenure.name))
    for start in range(0, len(cursors), CURSORS_LOADED_AT_ONCE_MAX):
        batch = cursors[start : start + CURSORS_LOADED_AT_ONCE_MAX]
        await asyncio.gather(*map(managed_ledger.load_cursor, batch))
    ledger_list.delete_retired_soon()
    return managed_ledger


async def _record(
    tenure: Tenure, context: Context, *, create: bool, checks: Sequence[Check]
) -> tuple[ManagedLedgerRecord, int]:
    key = managed_ledger_key(tenure.name)
    for _ in range(ATTEMPTS_MAX):
        stored = await context.store.get(key)
        if stored is not None:
            record = decode_managed_ledger(key, stored.value)
            if not record.deleted:
                if not tenure.follows_unanswered:
                    return record, stored.revision
                # A new revision keeps out a write of an earlier instance that is still in flight.
                with suppress(BadRevision):  # that write has just landed: read again
                    put = Put(key, stored.value, stored.revision)
                    return record, await tenure.write([put])
                continue
            await _finish_deletion(tenure, record, stored.revision, context)
            continue
        if not create:
            raise NotFound(f"managed ledger {tenure.name} does not exist")
        now_ms = context.clock.now_ms()
        record = ManagedLedgerRecord(created_ms=now_ms, modified_ms=now_ms)
        put = Put(key, encode(record), ABSENT)
        try:
            return record, await tenure.write([put, *checks])
        except BadRevision as error:
            if error.key != key:  # else another process created it meanwhile
                raise
    raise MetadataError(f"{key} changed {ATTEMPTS_MAX} times while it was opened")


async def _load_ledgers(
    record: ManagedLedgerRecord,
    index: LedgerIndex,
    ledger_list: LedgerList,
    tenure: Tenure,
    context: Context,
) -> None:
    for item in record.ledgers:
        if item.closed_ms:
            index.add(
                LedgerInfo(
                    item.ledger_id,
                    item.created_ms,
                    entries=item.entries,
                    size_bytes=item.size_bytes,
                    closed_ms=item.closed_ms,
                )
            )
            continue
        if item is not record.ledgers[-1]:
            raise MetadataError(
                f"{managed_ledger_key(ledger_list.name)}: ledger {item.ledger_id} is unfinished, "
                "but not the last"
            )
        await tenure.confirm()
        info = await _ended(ledger_list.name, item, context)
        index.add(info)
        if not info.entries:
            ledger_list.drop_empty(info.ledger_id)


async def _ended(name: str, item: LedgerItem, context: Context) -> LedgerInfo:
    """Closes the newest ledger, whose end the record does not have yet."""
    try:
        reader = await context.ledgers.open(item.ledger_id, recover=True)
    except NoSuchLedger:
        # Closed, offloaded and deleted from bookies before the list was written again.
        offloaded = await context.cold.record(name, item.ledger_id)
        if offloaded is None:
            raise
        return LedgerInfo(
            item.ledger_id,
            item.created_ms,
            entries=offloaded.entries,
            size_bytes=offloaded.length_bytes,
            closed_ms=offloaded.closed_ms,
        )
    return LedgerInfo(
        item.ledger_id,
        item.created_ms,
        entries=reader.last_entry + 1,
        size_bytes=reader.length_bytes,
        closed_ms=reader.metadata.closed_ms or context.clock.now_ms(),
    )


async def delete_managed_ledger(name: str, context: Context, checks: Sequence[Check] = ()) -> None:
    """Deletes the managed ledger with its cursors. Raises NotFound.

    Raises BadRevision, and deletes nothing, if one of `checks` does not hold at the start. A
    deletion that was started before is finished regardless of them.
    """
    key = managed_ledger_key(name)
    tenure = await Tenure.begin(context, name)
    for _ in range(ATTEMPTS_MAX):
        stored = await context.store.get(key)
        if stored is None:
            raise NotFound(f"managed ledger {name} does not exist")
        record = decode_managed_ledger(key, stored.value)
        revision = stored.revision
        if not record.deleted:
            marked = msgspec.structs.replace(record, deleted=True)
            try:
                revision = await tenure.write([Put(key, encode(marked), revision), *checks])
            except BadRevision as error:
                if error.key != key:
                    raise
                continue  # its owner wrote: delete that too
        await _finish_deletion(tenure, record, revision, context)
        return
    raise MetadataError(f"{key} changed {ATTEMPTS_MAX} times while it was deleted")


async def _finish_deletion(
    tenure: Tenure, record: ManagedLedgerRecord, revision: int, context: Context
) -> None:
    """Deletes everything below a record that was marked at this revision, and the record.

    A process that was paused meanwhile may find the deletion finished and the topic created again:
    it touches nothing if the record has another revision.
    """
    name = tenure.name
    key = managed_ledger_key(name)
    for _ in range(ATTEMPTS_MAX):
        cursors = await context.store.list(cursors_prefix(name))
        # Read after the list: either these cursors belong to the marked record, or stop here.
        current = await context.store.get(key)
        if current is None or current.revision != revision:
            return
        if not cursors:
            break
        for stored in cursors:
            cursor = decode_cursor(stored.key, stored.value)
            for ledger_id in (cursor.ledger_id, *cursor.deleting, *cursor.kept):
                if ledger_id != NO_LEDGER:
                    await context.ledgers.delete(ledger_id)
            # By its revision: a cursor that was just rolled has another ledger to delete.
            with suppress(BadRevision):
                await tenure.write([Delete(stored.key, stored.revision)])
    ledger_ids = (*(item.ledger_id for item in record.ledgers), *record.deleting)
    for ledger_id in ledger_ids:
        await context.ledgers.delete(ledger_id)
    marked = Check(key, revision)
    with suppress(BadRevision):  # another process deleted it
        if ledger_ids:
            await context.cold.delete(name, ledger_ids)
            await context.cold.forget_request(name, marked)
        if ledger_ids or record.last_position > EARLIEST:
            await _discard_compacted(name, record.created_ms, marked, context)
        await context.forget(name, marked)
        await tenure.write([Delete(key, revision)])


async def _discard_compacted(name: str, created_ms: int, marked: Check, context: Context) -> None:
    """Discards the compacted artifacts; none becomes live once the record is marked."""
    # Imported here: only a deletion needs it.
    from magnetar.compaction.deletion import discard

    if await discard(context.store, name, created_ms, marked, context.clock.now_ms()):
        context.cold.empty_trash_soon()
