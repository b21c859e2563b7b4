"""The copies that replacing bookies of an ensemble needs, and the ledger's record after. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from magnetar.autorecovery.copier import CopyTask
from magnetar.autorecovery.members import BookieState, Members
from magnetar.autorecovery.shape import Part, holders
from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import Ensemble, LedgerMetadata

WINDOW_ENTRIES: Final = 1024
SPLITS_MAX: Final = 256
"""Ranges of lost entries at which an ensemble is split; with more of them it is not changed."""

_SOURCE_ORDER: Final = (
    BookieState.LIVING,
    BookieState.DRAINING,
    BookieState.AWAY,
    BookieState.GONE,
)


def copy_tasks(
    metadata: LedgerMetadata, part: Part, target: Sequence[BookieIdentity], members: Members
) -> Iterator[dict[int, CopyTask]]:
    """Yields the copies to make before the record may name `target`, a window at a time."""

    def rank(identity: BookieIdentity) -> int:
        return _SOURCE_ORDER.index(members.state_of(identity))

    quorum, stripe = metadata.write_quorum, metadata.stripe_entries
    for first in range(part.first, part.last + 1, WINDOW_ENTRIES):
        window: dict[int, CopyTask] = {}
        for entry_id in range(first, min(part.last, first + WINDOW_ENTRIES - 1) + 1):
            before = holders(part.bookies, quorum, stripe, entry_id)
            after = holders(target, quorum, stripe, entry_id)
            added = tuple(bookie for bookie in after if bookie not in before)
            if added:
                window[entry_id] = CopyTask(tuple(sorted(before, key=rank)), added)
        if window:
            yield window


def ranges(entry_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the runs of ascending ids as (first, last)."""
    runs: list[tuple[int, int]] = []
    for entry_id in entry_ids:
        if runs and runs[-1][1] == entry_id - 1:
            runs[-1] = (runs[-1][0], entry_id)
        else:
            runs.append((entry_id, entry_id))
    return runs


def replace_bookies(
    metadata: LedgerMetadata,
    part: Part,
    target: Sequence[BookieIdentity],
    lost: Sequence[tuple[int, int]],
) -> LedgerMetadata | None:
    """Returns the record with `target` as the part's bookies, except for the lost entries.

    Lost entries keep their bookies, so that they can be read if one of these ever returns. Returns
    None if nothing would change, or if the ensemble would be split into too many pieces.
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


def is_abandoned(part: Part, abandoned: Mapping[int, int]) -> bool:
    """Whether the part lies within one of the abandoned ranges (first: last)."""
    return any(first <= part.first and part.last <= last for first, last in abandoned.items())
