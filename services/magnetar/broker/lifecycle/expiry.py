"""Up to where a topic's messages are older than a time, found by reading little.

A closed ledger tells when it was closed, and nothing in it came later: whole ledgers are passed
without a read. In what is left, the last entry that is older is found by bisection. The time of an
entry is the broker's where it has one (`entry_metadata`), else the producer's time of publishing,
as in Pulsar. An entry whose time cannot be read counts as new: nothing is lost for that.
"""

from collections.abc import Sequence

from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.index import LedgerInfo
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire.entry import parse_metadata, split_entry
from magnetar.wire.framing import MalformedEntry


def entry_time_ms(data: bytes) -> int | None:
    """When the entry came; None where that cannot be read."""
    try:
        stamp = split_entry(data).broker_entry_metadata
        if stamp is not None and stamp.broker_timestamp:
            return stamp.broker_timestamp
        return parse_metadata(data).publish_time
    except MalformedEntry:
        return None


def older_ledgers_end(infos: Sequence[LedgerInfo], before_ms: int) -> Position | None:
    """The end of the ledgers at the head that were closed before this time; None: none was.

    One that was closed before it was created, by clocks that differ, says nothing.
    """
    found = None
    for info in infos:
        if not info.created_ms <= info.closed_ms < before_ms:
            break
        if info.entries:
            found = Position(info.ledger_id, info.entries - 1)
    return found


async def oldest_ms(ledger: ManagedLedger, after: Position) -> int | None:
    """When the first entry behind `after` came; None where there is none, or it says no time."""
    position = ledger.next_position(after)
    if position > ledger.last_confirmed:
        return None
    return entry_time_ms((await ledger.read_entry(position)).data)


async def older_end(
    ledger: ManagedLedger, before_ms: int, after: Position = EARLIEST
) -> Position | None:
    """The last entry behind `after` that came before this time; None where there is none.

    Reads at most one entry where the first one is not older, else about log2 of them.
    """
    found = older_ledgers_end(ledger.ledgers, before_ms)
    if found is not None and found <= after:
        found = None
    start = found or after

    def is_older(data: bytes) -> bool:
        time_ms = entry_time_ms(data)
        return time_ms is not None and time_ms < before_ms

    position = ledger.next_position(start)
    if position > ledger.last_confirmed:
        return found
    if not is_older((await ledger.read_entry(position)).data):
        return found
    return await ledger.find_by(is_older, start) or found
