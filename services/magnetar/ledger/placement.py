"""Chooses the bookies of a ledger. Pure: the caller passes the source of randomness.

Bookies are drawn at random, weighted by free disk (Efraimidis and Spirakis), so that a new bookie
gets its fair share from the next ledger on, and a fuller one less. Read-only, draining and excluded
bookies are never chosen; bookies in quarantine only if the rest do not suffice.

If there are two regions or more (racks are `/region/rack`), each write set spans at least two if
any order of the bookies allows it; if none does, or there is one region, the same for racks.
SEARCH_STEPS_MAX bounds each search.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log
from random import Random
from typing import Final

from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.registration import RACK_DEFAULT
from magnetar.ledger.bookies import BookieInfo
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.quorum import write_sets

SEARCH_STEPS_MAX: Final = 2000
FREE_RATIO_MIN: Final = 0.01
"""The weight of a full disk: it is writable, so it may be drawn, but rarely."""
EXCLUDED_NAMED_MAX: Final = 16
REGION_DEFAULT: Final = RACK_DEFAULT.split("/")[1]

Excluded = Mapping[BookieIdentity, str]
"""Bookies that must not be chosen, with the reasons."""

_NONE: Final[Excluded] = {}

Site = Callable[[str], str]
"""Returns what a rack's name says of the place, as far as copies are to be apart."""


def _region(rack: str) -> str:
    """Returns the region of `/region/rack`; the default one for a name of one part."""
    parts = rack.strip("/").split("/")
    return parts[0] if len(parts) > 1 else REGION_DEFAULT


def _rack(rack: str) -> str:
    return rack


SITES: Final[tuple[Site, ...]] = (_region, _rack)
"""What write sets are to span, the most important first."""


def choose_ensemble(
    bookies: Sequence[BookieInfo],
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    rng: Random,
    excluded: Excluded = _NONE,
) -> tuple[BookieIdentity, ...]:
    """Returns `ensemble_size` bookies, or fewer if fewer are healthy.

    At least the write quorum if that many exist; raises NotEnoughBookies below the ack quorum.
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
    excluded: Excluded = _NONE,
) -> tuple[BookieIdentity | None, ...]:
    """Returns the ensemble with each None replaced, as far as bookies are available."""
    racks = {info.identity: info.rack for info in bookies}
    members: list[BookieIdentity | None] = list(ensemble)
    members_ids = {member.bookie_id for member in members if member is not None}
    able = [info for info in _able(bookies, excluded) if info.identity.bookie_id not in members_ids]
    order = _drawn(able, len(able), rng)
    for slot, member in enumerate(members):
        if member is not None or not order:
            continue
        best = min(
            order,
            key=lambda info: (
                info.quarantined,
                *_narrow_sets(members, slot, info.identity, racks, write_quorum),
            ),
        )
        members[slot] = best.identity
        order.remove(best)
    return tuple(members)


def not_enough(
    needed: int, bookies: Sequence[BookieInfo], excluded: Excluded = _NONE
) -> NotEnoughBookies:
    """Returns the error that names the excluded bookies with the reasons."""
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
    """Returns the bookies that may be chosen."""
    return [info for info in bookies if not _reason(info, excluded)]


def _drawn(bookies: Sequence[BookieInfo], size: int, rng: Random) -> list[BookieInfo]:
    """Returns the bookies in drawing order; those in quarantine come last, or not at all if not
    needed."""
    healthy = [info for info in bookies if not info.quarantined]
    if len(healthy) >= size:
        bookies = healthy
    keyed = [
        (info.quarantined, -log(1.0 - rng.random()) / max(info.disk_free_ratio, FREE_RATIO_MIN))
        for info in bookies
    ]
    return [bookies[i] for i in sorted(range(len(bookies)), key=keyed.__getitem__)]


def _spread(order: list[BookieInfo], size: int, write_quorum: int) -> list[BookieInfo]:
    """Returns `size` bookies, early ones preferred, such that each write set spans two sites."""
    if min(write_quorum, size) < 2:
        return order[:size]
    several = [site for site in SITES if len({site(info.rack) for info in order}) > 1]
    for site in several:
        if chosen := _spanning(order, size, write_quorum, site):
            return chosen
    return _alternating(order, size) if several else order[:size]


def _spanning(
    order: list[BookieInfo], size: int, write_quorum: int, site: Site
) -> list[BookieInfo] | None:
    """Returns `size` bookies whose write sets span two sites, None if none were found.

    Bookies on racks that are not in use yet come first, since a site may have several.
    """
    copies = min(write_quorum, size)
    chosen: list[BookieInfo] = []
    left = SEARCH_STEPS_MAX

    def fits(last: bool) -> bool:
        window = {site(info.rack) for info in chosen[-copies:]}
        if len(chosen) >= copies and len(window) < 2:
            return False
        return not last or all(
            len({site(chosen[slot].rack) for slot in slots}) > 1
            for slots in write_sets(size, write_quorum)
        )

    def candidates() -> list[BookieInfo]:
        if site is _rack:
            return order
        used = {info.rack for info in chosen}
        return sorted(order, key=lambda info: info.rack in used)

    def search() -> bool:
        nonlocal left
        if len(chosen) == size:
            return True
        tried: set[str] = set()
        for info in candidates():
            if info in chosen or site(info.rack) in tried:
                continue  # one bookie of a site is as good as the next
            tried.add(site(info.rack))
            left -= 1
            chosen.append(info)
            if left > 0 and fits(len(chosen) == size) and search():
                return True
            chosen.pop()
        return False

    return chosen if search() else None


def _alternating(order: list[BookieInfo], size: int) -> list[BookieInfo]:
    """Returns `size` bookies, each on another rack than the previous one if possible."""
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
) -> tuple[int, ...]:
    """Counts the write sets that would lie on one site with the candidate at `slot`, by SITES."""
    places = [None if member is None else racks.get(member) for member in members]
    places[slot] = racks.get(candidate)
    sets = write_sets(len(places), write_quorum)
    return tuple(
        sum(
            len({site(rack) for number in slots if (rack := places[number]) is not None}) < 2
            for slots in sets
        )
        for site in SITES
    )
