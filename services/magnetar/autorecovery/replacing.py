"""What copying an ensemble to other bookies needs, and the ledger's record after it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from magnetar.autorecovery.copying import Need
from magnetar.autorecovery.members import Members, Standing
from magnetar.autorecovery.shape import Part, holders
from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import Ensemble, LedgerMetadata

WINDOW_ENTRIES: Final = 1024
SPLITS_MAX: Final = 256
"""Ranges of lost entries that an ensemble is cut around; with more of them it stays as it is."""

_ASKED_FIRST: Final = (Standing.LIVING, Standing.DRAINING, Standing.AWAY, Standing.GONE)


def needs(
    metadata: LedgerMetadata, part: Part, target: Sequence[BookieIdentity], members: Members
) -> Iterator[dict[int, Need]]:
    """What must be copied before `target` may stand in the record, a window at a time."""

    def rank(identity: BookieIdentity) -> int:
        return _ASKED_FIRST.index(members.standing(identity))

    quorum, stripe = metadata.write_quorum, metadata.stripe_entries
    for first in range(part.first, part.last + 1, WINDOW_ENTRIES):
        window: dict[int, Need] = {}
        for entry_id in range(first, min(part.last, first + WINDOW_ENTRIES - 1) + 1):
            before = holders(part.bookies, quorum, stripe, entry_id)
            after = holders(target, quorum, stripe, entry_id)
            added = tuple(one for one in after if one not in before)
            if added:
                window[entry_id] = Need(tuple(sorted(before, key=rank)), added)
        if window:
            yield window


def ranges(entry_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending ids as (first, last) of each run."""
    found: list[tuple[int, int]] = []
    for entry_id in entry_ids:
        if found and found[-1][1] == entry_id - 1:
            found[-1] = (found[-1][0], entry_id)
        else:
            found.append((entry_id, entry_id))
    return found


def with_replaced(
    metadata: LedgerMetadata,
    part: Part,
    target: Sequence[BookieIdentity],
    lost: Sequence[tuple[int, int]],
) -> LedgerMetadata | None:
    """The record with `target` in place of the part's bookies, but for the lost entries.

    Those stay where they were: if one of their bookies ever comes back, they are found there. None
    where nothing would change, or where the ensemble would be cut into too many pieces.
    """
    if len(lost) > SPLITS_MAX:
        return None
    pieces: list[Ensemble] = []
    position = part.first
    for first, last in lost:
        if position < first:
            pieces.append(Ensemble(position, tuple(target)))
        pieces.append(Ensemble(first, part.bookies))
        position = last + 1
    if position <= part.last:
        pieces.append(Ensemble(position, tuple(target)))
    if all(piece.bookies == part.bookies for piece in pieces):
        return None
    ensembles = metadata.ensembles
    changed = (*ensembles[: part.index], *pieces, *ensembles[part.index + 1 :])
    return msgspec.structs.replace(metadata, ensembles=changed)


def inside(part: Part, given_up: Mapping[int, int]) -> bool:
    """Whether the part lies in one of the ranges (first: last) that are known to be lost."""
    return any(first <= part.first and part.last <= last for first, last in given_up.items())
