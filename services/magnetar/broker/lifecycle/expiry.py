"""Finds how far a topic's messages are older than a given time, with few reads.

A ledger's record has the times of its creation and its end, which bound the times of its entries.
Whole ledgers are passed without a read, and too young ones are not read at all. In the remaining
ledgers, bisection finds the last older entry. An entry's time is the broker's if it has one
(`entry_metadata`), else the producer's publish time, as in Pulsar. Entries are stored in order of
arrival, so if the broker's time of one is older, all before it are older. Producers' clocks differ,
some by years, so with their times every entry is checked, up to ENTRIES_PROVED_MAX per search; the
next search continues. An entry without a readable time counts as new, so nothing is lost; it delays
others at most until the end of its ledger is old enough.
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
"""Entries that one search checks one by one."""
READ_ENTRIES_MAX: Final = 200
READ_BYTES_MAX: Final = 1 << 20


def entry_time_ms(data: bytes) -> int | None:
    """Returns when the entry arrived, None if that cannot be read."""
    try:
        stamp = split_entry(data).broker_entry_metadata
        if stamp is not None and stamp.broker_timestamp:
            return stamp.broker_timestamp
        return parse_metadata(data).publish_time
    except MalformedEntry:
        return None


def older_ledgers_end(infos: Sequence[LedgerInfo], before_ms: int) -> Position | None:
    """Returns the end of the first ledgers that were all closed before this time, if there are any.

    A ledger that was closed before it was created, by differing clocks, proves nothing.
    """
    end = None
    for info in infos:
        if not info.created_ms <= info.closed_ms < before_ms:
            break
        if info.entries:
            end = Position(info.ledger_id, info.entries - 1)
    return end


async def oldest_ms(ledger: ManagedLedger, after: Position) -> int | None:
    """Returns when the first entry after `after` arrived; None without an entry or its time."""
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
    """Returns the last entry after `after` that arrived before this time, if there is any.

    All entries between the two are as old. Reads at most one entry if the first one is not older.
    """
    whole = older_ledgers_end(ledger.ledgers, before_ms)
    if whole is not None and whole <= after:
        whole = None
    start = whole or after
    position = ledger.next_position(start)
    limit = _end_before_young(ledger, position, before_ms)
    if limit is None or position > limit:
        return whole
    first = (await ledger.read_entry(position)).data
    if not _is_older(first, before_ms):
        return whole
    # Files of offloaded ledgers have only publish times. The result is proved below.
    published_before_ms = None if _broker_time_ms(first) else before_ms
    last = await ledger.find_by(
        lambda data: _is_older(data, before_ms), start, published_before_ms=published_before_ms
    )
    if last is None:
        return whole
    return await _proved(ledger, before_ms, position, min(last, limit)) or whole


def _is_older(data: bytes, before_ms: int) -> bool:
    time_ms = entry_time_ms(data)
    return time_ms is not None and time_ms < before_ms


def _broker_time_ms(data: bytes) -> int:
    """Returns the broker's time of the entry, 0 if it has none."""
    try:
        stamp = split_entry(data).broker_entry_metadata
    except MalformedEntry:
        return 0
    return 0 if stamp is None else stamp.broker_timestamp


def _end_before_young(ledger: ManagedLedger, position: Position, before_ms: int) -> Position | None:
    """Returns the last entry, from `position` on, before the first ledger that is too young."""
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
    """Returns the last entry of the range up to which all entries are older."""
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
        await asyncio.sleep(0)  # reads from memory do not yield to the loop
    return end
