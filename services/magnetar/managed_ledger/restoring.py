"""Reads a cursor back from what it stored: when its topic is opened, or later.

A cursor that cannot be read back does not keep the topic from being opened: it stands in
`broken_cursors` and holds its data back as of its record. Who subscribes has it tried again, as the
reason may have passed (the bookies that have its ledger were away), and is told what is wrong
where it has not.
"""

from typing import TYPE_CHECKING

from magnetar.core.errors import NotFound
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.errors import CursorCorrupt
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.record import cursor_name

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

log = get_logger("magnetar.managed_ledger")


async def restore_cursor(
    managed_ledger: "ManagedLedger", index: LedgerIndex, cursor_log: CursorLog, context: Context
) -> Cursor | None:
    """The cursor as it was last written, adopted; None where it is broken."""
    name = cursor_name(cursor_log.key)
    try:
        state = await cursor_log.load()
    except CursorCorrupt as error:
        log.error("cursor cannot be read", error=str(error))
        managed_ledger.broken_cursors[name] = (cursor_log, error)
        return None
    mark = state.mark_delete
    if mark > index.last_confirmed:
        # Only confirmed entries can be acked: the log itself must have lost some.
        log.error(
            "cursor is beyond the log",
            cursor=cursor_log.key,
            mark_delete=str(mark),
            last_confirmed=str(index.last_confirmed),
        )
        mark = index.last_confirmed
    managed_ledger.broken_cursors.pop(name, None)
    cursor = Cursor(name, managed_ledger, index, Position(*mark), context, cursor_log)
    cursor.restore(state.holes, state.batches)
    cursor.skip_acked()
    if cursor_log.record.deleting:
        context.tasks.start(cursor_log.delete_retired(), f"retire {cursor_log.key}")
    return managed_ledger.adopt(cursor)


async def restore_again(
    managed_ledger: "ManagedLedger", name: str, index: LedgerIndex, context: Context
) -> Cursor:
    """The broken cursor, if it can be read now; raises CursorCorrupt where it cannot."""
    cursor_log, _ = managed_ledger.broken_cursors[name]
    async with cursor_log.locked():
        cursor = managed_ledger.cursors.get(name)
        if cursor is None and name in managed_ledger.broken_cursors:
            cursor = await restore_cursor(managed_ledger, index, cursor_log, context)
            if cursor is None:
                raise managed_ledger.broken_cursors[name][1]
    if cursor is None:
        raise NotFound(f"cursor {name} was deleted meanwhile")
    return cursor
