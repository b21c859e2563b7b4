"""What clients asked of the bookie and what it answered, and what it may answer from then on."""

from copy import copy
from dataclasses import dataclass, field
from random import Random
from typing import Final

from google_crc32c import value

from magnetar.bookie.api import (
    BookieError,
    EntryCorrupt,
    EntryProof,
    EntryUnknown,
    NoSuchEntry,
    NoSuchLedger,
    ProofKind,
    StoredEntry,
)

POOL_BYTES: Final = 1 << 17
SIZES: Final = (1, 60, 500, 512, 4_000, 12_000, 40_000)

Key = tuple[int, int]
"""A ledger and an entry."""


class Violation(AssertionError):
    """The bookie broke a promise."""


@dataclass
class Told:
    """One seed's history. An entry's bytes follow from the seed and its ids."""

    seed: int
    tried: set[Key] = field(default_factory=set)
    acked: set[Key] = field(default_factory=set)
    refused: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    next_entry: dict[int, int] = field(default_factory=dict)
    fencing: set[int] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    deleting: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    lossy: bool = False
    """Whether what is on the disk was damaged, so that errors are right answers."""
    lying: bool = False
    """Whether reads fail now."""
    index_failing: bool = False
    """Whether changes of the index fail in this life, so that it may be closed."""

    def __post_init__(self) -> None:
        self._pool = Random(self.seed).randbytes(2 * POOL_BYTES)

    def entry(self, ledger_id: int, entry_id: int) -> bytes:
        """The bytes of an entry."""
        mixed = (ledger_id * 1_000_003 + entry_id * 7919 + self.seed) & 0xFFFFFFFF
        size = SIZES[mixed % len(SIZES)]
        start = mixed % POOL_BYTES
        return b"%d/%d/%d/" % (self.seed, ledger_id, entry_id) + self._pool[start : start + size]

    def added(self, ledger_id: int, ids: tuple[int, ...]) -> None:
        """The bookie gave its receipt."""
        self.acked.update((ledger_id, entry_id) for entry_id in ids)

    def as_of_now(self) -> "Told":
        """The history for a read that is sent now: later receipts do not bind its answer.

        An entry may be stored, or a ledger deleted, between the read and the check of its answer.
        """
        past = copy(self)
        past.acked, past.deleted = set(self.acked), set(self.deleted)
        return past

    def absent_is_right(self, key: Key) -> bool:
        """Whether "there is no such entry" is a right answer."""
        return key not in self.acked or key[0] in self.deleting

    def check_entries(self, ledger_id: int, first: int, found: list[StoredEntry]) -> None:
        """What a read returned."""
        due = first
        for entry_id, data in found:
            for absent in range(due, entry_id):
                if not self.absent_is_right((ledger_id, absent)):
                    raise Violation(f"acknowledged, and passed over: {ledger_id}:{absent}")
            if entry_id < due:
                raise Violation(f"ledger {ledger_id}: entry {entry_id} where {due} is due")
            due = entry_id + 1
            if (ledger_id, entry_id) not in self.tried or data != self.entry(ledger_id, entry_id):
                raise Violation(
                    f"wrong bytes: ledger {ledger_id} entry {entry_id}: {bytes(data[:60])!r}"
                )
            if ledger_id in self.deleted and not self.lossy:
                raise Violation(f"deleted ledger {ledger_id} is served")

    def check_read_error(self, key: Key, error: BookieError) -> None:
        """What a read of an entry was refused with."""
        absent = isinstance(error, NoSuchEntry | NoSuchLedger)
        if absent and self.absent_is_right(key):
            return
        if absent:
            raise Violation(f"acknowledged, and now: {error}")
        doubtful = isinstance(error, EntryCorrupt | EntryUnknown)
        if self.index_failing and isinstance(error, EntryCorrupt) and "/index: " in str(error):
            return  # it names the index, which a failed write has closed
        if doubtful and not (self.lossy or self.lying):
            raise Violation(f"nothing was damaged on the disk, and yet: {error!r}")

    def check_proof(self, ledger_id: int, proof: EntryProof) -> None:
        """What a proof of an entry said."""
        if proof.kind is not ProofKind.PRESENT:
            if not (self.lossy or self.lying):
                raise Violation(f"nothing was damaged, and yet: ledger {ledger_id} {proof}")
            return
        entry = self.entry(ledger_id, proof.entry_id)
        tried = (ledger_id, proof.entry_id) in self.tried
        if not tried or (proof.length_bytes, proof.crc) != (len(entry), value(entry)):
            raise Violation(f"a wrong proof: ledger {ledger_id} {proof}")
