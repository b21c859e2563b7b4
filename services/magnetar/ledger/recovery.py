"""Ends a ledger whose writer may be gone, so that everyone agrees on its last entry.

Four steps, each harmless to repeat and to run concurrently: take the writer's right to close
(OPEN to IN_RECOVERY); fence the bookie, so that no add can succeed any more; read on from what is
known to be confirmed up to the first entry that is not there; write CLOSED with that end. Every
entry that was ever confirmed to the writer is below it; what follows may be kept, but nothing
behind a gap (a bookie may have refused one add and taken the next). Who loses a compare-and-swap
looks again: another recoverer has written what it would have written itself.
"""

from typing import Final

from magnetar.bookie.api import Bookie, EntryCorrupt, LedgerEnd, NoSuchEntry, NoSuchLedger
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.ledger.metadata import LedgerMetadata, LedgerState, decode, encode, ledger_key
from magnetar.ledger.reader import read_contiguous
from magnetar.metadata.store import BadRevision, MetadataStore, Record

RECOVERY_ATTEMPTS_MAX: Final = 16
READ_BYTES: Final = 4 << 20


async def recover_ledger(
    store: MetadataStore, bookie: Bookie, record: Record, clock: Clock
) -> LedgerMetadata:
    """The ledger, CLOSED: by this call, or by whoever was faster."""
    key = record.key
    for _ in range(RECOVERY_ATTEMPTS_MAX):
        metadata = decode(key, record.value)
        if metadata.state is LedgerState.CLOSED:
            return metadata
        try:
            return await _recover_once(store, bookie, record, metadata, clock)
        except BadRevision:
            newer = await store.get(key)
            if newer is None:
                raise NoSuchLedger(f"ledger {metadata.ledger_id} was deleted") from None
            record = newer
    raise MetadataError(f"{key} changed {RECOVERY_ATTEMPTS_MAX} times while it was recovered")


async def _recover_once(
    store: MetadataStore, bookie: Bookie, record: Record, metadata: LedgerMetadata, clock: Clock
) -> LedgerMetadata:
    revision = record.revision
    if metadata.state is LedgerState.OPEN:
        metadata = metadata.in_recovery()
        revision = await store.put(record.key, encode(metadata), expected=revision)
    end = await bookie.ledger_end(metadata.ledger_id, fence=True)
    last_entry = await _last_entry(bookie, metadata.ledger_id, end)
    length = end.length_bytes
    if length < 0 or last_entry < end.last_entry:
        length = await _measure(bookie, metadata.ledger_id, last_entry)
    closed = metadata.closed(last_entry, length, clock.now_ms())
    await store.put(ledger_key(metadata.ledger_id), encode(closed), expected=revision)
    return closed


async def _last_entry(bookie: Bookie, ledger_id: int, end: LedgerEnd) -> int:
    """The last entry before the first gap."""
    confirmed = end.last_add_confirmed
    while confirmed < end.last_entry:
        try:
            entries = await read_contiguous(
                bookie, ledger_id, confirmed + 1, end.last_entry, bytes_max=READ_BYTES
            )
        except NoSuchEntry:
            break
        except EntryCorrupt:
            confirmed += 1  # it was stored, and may have been confirmed: readers will be told
        else:
            confirmed = entries[-1].entry_id
    return confirmed


async def _measure(bookie: Bookie, ledger_id: int, last_entry: int) -> int:
    """The length of a ledger of which its bookie keeps no count: by reading it."""
    length, first = 0, 0
    while first <= last_entry:
        try:
            entries = await read_contiguous(
                bookie, ledger_id, first, last_entry, bytes_max=READ_BYTES
            )
        except EntryCorrupt:
            first += 1
            continue
        length += sum(len(entry.data) for entry in entries)
        first = entries[-1].entry_id + 1
    return length
