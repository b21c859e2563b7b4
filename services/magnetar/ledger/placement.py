"""Which bookies a ledger goes to. Pure: what is random comes from the caller.

Bookies are drawn at random, weighted by their free disk (Efraimidis and Spirakis), so that a new
one has its fair share from the next ledger on and a fuller one less. Those that are read-only,
draining or left out by the caller are not taken; quarantined ones only where the rest are too few.
Where there are two racks or more, each write set spans at least two of them if any order of
bookies does; SEARCH_STEPS_MAX bounds the search for it.
"""

from collections.abc import Mapping, Sequence
from math import log
from random import Random
from typing import Final

from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.bookies import BookieInfo
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.quorum import write_sets

SEARCH_STEPS_MAX: Final = 2000
FREE_RATIO_MIN: Final = 0.01
"""A full disk's weight: it is writable, so it may be drawn, but hardly ever."""
EXCLUDED_NAMED_MAX: Final = 16

Excluded = Mapping[BookieIdentity, str]
"""Bookies not to take, and why."""

_NOBODY: Final[Excluded] = {}


def choose_ensemble(
    bookies: Sequence[BookieInfo],
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    rng: Random,
    excluded: Excluded = _NOBODY,
) -> tuple[BookieIdentity, ...]:
    """`ensemble_size` bookies, or fewer where there are not so many that are well.

    As many as the write quorum where there are; raises NotEnoughBookies below the ack quorum.
    """
    able = _able(bookies, excluded)
    if len(able) < ack_quorum:
        raise not_enough(ack_quorum, bookies, excluded)
    healthy = sum(not info.quarantined for info in able)
    size = min(ensemble_size, max(healthy, min(write_quorum, len(able))))
    chosen = _spread(_drawn(able, size, rng), size, write_quorum)
    return tuple(info.identity for info in chosen)


def choose_more(
    bookies: Sequence[BookieInfo],
    ensemble: Sequence[BookieIdentity | None],
    write_quorum: int,
    rng: Random,
    excluded: Excluded = _NOBODY,
) -> tuple[BookieIdentity | None, ...]:
    """The ensemble with its None's replaced, as far as there are bookies to do it."""
    racks = {info.identity: info.rack for info in bookies}
    members: list[BookieIdentity | None] = list(ensemble)
    taken = {one.bookie_id for one in members if one is not None}
    able = [info for info in _able(bookies, excluded) if info.identity.bookie_id not in taken]
    order = _drawn(able, len(able), rng)
    for slot, member in enumerate(members):
        if member is not None or not order:
            continue
        best = min(
            order,
            key=lambda info: (
                info.quarantined,
                _narrow_sets(members, slot, info.identity, racks, write_quorum),
            ),
        )
        members[slot] = best.identity
        order.remove(best)
    return tuple(members)


def not_enough(
    needed: int, bookies: Sequence[BookieInfo], excluded: Excluded = _NOBODY
) -> NotEnoughBookies:
    """The error that names who was left out, and why."""
    reasons = [
        f"{info.identity.bookie_id} {reason}"
        for info in bookies
        if (reason := _reason(info, excluded))
    ]
    able = len(bookies) - len(reasons)
    named = ", ".join(reasons[:EXCLUDED_NAMED_MAX]) or "none"
    more = len(reasons) - EXCLUDED_NAMED_MAX
    return NotEnoughBookies(
        f"{needed} bookies are needed for an ack quorum, {able} of {len(bookies)} registered ones "
        f"take adds; left out: {named}" + (f" and {more} more" if more > 0 else "")
    )


def _reason(info: BookieInfo, excluded: Excluded) -> str:
    if not info.writable:
        return "(read-only)"
    if info.draining:
        return "(draining)"
    reason = excluded.get(info.identity)
    return "" if reason is None else f"({reason})"


def _able(bookies: Sequence[BookieInfo], excluded: Excluded) -> list[BookieInfo]:
    """Those that may be taken."""
    return [info for info in bookies if not _reason(info, excluded)]


def _drawn(bookies: Sequence[BookieInfo], size: int, rng: Random) -> list[BookieInfo]:
    """All of them in the order of the draw; quarantined ones last, or gone where not needed."""
    healthy = [info for info in bookies if not info.quarantined]
    if len(healthy) >= size:
        bookies = healthy
    keyed = [
        (info.quarantined, -log(1.0 - rng.random()) / max(info.disk_free_ratio, FREE_RATIO_MIN))
        for info in bookies
    ]
    return [bookies[i] for i in sorted(range(len(bookies)), key=keyed.__getitem__)]


def _spread(order: list[BookieInfo], size: int, write_quorum: int) -> list[BookieInfo]:
    """`size` of them, early ones before late ones, such that each write set spans two racks."""
    copies = min(write_quorum, size)
    if copies < 2 or len({info.rack for info in order}) < 2:
        return order[:size]
    chosen: list[BookieInfo] = []
    left = SEARCH_STEPS_MAX

    def fits(last: bool) -> bool:
        window = {info.rack for info in chosen[-copies:]}
        if len(chosen) >= copies and len(window) < 2:
            return False
        return not last or all(
            len({chosen[slot].rack for slot in slots}) > 1
            for slots in write_sets(size, write_quorum)
        )

    def search() -> bool:
        nonlocal left
        if len(chosen) == size:
            return True
        tried: set[str] = set()
        for info in order:
            if info in chosen or info.rack in tried:
                continue  # one bookie of a rack is as good as the next
            tried.add(info.rack)
            left -= 1
            chosen.append(info)
            if left > 0 and fits(len(chosen) == size) and search():
                return True
            chosen.pop()
        return False

    return chosen if search() else _alternating(order, size)


def _alternating(order: list[BookieInfo], size: int) -> list[BookieInfo]:
    """As spread as it goes: each on another rack than the one before, where there is one left."""
    rest, chosen = list(order), list[BookieInfo]()
    while len(chosen) < size:
        before = chosen[-1].rack if chosen else None
        chosen.append(next((info for info in rest if info.rack != before), rest[0]))
        rest.remove(chosen[-1])
    return chosen


def _narrow_sets(
    members: Sequence[BookieIdentity | None],
    slot: int,
    candidate: BookieIdentity,
    racks: Mapping[BookieIdentity, str],
    write_quorum: int,
) -> int:
    """How many write sets have all their bookies on one rack, with the candidate at `slot`."""
    known = [None if one is None else racks.get(one) for one in members]
    known[slot] = racks.get(candidate)
    return sum(
        len({rack for number in slots if (rack := known[number]) is not None}) < 2
        for slots in write_sets(len(known), write_quorum)
    )
