"""Reads a log's aborted set from metadata and bookies, without fencing or writing anything.

The result has every entry that was durable in the set before the call. So nothing that a bookie has
of the set's ledger may be left out:

- The ledger is read up to its last stored entry, not up to the last confirmed one. An entry without
  its quorum is right as well: an abort is decided before the set is written, and never undone.
- An entry that no bookie has ends the set, since entries are confirmed in their order. If a bookie
  that may have it does not answer, the read fails.
- The ledger counts only if the set's record still names it afterwards. Otherwise it may have been
  deleted meanwhile on some bookies, and an older state would be read from the others.
"""

from typing import Final

from magnetar.bookie.api import BookieError, NoSuchEntry, NoSuchLedger
from magnetar.core.errors import PersistenceError
from magnetar.jobs.log.ends import end_of
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.copies_reader import CopiesReader
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.records import get_key, read_record
from magnetar.managed_ledger.cursor_state import StoredState, corrupt, stored_state
from magnetar.managed_ledger.errors import CursorCorrupt
from magnetar.managed_ledger.record import NO_LEDGER, aborted_key, decode_cursor

READ_ATTEMPTS: Final = 6
"""Reads of the set while its ledger is replaced, or bookies do not answer."""
ENTRY_BYTES: Final = 1
"""One entry at a time is enough to see whether it exists."""


async def aborted_set(context: LedgerContext, name: str) -> StoredState | None:
    """Returns the aborted set of a managed ledger; None if it has none.

    Raises CursorCorrupt, BookieError or MetadataError if it cannot be read: without it, no entry of
    the log may be.
    """
    key = aborted_key(name)
    error: CursorCorrupt | BookieError | None = None
    for attempt in range(READ_ATTEMPTS):
        stored = await get_key(context, key)
        if stored is None:
            return None
        record = decode_cursor(key, stored.value)
        if record.ledger_id == NO_LEDGER:
            return StoredState(record.mark_delete, {}, {})
        try:
            state = await _of_ledger(context, key, record.ledger_id)
        except (CursorCorrupt, BookieError) as failure:
            error = failure
        else:
            again = await get_key(context, key)
            if again is not None and again.revision == stored.revision:
                return state
        await context.back_off(attempt)
    raise error or PersistenceError(f"cursor {key} changed during each of {READ_ATTEMPTS} reads")


async def _of_ledger(context: LedgerContext, key: str, ledger_id: int) -> StoredState:
    try:
        metadata, _ = await read_record(context, ledger_id)
    except NoSuchLedger as error:
        raise corrupt(key, ledger_id, 0, str(error)) from error
    last_entry = await _last_stored(context, metadata)
    return await stored_state(key, LedgerReader(metadata, last_entry, context))


async def _last_stored(context: LedgerContext, metadata: LedgerMetadata) -> int:
    """The last entry that is readable together with all entries before it."""
    end = await end_of(context, metadata)
    if metadata.state is LedgerState.CLOSED:
        return end.confirmed
    copies = CopiesReader(context)
    for entry_id in range(end.confirmed + 1, end.stored + 1):
        try:
            await copies.read(metadata, entry_id, entry_id, bytes_max=ENTRY_BYTES)
        except NoSuchEntry:
            return entry_id - 1
    return end.stored
