"""What a ledger's record says is lacking, and which bookies should stand in. Pure.

`assess` compares a record with the bookies of the moment. An ensemble is *lacking* where a bookie
that holds entries of it is gone or draining, or where it has fewer bookies than the ledger wants
copies. A closed ensemble can be put right by copying; the last ensemble of an open ledger is its
writer's affair, for as long as the writer is given. One that is only short is left to its writer
while nobody can stand in: to end it then would only make another that is as short. A bookie that is
only away is waited for.

`target_for` names the bookies that an ensemble should have instead. What cannot be replaced stays,
so that as much as possible is put right. Nothing here reads entries: what copies really hold is
the business of `proving`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random

from magnetar.autorecovery.members import Members, Standing
from magnetar.autorecovery.shape import UNENDED, Part, copies_wanted, holding, parts
from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.placement import choose_more

COPIES: str = "fewer copies than wanted"


@dataclass(frozen=True, slots=True)
class Lacking:
    """One ensemble that is not as it should be."""

    part: Part
    lost: tuple[BookieIdentity, ...]
    """Its bookies that are gone or draining and hold some of its entries."""
    copies_wanted: int

    @property
    def size_wanted(self) -> int:
        return max(len(self.part.bookies), self.copies_wanted)


@dataclass(frozen=True, slots=True)
class Assessment:
    """See the module's text."""

    closed_parts: tuple[Lacking, ...] = ()
    """Can be put right now."""
    open_part: Lacking | None = None
    """The last ensemble of a ledger that is not closed."""
    in_recovery: bool = False
    """Somebody began to end the ledger."""
    waiting: bool = False
    """A bookie is away, perhaps only for a moment."""
    reasons: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Nothing is to be done, now or later."""
        return not (self.closed_parts or self.open_part or self.in_recovery or self.waiting)

    @property
    def needs_end(self) -> bool:
        """Only ending the ledger helps, if its writer does nothing."""
        return self.in_recovery or self.open_part is not None


def assess(metadata: LedgerMetadata, members: Members) -> Assessment:
    """What the record lacks."""
    closed: list[Lacking] = []
    open_part: Lacking | None = None
    waiting = False
    reasons: dict[str, None] = {}
    for part in parts(metadata):
        lost: list[BookieIdentity] = []
        for identity in holding(metadata, part):
            standing = members.standing(identity)
            if standing is Standing.AWAY:
                waiting = True
                reasons[f"{shown(identity)} is away"] = None
            elif standing in (Standing.GONE, Standing.DRAINING):
                lost.append(identity)
                reasons[f"{shown(identity)} is {standing}"] = None
        wanted = copies_wanted(metadata)
        short = len(part.bookies) < wanted and part.last >= part.first
        if part.last == UNENDED:
            short = len(part.bookies) < wanted and _can_grow(part, members)
        if short:
            reasons[f"{COPIES}: {len(part.bookies)} of {wanted}"] = None
        if part.last == UNENDED and (lost or short):
            open_part = Lacking(part, tuple(lost), wanted)
        elif lost or short:
            closed.append(Lacking(part, tuple(lost), wanted))
    in_recovery = metadata.state is LedgerState.IN_RECOVERY
    if in_recovery:
        reasons["its recovery was begun and not finished"] = None
    return Assessment(tuple(closed), open_part, in_recovery, waiting, tuple(reasons))


def _can_grow(part: Part, members: Members) -> bool:
    """Whether there is a bookie that the ensemble could take in."""
    return any(
        info.writable and not info.draining
        for identity, info in members.living.items()
        if identity not in part.bookies
    )


def shown(identity: BookieIdentity) -> str:
    """A bookie, as people are told of it."""
    return f"bookie {identity.bookie_id} ({identity.incarnation})"


def target_for(
    lacking: Lacking, members: Members, rng: Random, refused: Mapping[BookieIdentity, str]
) -> tuple[BookieIdentity, ...]:
    """The ensemble that should replace the lacking one; the same where nobody can stand in.

    Those that are gone are replaced before those that drain; `refused` have failed to take it.
    """
    bookies = lacking.part.bookies
    gone = [one for one in lacking.lost if members.standing(one) is Standing.GONE]
    for leaving in (gone, lacking.lost):
        bookies = _filled(bookies, leaving, lacking, members, rng, refused)
    short = lacking.size_wanted - len(bookies)
    if short > 0:
        infos = list(members.living.values())
        grown = choose_more(infos, (*bookies, *[None] * short), lacking.copies_wanted, rng, refused)
        bookies = tuple(one for one in grown if one is not None)
    return bookies


def _filled(
    bookies: tuple[BookieIdentity, ...],
    leaving: Collection[BookieIdentity],
    lacking: Lacking,
    members: Members,
    rng: Random,
    refused: Mapping[BookieIdentity, str],
) -> tuple[BookieIdentity, ...]:
    """The ensemble with those that leave replaced, as far as there is anybody."""
    kept = [None if one in leaving else one for one in bookies]
    chosen = choose_more(list(members.living.values()), kept, lacking.copies_wanted, rng, refused)
    return tuple(new or old for new, old in zip(chosen, bookies, strict=True))
