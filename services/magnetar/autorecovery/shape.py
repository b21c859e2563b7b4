"""The entry ranges of a ledger's ensembles, and the bookies that hold each entry. Pure.

`ledger.quorum` maps entries to bookies. Ensembles follow each other without gaps. The last ensemble
of a ledger that is not closed has no end yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.quorum import slots_of

OPEN_END: Final = -2
"""The last entry of an ensemble that may still grow."""


@dataclass(frozen=True, slots=True)
class Part:
    """One ensemble and its entries; `last` is OPEN_END if the ensemble may grow."""

    index: int
    first: int
    last: int
    bookies: tuple[BookieIdentity, ...]


def parts(metadata: LedgerMetadata) -> list[Part]:
    """Returns the ledger's ensembles with their ranges, in order."""
    closed = metadata.state is LedgerState.CLOSED
    end = metadata.last_entry if closed else OPEN_END
    result: list[Part] = []
    ensembles = metadata.ensembles
    for index, ensemble in enumerate(ensembles):
        final = index + 1 == len(ensembles)
        last = end if final else ensembles[index + 1].first_entry - 1
        if closed and not final:
            last = min(last, metadata.last_entry)
        result.append(Part(index, ensemble.first_entry, last, ensemble.bookies))
    return result


def copies_wanted(metadata: LedgerMetadata) -> int:
    """Returns the number of copies that every entry should have; an ensemble may be smaller."""
    return metadata.write_quorum


def holders(
    bookies: Sequence[BookieIdentity], write_quorum: int, stripe_entries: int, entry_id: int
) -> tuple[BookieIdentity, ...]:
    """Returns the entry's write set, in order."""
    return tuple(
        bookies[at] for at in slots_of(len(bookies), write_quorum, stripe_entries, entry_id)
    )


def bookies_with_entries(metadata: LedgerMetadata, part: Part) -> list[BookieIdentity]:
    """Returns the part's bookies that hold any of its entries, or may hold some if it can grow.

    The last ensemble of a closed ledger may be empty, and a short one may not use all bookies.
    """
    if part.last == OPEN_END:
        return list(part.bookies)
    size, quorum, stripe = len(part.bookies), metadata.write_quorum, metadata.stripe_entries
    return [
        part.bookies[at] for at in sorted(slots_used(size, quorum, stripe, part.first, part.last))
    ]


def slots_used(
    ensemble_size: int, write_quorum: int, stripe_entries: int, first: int, last: int
) -> set[int]:
    """Returns the indexes of the bookies that hold at least one of the entries."""
    used: set[int] = set()
    for entry_id in stripe_starts(stripe_entries, first, last):
        used.update(slots_of(ensemble_size, write_quorum, stripe_entries, entry_id))
        if len(used) == ensemble_size:
            break
    return used


def stripe_starts(stripe_entries: int, first: int, last: int) -> Iterator[int]:
    """Yields one entry of every stripe that the range touches."""
    if first > last:
        return
    yield first
    yield from range((first // stripe_entries + 1) * stripe_entries, last + 1, stripe_entries)
