"""Restricts a ledger to groups of bookies: the affinity of its namespace. Pure.

The affinity is in the properties of the ledger's record, from its creation on. So a change of its
ensemble, its recovery and autorecovery keep it, and a later change of the namespace's policy
concerns new ledgers only.

    the bookies of the primary groups, if enough of them take adds for the whole ensemble
    else those of the primary and the secondary groups
    never others: with too few, the ensemble is smaller, and below the ack quorum it is refused
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.bookies import BookieInfo

PRIMARY: Final = "magnetar.bookie-affinity.primary"
SECONDARY: Final = "magnetar.bookie-affinity.secondary"
"""The properties of a ledger's record: names of groups, separated by commas."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """The groups of bookies that may store a ledger."""

    primary: frozenset[str]
    secondary: frozenset[str] = frozenset()

    @property
    def properties(self) -> dict[str, str]:
        """The affinity as properties of a ledger's record."""
        written = {PRIMARY: _text(self.primary)}
        if self.secondary:
            written[SECONDARY] = _text(self.secondary)
        return written


def affinity(primary: str | None, secondary: str | None) -> Affinity | None:
    """Returns the affinity by the policy's texts, None without a primary group."""
    groups = _groups(primary)
    return Affinity(groups, _groups(secondary)) if groups else None


def affinity_of(properties: Mapping[str, str]) -> Affinity | None:
    """Returns the affinity of a ledger, None if any bookie may store it."""
    if PRIMARY not in properties:
        return None
    return affinity(properties[PRIMARY], properties.get(SECONDARY))


def excluding_others(
    bookies: Sequence[BookieInfo],
    of_ledger: Affinity | None,
    size: int,
    excluded: Mapping[BookieIdentity, str],
) -> Mapping[BookieIdentity, str]:
    """Returns `excluded` and all bookies that may not store the ledger, with the reasons.

    `size` is the number of bookies of the whole ensemble.
    """
    if of_ledger is None:
        return excluded
    able = sum(
        info.group in of_ledger.primary
        and info.writable
        and not info.draining
        and info.identity not in excluded
        for info in bookies
    )
    groups = of_ledger.primary if able >= size else of_ledger.primary | of_ledger.secondary
    reason = f"not in the bookie affinity group {_text(groups)}"
    others = {info.identity: reason for info in bookies if info.group not in groups}
    return {**others, **excluded}


def _groups(text: str | None) -> frozenset[str]:
    return frozenset(group for part in (text or "").split(",") if (group := part.strip()))


def _text(groups: Iterable[str]) -> str:
    return ",".join(sorted(groups))
