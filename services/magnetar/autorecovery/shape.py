"""Which bookies of an ensemble hold which entries, and what of it is lacking. Pure.

Where an entry is follows from `ledger.quorum`. Ensembles follow each other without gaps; the last
one of a ledger that is not closed has no end yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.quorum import slots_of

UNENDED: Final = -2
"""As a last entry: there may be more at any moment."""


@dataclass(frozen=True, slots=True)
class Part:
    """One ensemble with the entries that are on it; `last` is UNENDED where it may grow."""

    index: int
    first: int
    last: int
    bookies: tuple[BookieIdentity, ...]


def parts(metadata: LedgerMetadata) -> list[Part]:
    """The ledger's ensembles with their ranges, in order."""
    closed = metadata.state is LedgerState.CLOSED
    end = metadata.last_entry if closed else UNENDED
    found: list[Part] = []
    ensembles = metadata.ensembles
    for index, ensemble in enumerate(ensembles):
        final = index + 1 == len(ensembles)
        last = end if final else ensembles[index + 1].first_entry - 1
        if closed and not final:
            last = min(last, metadata.last_entry)
        found.append(Part(index, ensemble.first_entry, last, ensemble.bookies))
    return found


def copies_wanted(metadata: LedgerMetadata) -> int:
    """How many copies every entry should have; an ensemble may have had fewer bookies."""
    return metadata.write_quorum


def holders(
    bookies: Sequence[BookieIdentity], write_quorum: int, stripe_entries: int, entry_id: int
) -> tuple[BookieIdentity, ...]:
    """The bookies that hold the entry, the first one first."""
    return tuple(
        bookies[at] for at in slots_of(len(bookies), write_quorum, stripe_entries, entry_id)
    )


def holding(metadata: LedgerMetadata, part: Part) -> list[BookieIdentity]:
    """The part's bookies that hold something of it, or may come to.

    The last ensemble of a closed ledger may be empty, and a short one may leave some bookies out.
    """
    if part.last == UNENDED:
        return list(part.bookies)
    size, quorum, stripe = len(part.bookies), metadata.write_quorum, metadata.stripe_entries
    return [
        part.bookies[at] for at in sorted(slots_used(size, quorum, stripe, part.first, part.last))
    ]


def slots_used(
    ensemble_size: int, write_quorum: int, stripe_entries: int, first: int, last: int
) -> set[int]:
    """The numbers of the bookies that hold at least one of the entries."""
    used: set[int] = set()
    for entry_id in stripe_starts(stripe_entries, first, last):
        used.update(slots_of(ensemble_size, write_quorum, stripe_entries, entry_id))
        if len(used) == ensemble_size:
            break
    return used


def stripe_starts(stripe_entries: int, first: int, last: int) -> Iterator[int]:
    """One entry of every stripe that the range touches."""
    if first > last:
        return
    yield first
    yield from range((first // stripe_entries + 1) * stripe_entries, last + 1, stripe_entries)
