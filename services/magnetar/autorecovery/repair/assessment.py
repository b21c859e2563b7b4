"""Assesses a ledger's record against the current bookies, and chooses replacements. Pure.

An ensemble is *lacking* if a bookie that holds its entries is gone or draining, or if it has fewer
bookies than the ledger wants copies. A closed ensemble can be restored by copying. The last
ensemble of an open ledger belongs to its writer until the grace time ends. If it is only too small,
it is left to the writer while no bookie is available: closing the ledger would only create another
as small. If a bookie is only away, the assessment waits for it.

`target_for` returns the bookies that an ensemble should have instead. Bookies without a replacement
stay, so that as much as possible is restored. Nothing here reads entries; `check.prover` does.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random

from magnetar.autorecovery.answers import bookie_text
from magnetar.autorecovery.members import BookieState, Members
from magnetar.autorecovery.shape import (
    OPEN_END,
    Part,
    bookies_with_entries,
    copies_wanted,
    parts,
)
from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.placement import choose_more

COPIES: str = "fewer copies than wanted"


@dataclass(frozen=True, slots=True)
class Lacking:
    """An ensemble that lacks copies."""

    part: Part
    lost: tuple[BookieIdentity, ...]
    """Its bookies that are gone or draining and hold some of its entries."""
    copies_wanted: int

    @property
    def size_wanted(self) -> int:
        """The number of bookies that the ensemble should have."""
        return max(len(self.part.bookies), self.copies_wanted)


@dataclass(frozen=True, slots=True)
class Assessment:
    """The copies that one ledger lacks, by its record."""

    closed_parts: tuple[Lacking, ...] = ()
    """Lacking ensembles that can be restored now."""
    open_part: Lacking | None = None
    """The last ensemble of an open ledger, if it is lacking."""
    in_recovery: bool = False
    """Whether a recovery of the ledger has started and not finished."""
    waiting: bool = False
    """Whether a bookie is away, perhaps only for a moment."""
    reasons: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing must be done, now or later."""
        return not (self.closed_parts or self.open_part or self.in_recovery or self.waiting)

    @property
    def needs_end(self) -> bool:
        """Whether only closing the ledger helps, unless its writer acts."""
        return self.in_recovery or self.open_part is not None


def assess(metadata: LedgerMetadata, members: Members) -> Assessment:
    """Returns what the ledger lacks, by its record."""
    closed: list[Lacking] = []
    open_part: Lacking | None = None
    waiting = False
    reasons: dict[str, None] = {}
    for part in parts(metadata):
        lost: list[BookieIdentity] = []
        for identity in bookies_with_entries(metadata, part):
            state = members.state_of(identity)
            if state is BookieState.AWAY:
                waiting = True
                reasons[f"{bookie_text(identity)} is away"] = None
            elif state in (BookieState.GONE, BookieState.DRAINING):
                lost.append(identity)
                reasons[f"{bookie_text(identity)} is {state}"] = None
        wanted = copies_wanted(metadata)
        short = len(part.bookies) < wanted and part.last >= part.first
        if part.last == OPEN_END:
            short = len(part.bookies) < wanted and _can_grow(part, members)
        if short:
            reasons[f"{COPIES}: {len(part.bookies)} of {wanted}"] = None
        if part.last == OPEN_END and (lost or short):
            open_part = Lacking(part, tuple(lost), wanted)
        elif lost or short:
            closed.append(Lacking(part, tuple(lost), wanted))
    in_recovery = metadata.state is LedgerState.IN_RECOVERY
    if in_recovery:
        reasons["its recovery has started and not finished"] = None
    return Assessment(tuple(closed), open_part, in_recovery, waiting, tuple(reasons))


def _can_grow(part: Part, members: Members) -> bool:
    """Whether a bookie is available for the ensemble."""
    return any(
        info.writable and not info.draining
        for identity, info in members.living.items()
        if identity not in part.bookies
    )


def target_for(
    lacking: Lacking, members: Members, rng: Random, refused: Mapping[BookieIdentity, str]
) -> tuple[BookieIdentity, ...]:
    """Returns the ensemble that should replace the lacking one; the same if no bookie is available.

    Bookies that are gone are replaced before draining ones; `refused` bookies failed to take
    copies.
    """
    bookies = lacking.part.bookies
    gone = [identity for identity in lacking.lost if members.state_of(identity) is BookieState.GONE]
    for leaving in (gone, lacking.lost):
        bookies = _filled(bookies, leaving, lacking, members, rng, refused)
    short = lacking.size_wanted - len(bookies)
    if short > 0:
        infos = list(members.living.values())
        grown = choose_more(infos, (*bookies, *[None] * short), lacking.copies_wanted, rng, refused)
        bookies = tuple(identity for identity in grown if identity is not None)
    return bookies


def _filled(
    bookies: tuple[BookieIdentity, ...],
    leaving: Collection[BookieIdentity],
    lacking: Lacking,
    members: Members,
    rng: Random,
    refused: Mapping[BookieIdentity, str],
) -> tuple[BookieIdentity, ...]:
    """Returns the ensemble with the leaving bookies replaced, as far as bookies are available."""
    kept = [None if identity in leaving else identity for identity in bookies]
    chosen = choose_more(list(members.living.values()), kept, lacking.copies_wanted, rng, refused)
    return tuple(new or old for new, old in zip(chosen, bookies, strict=True))
