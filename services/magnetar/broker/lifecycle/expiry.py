"""Up to where a topic's messages are older than a time, found by reading little.

A ledger tells when it was created and closed: nothing in it came earlier or later. Whole ledgers
are passed without a read, and none that is too young is looked at. In what is left, the last entry
that is older is found by bisection. The time of an entry is the broker's where it has one
(`entry_metadata`), else the producer's time of publishing, as in Pulsar. Entries came in order, so
where the broker's time says that one is older, all before it are. Producers' clocks differ, and
some are years behind, so there each entry is looked at, ENTRIES_PROVED_MAX of them at most; what is
beyond is for the next time. An entry whose time cannot be read counts as new: nothing is lost for
that, and the end of its ledger bounds how long it holds up others.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.index import LedgerInfo
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire.entry import parse_metadata, split_entry
from magnetar.wire.framing import MalformedEntry

ENTRIES_PROVED_MAX: Final = 20_000
"""Looked at one by one for one answer."""
READ_ENTRIES_MAX: Final = 200
READ_BYTES_MAX: Final = 1 << 20


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
    time_ms = entry_time_ms((await ledger.read_entry(position)).data)
    info = ledger.index.get(position.ledger_id)
    if time_ms is None or info is None:
        return time_ms
    time_ms = max(time_ms, info.created_ms)
    return min(time_ms, max(info.closed_ms, info.created_ms)) if info.closed_ms else time_ms


async def older_end(
    ledger: ManagedLedger, before_ms: int, after: Position = EARLIEST
) -> Position | None:
    """The last entry behind `after` that came before this time; None where there is none.

    Everything between the two is as old. Reads at most one entry where the first one is not older.
    """
    found = older_ledgers_end(ledger.ledgers, before_ms)
    if found is not None and found <= after:
        found = None
    start = found or after
    position = ledger.next_position(start)
    limit = _end_before_young(ledger, position, before_ms)
    if limit is None or position > limit:
        return found
    first = (await ledger.read_entry(position)).data
    if not _is_older(first, before_ms):
        return found
    # The files of offloaded ledgers tell producers' times alone. What is found is proved below.
    published_before_ms = None if _broker_time_ms(first) else before_ms
    last = await ledger.find_by(
        lambda data: _is_older(data, before_ms), start, published_before_ms=published_before_ms
    )
    if last is None:
        return found
    return await _proved(ledger, before_ms, position, min(last, limit)) or found


def _is_older(data: bytes, before_ms: int) -> bool:
    time_ms = entry_time_ms(data)
    return time_ms is not None and time_ms < before_ms


def _broker_time_ms(data: bytes) -> int:
    """When the broker says that it came; 0 where no broker does."""
    try:
        stamp = split_entry(data).broker_entry_metadata
    except MalformedEntry:
        return 0
    return 0 if stamp is None else stamp.broker_timestamp


def _end_before_young(ledger: ManagedLedger, position: Position, before_ms: int) -> Position | None:
    """The last entry, from `position` on, before the first ledger that is too young."""
    limit = None
    for info in ledger.ledgers:
        if info.ledger_id < position.ledger_id:
            continue
        if info.created_ms >= before_ms:
            break
        if info.entries:
            limit = Position(info.ledger_id, info.entries - 1)
    return limit


async def _proved(
    ledger: ManagedLedger, before_ms: int, first: Position, last: Position
) -> Position | None:
    """The last of these entries up to which all are older."""
    if 0 < _broker_time_ms((await ledger.read_entry(last)).data) < before_ms:
        return last
    end, left = None, ENTRIES_PROVED_MAX
    while first <= last and left > 0:
        entries = await ledger.read(first, min(READ_ENTRIES_MAX, left), READ_BYTES_MAX)
        if not entries:
            break
        for entry in entries:
            if entry.position > last or not _is_older(entry.data, before_ms):
                return end
            end = entry.position
        left -= len(entries)
        first = ledger.next_position(entries[-1].position)
        await asyncio.sleep(0)  # what is in memory is read without a pause
    return end
