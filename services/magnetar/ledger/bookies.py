"""The bookies that a ledger client can reach, and what it knows of each.

`BookieSet` is what the ledger protocol asks; `LocalBookies` answers for bookies of this process
(standalone, tests). The cluster's form follows the registrations in the metadata store.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.bookie.api import Bookie, BookieError, BookieIdentity
from magnetar.bookie.registration import RACK_DEFAULT


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """A living bookie, as placement sees it."""

    identity: BookieIdentity
    rack: str = RACK_DEFAULT
    writable: bool = True
    draining: bool = False
    quarantined: bool = False
    disk_free_ratio: float = 1.0
    """Free part of its disks, 0 to 1."""


BookieLost = Callable[[BookieIdentity], None]


class BookieSet(Protocol):
    """See the module's text."""

    def get(self, identity: BookieIdentity) -> Bookie | None:
        """This very incarnation of the bookie; None where nobody knows where it is now.

        What comes back may still fail with BookieUnavailable.
        """

    def living(self) -> Sequence[BookieInfo]:
        """Every registered bookie, ordered by id."""

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """A request to it failed or was late: too many such, and it is quarantined for a while."""

    def add_listener(self, on_lost: BookieLost) -> None:
        """`on_lost(identity)` is called when an incarnation has left or was replaced."""

    def remove_listener(self, on_lost: BookieLost) -> None: ...


class LocalBookies:
    """Bookies of this process: always reachable, never quarantined."""

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
        """They are in this process: there is nothing to choose between."""

    def add_listener(self, on_lost: BookieLost) -> None:
        """They leave with the process."""

    def remove_listener(self, on_lost: BookieLost) -> None:
        """See `add_listener`."""
