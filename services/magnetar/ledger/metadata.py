"""A ledger's record in the metadata store: where its entries are, and whether it may still grow.

`/ledgers/{id}` holds the ledger, `/ledger-id` the last id given out. Both are written by one
transaction, so ids only grow, whoever creates ledgers. A ledger is OPEN while its writer lives;
IN_RECOVERY from the moment a reader decided to end it; CLOSED for good, with its last entry and
length. Every step is a compare-and-swap on the record, so that of a writer that closes and readers
that recover exactly one decides where the ledger ends.

Which bookies hold which entries follows from the record alone (`ledger.quorum`). An ensemble may
have fewer bookies than `ensemble_size`, where there were no more; one with fewer than
`write_quorum` lacks copies until it is put right.
"""

from enum import StrEnum
from typing import Final

import msgspec

from magnetar.bookie.api import BookieIdentity
from magnetar.core.errors import MetadataError

LEDGER_ID_KEY: Final = "/ledger-id"
LEDGERS_PREFIX: Final = "/ledgers/"
NO_ENTRY: Final = -1


class LedgerState(StrEnum):
    """Where a ledger is in its life; it only moves down this list."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


class Ensemble(msgspec.Struct, frozen=True):
    """The bookies that hold the entries from `first_entry` to the next ensemble's first."""

    first_entry: int
    bookies: tuple[BookieIdentity, ...]


class LedgerMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ledger. `last_entry` and `length_bytes` count once it is CLOSED.

    `ensemble_size` and `write_quorum` are what was wanted; `len(ensembles[i].bookies)` is what
    there is. `nonce` tells its creation from every other. The entries below `counted_entries` have
    `counted_bytes` together.
    """

    ledger_id: int
    ensembles: tuple[Ensemble, ...]
    created_ms: int
    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    stripe_entries: int = 1
    state: LedgerState = LedgerState.OPEN
    last_entry: int = NO_ENTRY
    length_bytes: int = 0
    closed_ms: int = 0
    properties: dict[str, str] = {}
    nonce: str = ""
    counted_entries: int = 0
    counted_bytes: int = 0

    def with_ensembles(self, ensembles: tuple[Ensemble, ...]) -> "LedgerMetadata":
        """This ledger, with other ensembles."""
        return msgspec.structs.replace(self, ensembles=ensembles)

    def counted(self, entries: int, size_bytes: int) -> "LedgerMetadata":
        """This ledger, with the length of its first entries on record."""
        if entries <= self.counted_entries:
            return self
        return msgspec.structs.replace(self, counted_entries=entries, counted_bytes=size_bytes)

    def closed(self, last_entry: int, length_bytes: int, now_ms: int) -> "LedgerMetadata":
        """This ledger, ended at `last_entry`."""
        return msgspec.structs.replace(
            self,
            state=LedgerState.CLOSED,
            last_entry=last_entry,
            length_bytes=length_bytes,
            closed_ms=now_ms,
        )

    def in_recovery(self) -> "LedgerMetadata":
        """This ledger, with its writer's right to close it taken away."""
        return msgspec.structs.replace(self, state=LedgerState.IN_RECOVERY)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LedgerMetadata)


def ledger_key(ledger_id: int) -> str:
    """The record's key; zero-padded, so that key order is id order."""
    return f"{LEDGERS_PREFIX}{ledger_id:020d}"


def encode(metadata: LedgerMetadata) -> bytes:
    """The record's value."""
    return _encoder.encode(metadata)


def decode(key: str, value: bytes) -> LedgerMetadata:
    """Raises MetadataError naming the key where the value is no ledger."""
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no ledger: {error}") from error
