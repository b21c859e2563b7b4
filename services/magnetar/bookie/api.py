"""What a ledger writer or reader asks of a bookie, whether in this process or over TCP.

Adds come in groups of one ledger, as they were read from a producer's socket: a group costs one
journal record, one completion and one wake-up, however many entries are in it. Completions are
called on the event loop's thread, in the order of the calls of one ledger, and only after the
journal was fsynced: whoever gets `None` may tell the world.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from magnetar.core.errors import PersistenceError

ID_END: Final = 2**63 - 1
"""Ids of ledgers and entries are from 0 to below this, so that the one behind is a number too."""

OnAdded = Callable[["BookieError | None"], None]


class BookieIdentity(NamedTuple):
    """A bookie's name, and which life of it: drawn when its disks were formatted.

    An empty disk under an old name is another incarnation, so another bookie.
    """

    bookie_id: str
    incarnation: str


class BookieError(PersistenceError):
    """A bookie refused or failed a request."""


class LedgerFenced(BookieError):
    """The ledger was fenced by a recovering reader: its writer must stop."""


class BookieUnavailable(BookieError):
    """The bookie did not answer in time or cannot be reached: what was asked may have happened."""


class BookieLate(BookieUnavailable):
    """The bookie is there, but did not answer in time."""


class BookieReadOnly(BookieError):
    """The disk is full or failing: no adds, reads go on."""


class NoSuchEntry(BookieError):
    """This bookie is certain that it never had the entry."""


class NoSuchLedger(BookieError):
    """This bookie is certain that it never had the ledger, or that it was deleted."""


class EntryUnknown(BookieError):
    """This bookie lost state: it cannot know whether it had the entry."""


class EntryCorrupt(BookieError):
    """The entry's bytes on disk fail their CRC: `path` and `offset` say where. Never served."""

    def __init__(self, message: str, path: str, offset: int) -> None:
        super().__init__(message)
        self.path, self.offset = path, offset


class StoredEntry(NamedTuple):
    """An entry as a bookie returns it."""

    entry_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """What a bookie knows of a ledger's end: ids are -1 where there is none.

    `length_bytes` is the size of the entries that are here, or -1 where that is not known without
    reading them: who recovers a ledger then reads them to learn it.
    """

    last_add_confirmed: int
    last_entry: int
    fenced: bool
    length_bytes: int = -1


class ProofKind(StrEnum):
    """What a bookie found where it read an entry to prove that it has it."""

    PRESENT = "present"
    CORRUPT = "corrupt"
    UNKNOWN = "unknown"


class EntryProof(NamedTuple):
    """What a bookie found when it read one entry from its disk; the last two count if PRESENT."""

    entry_id: int
    kind: ProofKind
    length_bytes: int = 0
    crc: int = 0
    """CRC-32C of the entry's bytes."""


class EntryProofs(NamedTuple):
    """The entries of `first` to `next_entry` (exclusive) that are here; ids left out are not."""

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
        """Stores the group durably, then calls `on_added(None)`; else with the error.

        `entry_ids` ascend (mostly a `range`). An entry that is there already is overwritten by
        the same bytes (re-replication is idempotent). A fenced ledger takes `recovery` adds only.
        """

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        """Entries `first` to `last` (inclusive) that are here, ascending, at least one.

        Stops before `bytes_max` is exceeded, but never before the first. Raises NoSuchEntry,
        NoSuchLedger, EntryUnknown or EntryCorrupt for the first. With `fence`, as a recovery reads
        (BookKeeper #2616), the ledger's writer is durably refused before anything is answered, the
        answer that there is no such entry included.
        """

    async def prove_entries(
        self, ledger_id: int, first: int, last: int, *, count_max: int
    ) -> EntryProofs:
        """Reads entries `first` to `last` (inclusive) to prove them, without sending them.

        Answers for at most `count_max` ids, and for at least one. Raises NoSuchLedger, or
        EntryUnknown where nothing at all can be said of the ledger.
        """

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        """What is known of the ledger's end; with `fence`, durably refuses its writer first.

        An unknown ledger that is fenced stays fenced, so that a late add cannot slip in.
        """

    async def note_confirmed(self, confirmed: Sequence[tuple[int, int]]) -> None:
        """Takes writers' word for it: (ledger, last confirmed entry), as adds carry it.

        An idle writer's (explicit LAC). It may be above all that is here; what is known of a
        ledger is raised by it, never lowered. Ledgers that are not here, deleted or fenced are
        passed over. Kept in memory and with the next flush: a crash may lose it, no more.
        """

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forgets the ledger durably; its bytes go with the next collections. Idempotent."""

    async def list_ledgers(self) -> list[int]:
        """The ids of all ledgers here, ascending."""

    async def close(self) -> None:
        """Finishes what was added, checkpoints, and releases the disks."""


class KeptBookie(Bookie, Protocol):
    """A bookie with what only its own process asks of it."""

    async def drop_copies(self, ledger_ids: Sequence[int]) -> list[int]:
        """Deletes the entries of closed ledgers that other bookies hold; the ids of those done.

        Unlike after `delete_ledger`, a ledger may come back: its fence stays, so its writer is
        refused, and a `recovery` add is taken. It counts as absent until then: it is not listed,
        and reads raise NoSuchLedger. After a drop that failed, reads of entries that are not found
        raise EntryUnknown. Ledgers that are not here, or are added to now, are left out.
        """

    async def list_emptied(self) -> list[int]:
        """The ids of the ledgers that `drop_copies` emptied, and nothing was added to since."""
