"""What a bookie says of itself in the metadata store, and where.

`/bookies/{id}` stands while the bookie lives (it is under the bookie's lease) and names the
incarnation of its disks. `/bookies-known/{id}/{incarnation}` stays: which disks there ever were,
but for those that were replaced after a proof that nothing is needed of them.
`/bookies-draining/{id}` is put there by whoever wants to empty a bookie: while it stands, no new
ledger goes to it, restarted or not.
"""

from typing import Final

import msgspec

from magnetar.bookie.api import BookieIdentity
from magnetar.core.errors import MetadataError

BOOKIES_PREFIX: Final = "/bookies/"
KNOWN_PREFIX: Final = "/bookies-known/"
DRAINING_PREFIX: Final = "/bookies-draining/"
RACK_DEFAULT: Final = "/default-region/default-rack"


class BookieRegistration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A living bookie: who it is, where it listens, and whether it takes adds."""

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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(BookieRegistration)


def registration_key(bookie_id: str) -> str:
    """Of the living bookie of this name."""
    return f"{BOOKIES_PREFIX}{bookie_id}"


def known_key(identity: BookieIdentity) -> str:
    """Of disks that are or were in use."""
    return f"{KNOWN_PREFIX}{identity.bookie_id}/{identity.incarnation}"


def draining_key(bookie_id: str) -> str:
    """Of a bookie that is to be emptied."""
    return f"{DRAINING_PREFIX}{bookie_id}"


def encode(registration: BookieRegistration) -> bytes:
    """The record's value."""
    return _encoder.encode(registration)


def decode(key: str, value: bytes) -> BookieRegistration:
    """Raises MetadataError naming the key where the value is no registration."""
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no bookie's registration: {error}") from error
