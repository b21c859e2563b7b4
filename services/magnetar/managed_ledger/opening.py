"""Opens a managed ledger, and deletes one.

Opening reads the record, ends the newest ledger if its last owner did not (which fences that owner)
and reads the cursors back (`Cursors`). Nothing is written unless there was something to end or to
finish, so opening idle topics is cheap.

Deleting marks the record first; whoever finds the mark finishes the deletion.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from magnetar.bookie.api import NoSuchLedger
from magnetar.compaction.deleting import discard
from magnetar.core.errors import MetadataError, NotFound
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.errors import ManagedLedgerClosed
from magnetar.managed_ledger.guarded import Tenure
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
    encode,
    managed_ledger_key,
)
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
    """Raises NotFound where it does not exist and is not to be created.

    It is created in a transaction with `checks`; raises BadRevision of one that does not hold.
    """
    # Before anything is read: what is read then is the state under this claim.
    tenure = await Tenure.begin(context, name)
    try:
        return await _opened(tenure, context, create, checks, on_closed)
    except BaseException:
        # What the part that was opened has begun must not go on beside the next instance.
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
        some = cursors[start : start + CURSORS_LOADED_AT_ONCE_MAX]
        await asyncio.gather(*map(managed_ledger.load_cursor, some))
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
                # Another revision keeps out what an earlier instance may still have on its way.
                with suppress(BadRevision):  # it has just landed: read again
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
            if error.key != key:  # else someone else created it meanwhile
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
    """The newest ledger, of which the list does not say yet where it ended."""
    try:
        reader = await context.ledgers.open(item.ledger_id, recover=True)
    except NoSuchLedger:
        # Ended and offloaded before the list was written again; bookies have let go of it.
        moved = await context.cold.record(name, item.ledger_id)
        if moved is None:
            raise
        return LedgerInfo(
            item.ledger_id,
            item.created_ms,
            entries=moved.entries,
            size_bytes=moved.length_bytes,
            closed_ms=moved.closed_ms,
        )
    return LedgerInfo(
        item.ledger_id,
        item.created_ms,
        entries=reader.last_entry + 1,
        size_bytes=reader.length_bytes,
        closed_ms=reader.metadata.closed_ms or context.clock.now_ms(),
    )


async def delete_managed_ledger(name: str, context: Context, checks: Sequence[Check] = ()) -> None:
    """Deletes it with its cursors. Raises NotFound.

    Raises BadRevision, and deletes nothing, if one of `checks` does not hold when it begins. A
    deletion that had begun before is finished whatever they say.
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
                continue  # its owner wrote: what it wrote is to be deleted too
        await _finish_deletion(tenure, record, revision, context)
        return
    raise MetadataError(f"{key} changed {ATTEMPTS_MAX} times while it was deleted")


async def _finish_deletion(
    tenure: Tenure, record: ManagedLedgerRecord, revision: int, context: Context
) -> None:
    """Deletes what is below a record that was marked at this revision, and the record.

    Who was paused meanwhile may find that it is done, and all of it made anew: what stands below
    another revision is not touched.
    """
    name = tenure.name
    key = managed_ledger_key(name)
    for _ in range(ATTEMPTS_MAX):
        cursors = await context.store.list(cursors_prefix(name))
        # After the list: these are the cursors of what was marked, or nothing is deleted.
        stands = await context.store.get(key)
        if stands is None or stands.revision != revision:
            return
        if not cursors:
            break
        for stored in cursors:
            cursor = decode_cursor(stored.key, stored.value)
            for ledger_id in (cursor.ledger_id, *cursor.deleting):
                if ledger_id != NO_LEDGER:
                    await context.ledgers.delete(ledger_id)
            # By its revision: one that was just rolled has another ledger, which is to go too.
            with suppress(BadRevision):
                await tenure.write([Delete(stored.key, stored.revision)])
    ledger_ids = (*(item.ledger_id for item in record.ledgers), *record.deleting)
    for ledger_id in ledger_ids:
        await context.ledgers.delete(ledger_id)
    if ledger_ids:
        await context.cold.delete(name, ledger_ids)
        await context.cold.forget_request(name)
    if ledger_ids or record.last_position > EARLIEST:
        await _discard_compacted(name, record.created_ms, context)
    with suppress(BadRevision):  # it has gone
        await tenure.write([Delete(key, revision)])


async def _discard_compacted(name: str, created_ms: int, context: Context) -> None:
    """No artefact becomes live of a log whose record is marked: this one is the last."""
    if await discard(context.store, name, created_ms, context.clock.now_ms()):
        context.cold.empty_trash_soon()
