"""GET_LAST_MESSAGE_ID: the last message that a consumer may wait for, with its place in its batch.

For a consumer with `read_compacted` whose log has nothing behind the horizon it is the last message
of the artefact: what was compacted away it would wait for in vain (as Pulsar does).
"""

from magnetar.broker.dispatch.compacted import CompactedLog
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.ids import EARLIEST, Position
from magnetar.wire.batch import messages_of
from magnetar.wire.entry import peek
from magnetar.wire.framing import MalformedEntry

NO_BATCH = -1


async def last_message(
    topic: PersistentTopic, compacted: CompactedLog | None
) -> tuple[Position, int]:
    """EARLIEST where there is none; the index is -1 where the message is in no batch."""
    position = await topic.last_readable()
    artefact = None if compacted is None else compacted.artefact
    if artefact is not None and (position is None or position <= artefact.horizon):
        entry = await artefact.last_entry()
        if entry is None:
            return EARLIEST, NO_BATCH
        return Position(entry.ledger_id, entry.entry_id), _last_left(entry.data)
    if position is None:
        return EARLIEST, NO_BATCH
    facts = peek((await topic.managed_ledger.read_entry(position)).data)
    return position, facts.message_count - 1 if facts.is_batch else NO_BATCH


def _last_left(entry: bytes) -> int:
    """The index of the last message that was not compacted out."""
    facts = peek(entry)
    if not facts.is_batch:
        return NO_BATCH
    try:
        _, messages = messages_of(entry)
    except MalformedEntry:
        return facts.message_count - 1
    for index in range(len(messages) - 1, 0, -1):
        single = messages[index].metadata
        if single is None or not single.compacted_out:
            return index
    return NO_BATCH if messages[0].metadata is None else 0
