"""Finds the entry of a message by its index (PIP-70): a binary search, which reads few entries."""

from magnetar.broker.topic.entry_stamp import last_index
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire.framing import MalformedEntry


async def position_of_index(ledger: ManagedLedger, index: int) -> Position | None:
    """Returns the first entry whose last message has this index or a higher one; None without.

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
