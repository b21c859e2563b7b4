"""The decisions of the ledger protocol that depend on who holds what. Pure.

An ensemble is a tuple of n bookies. Of an entry there are w = min(write quorum, n) copies, on the
bookies k, k+1, … k+w-1 (mod n) with k = (entry // stripe_entries) % n: its write set. It is
confirmed once `ack_quorum` of them have it. An ensemble may be smaller than the ledger's
`ensemble_size`, never smaller than its `ack_quorum`; below `write_quorum` it lacks copies.

Three rules carry recovery (BookKeeper's protocol; #2303, #1067, #2614):

- *Coverage.* Enough bookies are fenced when in no write set `ack_quorum` are left that are not:
  then no entry can be confirmed any more that recovery does not know of. Only the bookie's own word
  that it is fenced counts, whatever it says of entries; an error or silence does not.
- *Absence.* An entry was never confirmed, and never will be, when w - ack_quorum + 1 bookies of its
  write set are fenced and certain that they do not have it: fewer than `ack_quorum` are left.
  "Unknown", silence, errors and another incarnation of the bookie never count.
- *Below the last ensemble everything is confirmed* (#2615): a writer begins an ensemble at or below
  its first unconfirmed entry, so recovery only looks at the last one.
"""

from bisect import bisect_right
from collections.abc import Collection, Container, Iterator
from functools import lru_cache
from typing import Final

from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, LedgerState

UNENDED: Final = 1 << 62
"""As a last entry: the ledger may still grow."""


def ensemble_index(metadata: LedgerMetadata, entry_id: int) -> int:
    """Which of the ledger's ensembles the entry belongs to."""
    ensembles = metadata.ensembles
    if entry_id >= ensembles[-1].first_entry:
        return len(ensembles) - 1
    found = bisect_right(ensembles, entry_id, key=lambda ensemble: ensemble.first_entry) - 1
    if found < 0:
        raise ValueError(f"ledger {metadata.ledger_id} begins behind entry {entry_id}")
    return found


def ensemble_of(metadata: LedgerMetadata, entry_id: int) -> Ensemble:
    """The ensemble that the entry belongs to."""
    return metadata.ensembles[ensemble_index(metadata, entry_id)]


def last_of(metadata: LedgerMetadata, index: int) -> int:
    """The last entry of one of the ledger's ensembles; UNENDED where there may be more."""
    end = metadata.last_entry if metadata.state is LedgerState.CLOSED else UNENDED
    if index + 1 < len(metadata.ensembles):
        end = min(end, metadata.ensembles[index + 1].first_entry - 1)
    return end


def slots_of(size: int, write_quorum: int, stripe_entries: int, entry_id: int) -> tuple[int, ...]:
    """The numbers, within an ensemble of `size` bookies, of those that hold the entry."""
    return _write_sets(size, write_quorum)[(entry_id // stripe_entries) % size]


@lru_cache(maxsize=256)
def _write_sets(size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    copies = min(write_quorum, size)
    return tuple(tuple((k + step) % size for step in range(copies)) for k in range(size))


def write_sets(size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """Every write set of an ensemble of `size` bookies, as numbers within it."""
    return _write_sets(size, write_quorum)


def write_set(metadata: LedgerMetadata, entry_id: int) -> tuple[BookieIdentity, ...]:
    """The bookies that the entry is written to, the first one first."""
    bookies = ensemble_of(metadata, entry_id).bookies
    slots = slots_of(len(bookies), metadata.write_quorum, metadata.stripe_entries, entry_id)
    return tuple(bookies[slot] for slot in slots)


def striped(size: int, write_quorum: int) -> bool:
    """Whether entries of such an ensemble are on different bookies."""
    return size > write_quorum


def stripe_last(size: int, write_quorum: int, stripe_entries: int, entry_id: int) -> int:
    """The last entry from this one on that has the same write set without a break."""
    if not striped(size, write_quorum):
        return UNENDED
    return (entry_id // stripe_entries + 1) * stripe_entries - 1


def run_last(metadata: LedgerMetadata, entry_id: int) -> int:
    """The last entry of the ledger that has the same write set as this one, without a break."""
    index = ensemble_index(metadata, entry_id)
    size = len(metadata.ensembles[index].bookies)
    end = stripe_last(size, metadata.write_quorum, metadata.stripe_entries, entry_id)
    return min(end, last_of(metadata, index))


def fence_covers(size: int, write_quorum: int, ack_quorum: int, fenced: Container[int]) -> bool:
    """Whether no entry can be confirmed any more, with these numbers of the ensemble fenced."""
    return all(
        sum(slot not in fenced for slot in slots) < ack_quorum
        for slots in _write_sets(size, write_quorum)
    )


def answers_cover(metadata: LedgerMetadata, answered: Collection[BookieIdentity]) -> bool:
    """Whether every confirmed entry of the last ensemble is on one of these of its bookies.

    Without coverage the ledger may have entries that none of them has.
    """
    bookies = metadata.ensembles[-1].bookies
    slots = {slot for slot, one in enumerate(bookies) if one in answered}
    return fence_covers(len(bookies), metadata.write_quorum, metadata.ack_quorum, slots)


def absence_needs(size: int, write_quorum: int, ack_quorum: int) -> int:
    """How many of a write set must be certain that an entry is not there, for it not to be."""
    return min(write_quorum, size) - ack_quorum + 1


def can_confirm(size: int, write_quorum: int, ack_quorum: int, healthy: Container[int]) -> bool:
    """Whether every entry can still find an ack quorum among these numbers of the ensemble."""
    return all(
        sum(slot in healthy for slot in slots) >= ack_quorum
        for slots in _write_sets(size, write_quorum)
    )


def lacks_copies(metadata: LedgerMetadata) -> bool:
    """Whether some ensemble has fewer bookies than an entry is to have copies."""
    return any(len(one.bookies) < metadata.write_quorum for one in metadata.ensembles)


def ensembles_touched(
    metadata: LedgerMetadata, bookies: Collection[BookieIdentity]
) -> Iterator[int]:
    """Which of the ledger's ensembles have one of these bookies, in order."""
    wanted = set(bookies)
    for index, ensemble in enumerate(metadata.ensembles):
        if not wanted.isdisjoint(ensemble.bookies):
            yield index


def every_bookie(metadata: LedgerMetadata) -> tuple[BookieIdentity, ...]:
    """Every bookie that the record names, each once."""
    seen = dict.fromkeys(one for ensemble in metadata.ensembles for one in ensemble.bookies)
    return tuple(seen)


def with_ensemble(
    metadata: LedgerMetadata, first_entry: int, bookies: tuple[BookieIdentity, ...]
) -> tuple[Ensemble, ...]:
    """The ledger's ensembles, with these bookies from `first_entry` on; what was behind it goes."""
    kept = [one for one in metadata.ensembles if one.first_entry < first_entry]
    if kept and kept[-1].bookies == bookies:
        return tuple(kept)
    return (*kept, Ensemble(first_entry, bookies))
