"""A bookie's records in the metadata store.

`/bookies/{id}` is under the lease of a living bookie and names the incarnation of its disks.
`/bookies-known/{id}/{incarnation}` is permanent: it lists all disks that were ever in use, except
those that were replaced after a proof that no ledger needs them. `/bookies-draining/{id}` is
written to drain a bookie: while it exists, no new ledger uses the bookie, even after a restart.
"""

from typing import Final

import msgspec

from magnetar.bookie.api import BookieIdentity
from magnetar.metadata.records import RecordType

BOOKIES_PREFIX: Final = "/bookies/"
KNOWN_PREFIX: Final = "/bookies-known/"
DRAINING_PREFIX: Final = "/bookies-draining/"
RACK_DEFAULT: Final = "/default-region/default-rack"


class BookieRegistration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A living bookie: its identity, its address, and whether it takes adds."""

    bookie_id: str
    incarnation: str
    host: str
    port: int
    http_port: int = 0
    rack: str = RACK_DEFAULT
    """`/region/rack`, as in BookKeeper's placement policies."""
    writable: bool = True
    read_only_reason: str = ""
    version: str = ""
    started_ms: int = 0
    disk_bytes_total: int = 0
    disk_bytes_free: int = 0

    @property
    def identity(self) -> BookieIdentity:
        return BookieIdentity(self.bookie_id, self.incarnation)


decode = RecordType(BookieRegistration, "bookie's registration").decode


def registration_key(bookie_id: str) -> str:
    """Returns the key of a living bookie's registration."""
    return f"{BOOKIES_PREFIX}{bookie_id}"


def known_key(identity: BookieIdentity) -> str:
    """Returns the key of the record of disks that are or were in use."""
    return f"{KNOWN_PREFIX}{identity.bookie_id}/{identity.incarnation}"


def draining_key(bookie_id: str) -> str:
    """Returns the key that makes a bookie drain."""
    return f"{DRAINING_PREFIX}{bookie_id}"
