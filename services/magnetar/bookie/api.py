"""The interface of a bookie to ledger writers and readers, in this process or over TCP.

Adds come in groups of one ledger, as read from a producer's socket: a group costs one journal
record, one completion and one wake-up, independent of its number of entries. Completions run on the
event loop's thread, per ledger in the order of the adds. `None` means that the journal has synced
the group: the caller may confirm it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from magnetar.core.errors import PersistenceError

ID_END: Final = 2**63 - 1
"""Ids of ledgers and entries are from 0 to below this, so that the next id is an i64 too."""

OnAdded = Callable[["BookieError | None"], None]


class BookieIdentity(NamedTuple):
    """A bookie's name and its incarnation, which is drawn when its disks are formatted.

    An empty disk under an old name is another incarnation, and therefore another bookie.
    """

    bookie_id: str
    incarnation: str


class BookieError(PersistenceError):
    """A bookie refused or failed a request."""


class LedgerFenced(BookieError):
    """A recovering reader has fenced the ledger: its writer must stop."""


class BookieUnavailable(BookieError):
    """The bookie is unreachable or late: the request may or may not have taken effect."""


class BookieLate(BookieUnavailable):
    """The bookie is connected, but did not answer in time."""


class BookieReadOnly(BookieError):
    """The disk is full or failing: the bookie refuses adds and serves reads."""


class NotPermitted(BookieError):
    """The client's role may only read."""


class NoSuchEntry(BookieError):
    """The bookie is certain that it never had the entry."""


class NoSuchLedger(BookieError):
    """The bookie is certain that it never had the ledger, or that the ledger was deleted."""


class EntryUnknown(BookieError):
    """The bookie lost state: it cannot know whether it had the entry."""


class EntryCorrupt(BookieError):
    """The entry's bytes at `offset` of `path` fail their CRC. They are never returned."""

    def __init__(self, message: str, path: str, offset: int) -> None:
        super().__init__(message)
        self.path, self.offset = path, offset


class StoredEntry(NamedTuple):
    """An entry as a bookie returns it."""

    entry_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The end of a ledger as one bookie knows it; an id of -1 means none.

    `length_bytes` is the size of the entries on this bookie. It is -1 if the bookie would have to
    read them all; a recovery then reads them to compute it.
    """

    last_add_confirmed: int
    last_entry: int
    fenced: bool
    length_bytes: int = -1


class ProofKind(StrEnum):
    """The result of reading an entry to prove that the bookie has it."""

    PRESENT = "present"
    CORRUPT = "corrupt"
    UNKNOWN = "unknown"


class EntryProof(NamedTuple):
    """The result for one entry; `length_bytes` and `crc` are valid if PRESENT."""

    entry_id: int
    kind: ProofKind
    length_bytes: int = 0
    crc: int = 0
    """CRC-32C of the entry's bytes."""


class EntryProofs(NamedTuple):
    """Proofs of the entries from `first` to before `next_entry`; absent entries have none."""

    proofs: list[EntryProof]
    next_entry: int


class Bookie(Protocol):
    """One storage node."""

    @property
    def identity(self) -> BookieIdentity: ...

    @property
    def writable(self) -> bool: ...

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        last_add_confirmed: int,
        on_added: OnAdded,
        recovery: bool = False,
    ) -> None:
        """Stores the group durably and calls `on_added(None)`, or `on_added` with the error.

        `entry_ids` ascend (mostly a `range`). An entry that exists is overwritten by the same bytes
        (re-replication is idempotent). A fenced ledger accepts `recovery` adds only.
        """

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        """Returns the entries from `first` to `last` (inclusive) that exist, ascending: at least
        one.

        Stops before `bytes_max` is exceeded, but after the first entry at the earliest. Raises
        NoSuchEntry, NoSuchLedger, EntryUnknown or EntryCorrupt for the first entry. With `fence`,
        which a recovery sets (BookKeeper #2616), the bookie durably refuses the ledger's writer
        before it answers, also before it answers NoSuchEntry.
        """

    async def prove_entries(
        self, ledger_id: int, first: int, last: int, *, count_max: int
    ) -> EntryProofs:
        """Reads the entries from `first` to `last` (inclusive) to prove them; returns no data.

        Covers at most `count_max` ids, and at least one. Raises NoSuchLedger, or EntryUnknown if
        the bookie cannot know whether it had the ledger.
        """

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        """Returns the ledger's end; with `fence`, durably refuses its writer first.

        A fence of an unknown ledger is kept, so that a late add is refused.
        """

    async def note_confirmed(self, confirmed: Sequence[tuple[int, int]]) -> None:
        """Records last confirmed entries (ledger, entry) of idle writers (explicit LAC).

        Adds carry the same value. It may be above all entries on this bookie, and only ever raises
        the recorded one. Absent, deleted and fenced ledgers are skipped. Kept in memory and written
        with the next flush: a crash may lose it, which is harmless.
        """

    async def delete_ledger(self, ledger_id: int) -> None:
        """Deletes the ledger durably; collections free its bytes later. Idempotent."""

    async def list_ledgers(self) -> list[int]:
        """Returns the ids of all ledgers on this bookie, ascending."""

    async def close(self) -> None:
        """Completes the pending adds, checkpoints, and releases the disks."""


class KeptBookie(Bookie, Protocol):
    """A bookie with the operations that only its own process uses."""

    async def drop_copies(self, ledger_ids: Sequence[int]) -> list[int]:
        """Drops the copies of closed ledgers that other bookies hold; returns the dropped ids.

        Unlike after `delete_ledger`, a ledger may come back: its fence stays, so that its writer is
        refused, and a `recovery` add is accepted. Until then the ledger counts as absent: it is not
        listed, and reads raise NoSuchLedger. After a failed drop, reads of absent entries raise
        EntryUnknown. Ledgers that are absent or have adds under way are skipped.
        """

    async def list_emptied(self) -> list[int]:
        """Returns the ids of the ledgers that `drop_copies` emptied and that got no add since."""
