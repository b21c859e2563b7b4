"""Finds the durable end of a ledger that may still grow, and its length, without fencing it.

Bookies know the last confirmed entry from the writer's next add, or from the writer itself after it
has paused for a second or two (`ledger.explicit_lac`); for an idle ledger that suffices. An entry
after it that `ack_quorum` bookies of its write set have on disk has a receipt, or is about to get
one, and any recovery would keep it. So the ledger ends before the first entry without such a
quorum; if nothing changes, that is exactly the writer's last receipt.

The length is known if one bookie has every entry. Otherwise it is computed from the record's counts
and from proofs of the rest, for which bookies read their disks. If an estimate of the rest exceeds
PROVED_BYTES_MAX, the length is the estimate, and `exact` is false.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    LedgerEnd,
    NoSuchLedger,
    ProofKind,
)
from magnetar.ledger.bookie_calls import ask_end, ask_proofs
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.copies_reader import CopiesReader
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.length import Lengths
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.quorum import answers_cover, write_set

TAIL_ENTRIES_MAX: Final = 65_536
"""Entries proved beyond the last confirmed one; more than a writer has in flight."""
PROVED_BYTES_MAX: Final = 1 << 30
PROBE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """The end of a ledger. `last_entry` is -1 if it is empty; `exact` refers to the bytes only."""

    last_entry: int
    size_bytes: int
    exact: bool = True


async def durable_end(
    context: LedgerContext, metadata: LedgerMetadata, *, size: bool = True
) -> DurableEnd:
    """The durable end of a ledger. Without `size`, its bytes are -1.

    Raises BookieError if the answers of the last ensemble do not cover the ack quorum: the other
    bookies may have entries that these lack.
    """
    if metadata.state is LedgerState.CLOSED:
        return DurableEnd(metadata.last_entry, metadata.length_bytes)
    ends = await _ends(context, metadata)
    last = await _last_entry(context, metadata, ends)
    if not size or last < 0:
        return DurableEnd(last, 0 if last < 0 else -1)
    return await _with_size(context, metadata, ends, last)


async def _ends(
    context: LedgerContext, metadata: LedgerMetadata
) -> dict[BookieIdentity, LedgerEnd]:
    """The answers of those bookies of the last ensemble that have the ledger."""
    bookies = metadata.ensembles[-1].bookies
    answers = await asyncio.gather(
        *(ask_end(context, metadata.ledger_id, bookie, fence=False) for bookie in bookies)
    )
    by_bookie = dict(zip(bookies, answers, strict=True))
    answered = [
        bookie
        for bookie, answer in by_bookie.items()
        if isinstance(answer, LedgerEnd | NoSuchLedger)
    ]
    if not answers_cover(metadata, answered):
        raise next(
            answer
            for answer in answers
            if isinstance(answer, BookieError) and not isinstance(answer, NoSuchLedger)
        )
    return {bookie: end for bookie, end in by_bookie.items() if isinstance(end, LedgerEnd)}


async def _last_entry(
    context: LedgerContext, metadata: LedgerMetadata, ends: dict[BookieIdentity, LedgerEnd]
) -> int:
    before = metadata.ensembles[-1].first_entry - 1
    confirmed = max([before, *(end.last_add_confirmed for end in ends.values())])
    stored = max([before, *(end.last_entry for end in ends.values())])
    if stored <= confirmed:
        return confirmed
    stored = min(stored, confirmed + TAIL_ENTRIES_MAX)
    held = await asyncio.gather(
        *(_held(context, metadata, bookie, confirmed + 1, stored) for bookie in ends)
    )
    copies = dict(zip(ends, held, strict=True))
    for entry_id in range(confirmed + 1, stored + 1):
        bookies = write_set(metadata, entry_id)
        holders = [bookie for bookie in bookies if entry_id in copies.get(bookie, ())]
        if len(holders) < metadata.ack_quorum:
            return entry_id - 1
    return stored


async def _held(
    context: LedgerContext, metadata: LedgerMetadata, bookie: BookieIdentity, first: int, last: int
) -> set[int]:
    """Returns those of the entries `first` to `last` that the bookie proves to have."""
    held: set[int] = set()
    while first <= last:
        proofs = await ask_proofs(context, metadata.ledger_id, bookie, first, last)
        if isinstance(proofs, BookieError) or proofs.next_entry <= first:
            break
        held |= {proof.entry_id for proof in proofs.proofs if proof.kind is ProofKind.PRESENT}
        first = proofs.next_entry
    return held


async def _with_size(
    context: LedgerContext,
    metadata: LedgerMetadata,
    ends: dict[BookieIdentity, LedgerEnd],
    last: int,
) -> DurableEnd:
    counted = min(metadata.counted_entries, last + 1)
    counted_bytes = metadata.counted_bytes if counted == metadata.counted_entries else 0
    entry_bytes = await _entry_bytes(context, metadata, last)
    estimated = counted_bytes + int(entry_bytes * (last + 1 - counted))
    if estimated - counted_bytes <= PROVED_BYTES_MAX:
        lengths = Lengths(context, metadata)
        lengths.begin(last, ends)
        try:
            return DurableEnd(last, await lengths.until(last))
        except RecoveryFailed:
            pass
    return DurableEnd(last, estimated, exact=False)


async def _entry_bytes(context: LedgerContext, metadata: LedgerMetadata, last: int) -> float:
    """The approximate size of an entry: the mean of a few from the middle."""
    entries = await CopiesReader(context).read(metadata, last // 2, last, bytes_max=PROBE_BYTES)
    return sum(len(entry.data) for entry in entries) / len(entries)
