"""Message indexes (PIP-70): the next one of an opened log, and the entry that has a given one."""

from magnetar.broker.topic.entry_stamp import last_index
from magnetar.broker.topic.last_message import last_stored
from magnetar.broker.topic.own_properties import INDEX_PROPERTY
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire.framing import MalformedEntry


async def next_index(ledger: ManagedLedger) -> int:
    """Returns the index of the log's next message: one more than the last, also if it is trimmed.

    Raises PersistenceError.
    """
    trimmed = int(ledger.properties.get(INDEX_PROPERTY, "0"))
    position = last_stored(ledger)
    if position is None:
        return trimmed
    return max(trimmed, last_index((await ledger.read_entry(position)).data) + 1)


async def position_of_index(ledger: ManagedLedger, index: int) -> Position | None:
    """Returns the first entry whose last message has this index or a higher one; None without.

    This is a binary search, which reads few entries.
    Entries from before the index was switched on have none and count as lower.
    """
    before = await ledger.find_by(lambda data: _index(data) < index)
    position = ledger.next_position(EARLIEST if before is None else before)
    return position if position <= ledger.last_confirmed else None


def _index(data: bytes) -> int:
    try:
        return last_index(data)
    except MalformedEntry:
        return -1
