"""The bookies that a ledger client can reach, and their state.

The ledger protocol uses `BookieSet`. `LocalBookies` implements it for bookies of this process
(standalone, tests); `RegisteredBookies` follows the registrations in the metadata store.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.bookie.api import (
    Bookie,
    BookieError,
    BookieIdentity,
    EntryCorrupt,
    EntryUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
)
from magnetar.bookie.racks import GROUP_DEFAULT
from magnetar.bookie.registration import RACK_DEFAULT


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """A registered bookie, as placement sees it."""

    identity: BookieIdentity
    rack: str = RACK_DEFAULT
    writable: bool = True
    draining: bool = False
    quarantined: bool = False
    disk_free_ratio: float = 1.0
    """The free part of its disks, 0 to 1."""
    group: str = GROUP_DEFAULT
    """The group that the affinity of namespaces names."""


def blames_bookie(error: BookieError) -> bool:
    """Whether the error concerns the bookie: a working bookie refuses or lacks entries as well."""
    about_ledger = (LedgerFenced, NoSuchLedger, NoSuchEntry, EntryCorrupt, EntryUnknown)
    return not isinstance(error, about_ledger)


BookieLost = Callable[[BookieIdentity], None]


class BookieSet(Protocol):
    """The bookies of a cluster: lookup by identity, state, and reports of failures."""

    def get(self, identity: BookieIdentity) -> Bookie | None:
        """Returns the bookie of exactly this incarnation, or None if its address is unknown.

        Requests to a returned bookie may still fail with BookieUnavailable.
        """

    def living(self) -> Sequence[BookieInfo]:
        """Returns the registered bookies, ordered by id."""

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """Reports a request that failed or was late; repeated failures put the bookie in
        quarantine."""

    def add_listener(self, on_lost: BookieLost) -> None:
        """Calls `on_lost(identity)` after an incarnation was deregistered or replaced."""

    def remove_listener(self, on_lost: BookieLost) -> None:
        """Removes a listener of `add_listener`."""


class LocalBookies:
    """Bookies of this process: always reachable, never in quarantine."""

    def __init__(self, bookies: Iterable[Bookie]) -> None:
        self._bookies = {bookie.identity: bookie for bookie in bookies}

    def get(self, identity: BookieIdentity) -> Bookie | None:
        return self._bookies.get(identity)

    def living(self) -> Sequence[BookieInfo]:
        return [
            BookieInfo(identity, writable=bookie.writable)
            for identity, bookie in sorted(self._bookies.items())
        ]

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """Does nothing: a process has no other bookies to prefer."""

    def add_listener(self, on_lost: BookieLost) -> None:
        """Does nothing: the bookies live as long as the process."""

    def remove_listener(self, on_lost: BookieLost) -> None:
        """Does nothing."""
