"""The decisions of the ledger protocol about copies. Pure.

An ensemble is a tuple of n bookies. An entry has w = min(write quorum, n) copies, on the bookies k,
k+1, … k+w-1 (mod n) with k = (entry // stripe_entries) % n: its write set. The entry is confirmed
once `ack_quorum` of them have it. An ensemble may be smaller than the ledger's `ensemble_size`, but
never smaller than its `ack_quorum`; below `write_quorum` it lacks copies.

Recovery rests on three rules (BookKeeper's protocol; #2303, #1067, #2614):

- *Coverage.* Enough bookies are fenced when every write set has fewer than `ack_quorum` unfenced
  bookies: then no entry can be confirmed any more without recovery's knowledge. Only the bookie's
  own answer that it is fenced counts, whatever entries it reports; an error or silence does not.
- *Absence.* An entry was never confirmed, and never will be, if w - ack_quorum + 1 bookies of its
  write set are fenced and certain not to have it: fewer than `ack_quorum` remain. "Unknown",
  silence, errors and another incarnation of the bookie never count.
- *Below the last ensemble everything is confirmed* (#2615): a writer starts an ensemble at or below
  its first unconfirmed entry, so recovery only examines the last one.
"""

from bisect import bisect_right
from collections.abc import Collection, Container
from functools import lru_cache
from typing import Final

from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, LedgerState

UNENDED: Final = 1 << 62
"""The last entry of a ledger that may still grow."""


def ensemble_index(metadata: LedgerMetadata, entry_id: int) -> int:
    """Returns the index of the entry's ensemble."""
    ensembles = metadata.ensembles
    if entry_id >= ensembles[-1].first_entry:
        return len(ensembles) - 1
    index = bisect_right(ensembles, entry_id, key=lambda ensemble: ensemble.first_entry) - 1
    if index < 0:
        raise ValueError(f"ledger {metadata.ledger_id} begins behind entry {entry_id}")
    return index


def ensemble_of(metadata: LedgerMetadata, entry_id: int) -> Ensemble:
    """Returns the entry's ensemble."""
    return metadata.ensembles[ensemble_index(metadata, entry_id)]


def last_of(metadata: LedgerMetadata, index: int) -> int:
    """Returns the last entry of an ensemble; UNENDED if it may still grow."""
    end = metadata.last_entry if metadata.state is LedgerState.CLOSED else UNENDED
    if index + 1 < len(metadata.ensembles):
        end = min(end, metadata.ensembles[index + 1].first_entry - 1)
    return end


def slots_of(size: int, write_quorum: int, stripe_entries: int, entry_id: int) -> tuple[int, ...]:
    """Returns the indices, within an ensemble of `size` bookies, of the entry's write set."""
    return _write_sets(size, write_quorum)[(entry_id // stripe_entries) % size]


@lru_cache(maxsize=256)
def _write_sets(size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    copies = min(write_quorum, size)
    return tuple(tuple((k + step) % size for step in range(copies)) for k in range(size))


def write_sets(size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """Returns all write sets of an ensemble of `size` bookies, as indices."""
    return _write_sets(size, write_quorum)


def write_set(metadata: LedgerMetadata, entry_id: int) -> tuple[BookieIdentity, ...]:
    """Returns the bookies that hold the entry, the first one first."""
    bookies = ensemble_of(metadata, entry_id).bookies
    slots = slots_of(len(bookies), metadata.write_quorum, metadata.stripe_entries, entry_id)
    return tuple(bookies[slot] for slot in slots)


def striped(size: int, write_quorum: int) -> bool:
    """Whether the ensemble's entries have different write sets."""
    return size > write_quorum


def stripe_last(stripe_entries: int, entry_id: int) -> int:
    """Returns the last entry of the stripe: in a striped ensemble, they have the same write set."""
    return (entry_id // stripe_entries + 1) * stripe_entries - 1


def run_last(metadata: LedgerMetadata, entry_id: int) -> int:
    """Returns the last entry of the ledger in the run with this one's write set."""
    index = ensemble_index(metadata, entry_id)
    size = len(metadata.ensembles[index].bookies)
    last = last_of(metadata, index)
    if not striped(size, metadata.write_quorum):
        return last
    return min(stripe_last(metadata.stripe_entries, entry_id), last)


def fence_covers(size: int, write_quorum: int, ack_quorum: int, fenced: Container[int]) -> bool:
    """Whether no entry can be confirmed any more, with these numbers of the ensemble fenced."""
    return all(
        sum(slot not in fenced for slot in slots) < ack_quorum
        for slots in _write_sets(size, write_quorum)
    )


def answers_cover(metadata: LedgerMetadata, answered: Collection[BookieIdentity]) -> bool:
    """Whether the answers of these bookies cover every confirmed entry of the last ensemble.

    Without coverage, the ledger may have entries that none of them has.
    """
    bookies = metadata.ensembles[-1].bookies
    slots = {slot for slot, identity in enumerate(bookies) if identity in answered}
    return fence_covers(len(bookies), metadata.write_quorum, metadata.ack_quorum, slots)


def absence_needs(size: int, write_quorum: int, ack_quorum: int) -> int:
    """Returns how many bookies of a write set must deny an entry to prove it absent."""
    return min(write_quorum, size) - ack_quorum + 1


def every_bookie(metadata: LedgerMetadata) -> tuple[BookieIdentity, ...]:
    """Returns the bookies that the record names, without duplicates."""
    ensembles = metadata.ensembles
    return tuple(dict.fromkeys(bookie for ensemble in ensembles for bookie in ensemble.bookies))


def with_ensemble(
    metadata: LedgerMetadata, first_entry: int, bookies: tuple[BookieIdentity, ...]
) -> tuple[Ensemble, ...]:
    """Returns the ensembles with these bookies from `first_entry` on; later ones are dropped."""
    kept = [ensemble for ensemble in metadata.ensembles if ensemble.first_entry < first_entry]
    if kept and kept[-1].bookies == bookies:
        return tuple(kept)
    return (*kept, Ensemble(first_entry, bookies))
