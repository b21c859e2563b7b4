"""GET_LAST_MESSAGE_ID: the last message that a consumer can receive, with its index in its batch.

If the log has no entry after the compaction horizon, the answer for a consumer with
`read_compacted` is the last message of the artifact: it would never receive one that was compacted
away. Pulsar does the same.
"""

from magnetar.broker.dispatch.compacted_log import CompactedLog
from magnetar.compaction.artifact import Artifact
from magnetar.core.errors import NotFound
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.id_runs import run_start
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire.batch import messages_of
from magnetar.wire.entry import peek
from magnetar.wire.framing import MalformedEntry

NO_BATCH = -1


async def find_last_message(
    ledger: ManagedLedger, compacted: CompactedLog | None
) -> tuple[Position, int]:
    """Returns the last message (EARLIEST: none) and its index in its batch (-1: no batch)."""
    while True:
        position = last_readable(ledger)
        artifact = None if compacted is None else await compacted.current()
        if compacted is not None and artifact is not None and _is_within(artifact, position):
            entry = await compacted.last_entry()
            if entry is None:
                return EARLIEST, NO_BATCH
            return Position(entry.ledger_id, entry.entry_id), _last_kept_index(entry.data)
        if position is None:
            return EARLIEST, NO_BATCH
        try:
            return position, _last_index((await ledger.read_entry(position)).data)
        except NotFound:
            if position > ledger.trimmed_to:
                raise


def _is_within(artifact: Artifact, position: Position | None) -> bool:
    return position is None or position <= artifact.horizon


def last_stored(ledger: ManagedLedger) -> Position | None:
    """Returns the position of the last stored entry, None if there is none."""
    last = ledger.last_confirmed
    if last.entry_id < 0 and ledger.entries_total:
        last = ledger.previous_position(ledger.next_position(last))
    return last if last.entry_id >= 0 and last > ledger.first_position else None


def last_readable(ledger: ManagedLedger) -> Position | None:
    """Returns the last entry that a consumer can get now, None if there is none."""
    if ledger.horizon is None and ledger.aborted is None:
        return last_stored(ledger)
    last = _last_not_aborted(ledger, ledger.last_visible)
    return last if last.entry_id >= 0 and last > ledger.first_position else None


def _last_not_aborted(ledger: ManagedLedger, last: Position) -> Position:
    """Returns the last entry at or before `last` that is not aborted, or `first_position`."""
    aborted = ledger.aborted
    while aborted is not None and ledger.is_aborted(*last):
        ids = aborted.holes.get(last.ledger_id)
        if ids is None or last <= aborted.mark_delete:
            return ledger.first_position  # every entry up to the mark-delete is aborted
        last = ledger.previous_position(Position(last.ledger_id, run_start(ids, last.entry_id)))
    return last


def _last_index(entry: bytes) -> int:
    """Returns the index of the last message; an entry that cannot be read counts as one message."""
    try:
        facts = peek(entry)
    except MalformedEntry:
        return NO_BATCH
    return facts.message_count - 1 if facts.is_batch else NO_BATCH


def _last_kept_index(entry: bytes) -> int:
    """Returns the index of the last message that was not compacted out."""
    last = _last_index(entry)
    if last == NO_BATCH:
        return NO_BATCH
    try:
        _, messages = messages_of(entry)
    except MalformedEntry:
        return last
    for index in range(len(messages) - 1, 0, -1):
        single = messages[index].metadata
        if single is None or not single.compacted_out:
            return index
    return NO_BATCH if messages[0].metadata is None else 0
