"""Drains of bookies and the health of the ledgers, under `/admin/v2/magnetar`.

`Drain` is also the record that autorecovery keeps in the metadata store.
"""

from enum import StrEnum

import msgspec


class DrainState(StrEnum):
    """The progress of a drain."""

    REQUESTED = "requested"
    COPYING = "copying"
    PROVING = "proving"
    REMOVABLE = "removable"
    REFUSED = "refused"

    @property
    def ended(self) -> bool:
        """Whether autorecovery does no more work for this drain."""
        return self in (DrainState.REMOVABLE, DrainState.REFUSED)


class InTheWay(msgspec.Struct, frozen=True):
    """A ledger that still needs the bookie, and the reason."""

    ledger_id: int
    why: str = ""
    hopeless: bool = False
    """Autorecovery has given up on it until something changes."""


class Drain(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The drain of a bookie: the request and its progress."""

    bookie_id: str
    state: DrainState
    requested_ms: int = 0
    updated_ms: int = 0
    reason: str = ""
    """The author of the request and the reason, for people."""
    ledgers_total: int = 0
    """Ledgers that were on the bookie when the drain began, as far as is known."""
    ledgers_left: int = 0
    bytes_total: int = 0
    bytes_left: int = 0
    ledgers_open: int = 0
    """Ledgers of `ledgers_left` that are still written to."""
    ledgers_proven: int = 0
    refused: str = ""
    """Why the bookie cannot be removed, and what to do."""
    in_the_way: tuple[InTheWay, ...] = ()
    """The first ledgers that still need the bookie, the hopeless ones first."""
    proven_ms: int = 0
    """The time of the last successful proof."""
    incarnations: tuple[str, ...] = ()
    """The disks that were used under this bookie's name before that proof began. The proof covers
    all of them."""


class LedgerTrouble(msgspec.Struct, frozen=True, rename="camel"):
    """A ledger that lacks copies."""

    ledger_id: int
    state: str = ""
    why: str = ""


class LivingBookie(msgspec.Struct, frozen=True, rename="camel"):
    """A registered bookie."""

    bookie_id: str
    incarnation: str = ""
    writable: bool = True
    draining: bool = False
    incarnations_before: int = 0
    """Other disks that were in use under this name before."""
    disk_bytes_total: int = 0
    disk_bytes_free: int = 0


class LedgerHealth(msgspec.Struct, frozen=True, rename="camel"):
    """Whether every ledger has all its copies, for the bookies as they are now."""

    healthy: bool
    reason: str = ""
    """Why the ledgers are not healthy, for people."""
    under_replicated: int = 0
    """Ledgers that are listed as waiting or parked."""
    lost: int = 0
    """Ledgers with entries of which no copy is left."""
    ledgers: tuple[LedgerTrouble, ...] = ()
    """The first hundred."""
    audited_ms: int = 0
    audit_is_current: bool = False
    audited_by_somebody: bool = False
    bookies: tuple[LivingBookie, ...] = ()
    unreadable: int = 0
    """Ledger records that could not be read in the last audit, without those mended since."""
