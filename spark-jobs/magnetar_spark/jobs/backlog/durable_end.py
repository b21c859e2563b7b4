"""Where a ledger that may still grow ends, and its length, without fencing it.

Bookies know what is confirmed from the writer's next add, or from the writer itself once it has
paused for a second or two (`ledger.explicit_lac`): of a ledger at rest nothing else is asked. Where
there are entries behind that, one that `ack_quorum` bookies of its write set have on disk is what
the writer gave, or is about to give, its receipt for, and what any recovery would keep. So the
ledger ends where that is no longer true; when nothing moves this is exactly where its writer's last
receipt is.

The length is known where one bookie holds every entry (it tells), else from what the record has
counted and proofs of the rest, for which bookies read their disks: up to PROVED_BYTES_MAX by a
guess of the size, beyond that the length is that guess and `exact` is false.
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
from magnetar.ledger.asking import ask_end, ask_proofs
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.length import Lengths
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.quorum import answers_cover, write_set
from magnetar.ledger.reading import CopiesReader

TAIL_ENTRIES_MAX: Final = 65_536
"""Proved beyond what is known to be confirmed: more than a writer has on its way."""
PROVED_BYTES_MAX: Final = 1 << 30
PROBE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """`last_entry` is -1 where there is none; `exact` is about the bytes alone."""

    last_entry: int
    size_bytes: int
    exact: bool = True


async def durable_end(
    context: LedgerContext, metadata: LedgerMetadata, *, size: bool = True
) -> DurableEnd:
    """Raises BookieError where too few bookies of the last ensemble answer to cover the ack quorum:
    the others may have entries that these do not have. Without `size`, -1 bytes."""
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
    """What the bookies of the last ensemble say that have the ledger."""
    bookies = metadata.ensembles[-1].bookies
    answers = await asyncio.gather(
        *(ask_end(context, metadata.ledger_id, one, fence=False) for one in bookies)
    )
    found = dict(zip(bookies, answers, strict=True))
    answered = [one for one, each in found.items() if isinstance(each, LedgerEnd | NoSuchLedger)]
    if not answers_cover(metadata, answered):
        raise next(
            each
            for each in answers
            if isinstance(each, BookieError) and not isinstance(each, NoSuchLedger)
        )
    return {one: each for one, each in found.items() if isinstance(each, LedgerEnd)}


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
        *(_held(context, metadata, one, confirmed + 1, stored) for one in ends)
    )
    copies = dict(zip(ends, held, strict=True))
    for entry_id in range(confirmed + 1, stored + 1):
        have = [one for one in write_set(metadata, entry_id) if entry_id in copies.get(one, ())]
        if len(have) < metadata.ack_quorum:
            return entry_id - 1
    return stored


async def _held(
    context: LedgerContext, metadata: LedgerMetadata, one: BookieIdentity, first: int, last: int
) -> set[int]:
    """Which of these entries the bookie proves to have."""
    found: set[int] = set()
    while first <= last:
        proofs = await ask_proofs(context, metadata.ledger_id, one, first, last)
        if isinstance(proofs, BookieError) or proofs.next_entry <= first:
            break
        found |= {each.entry_id for each in proofs.proofs if each.kind is ProofKind.PRESENT}
        first = proofs.next_entry
    return found


async def _with_size(
    context: LedgerContext,
    metadata: LedgerMetadata,
    ends: dict[BookieIdentity, LedgerEnd],
    last: int,
) -> DurableEnd:
    counted = min(metadata.counted_entries, last + 1)
    known = metadata.counted_bytes if counted == metadata.counted_entries else 0
    guess = await _entry_bytes(context, metadata, last)
    guessed = known + int(guess * (last + 1 - counted))
    if guessed - known <= PROVED_BYTES_MAX:
        lengths = Lengths(context, metadata)
        lengths.begin(last, ends)
        try:
            return DurableEnd(last, await lengths.until(last))
        except RecoveryFailed:
            pass
    return DurableEnd(last, guessed, exact=False)


async def _entry_bytes(context: LedgerContext, metadata: LedgerMetadata, last: int) -> float:
    """Of one entry, about: the mean of a few from the middle."""
    entries = await CopiesReader(context).read(metadata, last // 2, last, bytes_max=PROBE_BYTES)
    return sum(len(entry.data) for entry in entries) / len(entries)
