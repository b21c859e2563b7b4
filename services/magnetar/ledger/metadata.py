"""A ledger's record in the metadata store: its bookies, and whether it may still grow.

`/ledgers/{id}` holds the ledger, `/ledger-id` the last assigned id. One transaction writes both, so
ids only grow, regardless of the process that creates ledgers. A ledger is OPEN while its writer
lives, IN_RECOVERY once a process decided to end it, and CLOSED for good, with its last entry and
length. Every step is a compare-and-swap on the record, so exactly one of a closing writer and the
recoveries decides the ledger's end.

The record alone determines which bookies hold which entries (`ledger.quorum`). An ensemble may have
fewer bookies than `ensemble_size` if no more were available; one with fewer than `write_quorum`
lacks copies until autorecovery adds them.
"""

from enum import StrEnum
from typing import Final

import msgspec

from magnetar.bookie.api import BookieIdentity
from magnetar.metadata.records import RecordType

LEDGER_ID_KEY: Final = "/ledger-id"
LEDGERS_PREFIX: Final = "/ledgers/"
NO_ENTRY: Final = -1


class LedgerState(StrEnum):
    """The states of a ledger, in order; a ledger never moves up this list."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


class Ensemble(msgspec.Struct, frozen=True):
    """The bookies that hold the entries from `first_entry` to the next ensemble's first."""

    first_entry: int
    bookies: tuple[BookieIdentity, ...]


class LedgerMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of one ledger. `last_entry` and `length_bytes` are set once it is CLOSED.

    `ensemble_size` and `write_quorum` are the wanted sizes; `len(ensembles[i].bookies)` is the
    actual one. `nonce` distinguishes this creation from others with the same id. The entries below
    `counted_entries` have `counted_bytes` together.
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
        """Returns this record with other ensembles."""
        return msgspec.structs.replace(self, ensembles=ensembles)

    def counted(self, entries: int, size_bytes: int) -> "LedgerMetadata":
        """Returns this record with the length of its first entries."""
        if entries <= self.counted_entries:
            return self
        return msgspec.structs.replace(self, counted_entries=entries, counted_bytes=size_bytes)

    def closed(self, last_entry: int, length_bytes: int, now_ms: int) -> "LedgerMetadata":
        """Returns this record, closed at `last_entry`."""
        return msgspec.structs.replace(
            self,
            state=LedgerState.CLOSED,
            last_entry=last_entry,
            length_bytes=length_bytes,
            closed_ms=now_ms,
        )

    def in_recovery(self) -> "LedgerMetadata":
        """Returns this record, in recovery: its writer may not close it any more."""
        return msgspec.structs.replace(self, state=LedgerState.IN_RECOVERY)


decode = RecordType(LedgerMetadata, "ledger").decode


def ledger_key(ledger_id: int) -> str:
    """Returns the record's key; zero-padded, so key order is id order."""
    return f"{LEDGERS_PREFIX}{ledger_id:020d}"
