"""The one writer of an open ledger: the common part of its two forms, and how a ledger is closed.

Ids are assigned in order, and completions come in that order, group by group. Each group carries
the writer's last confirmed entry, so that bookies know a lower bound of what is confirmed
(last-add-confirmed). A failure of the writer is final: all pending and later groups fail with it,
because an entry must never follow a hole.

`close` closes the ledger at the last confirmed entry, by compare-and-swap. If a recovery was
faster, the writer is fenced. If autorecovery only replaced bookies of older entries meanwhile, the
swap is repeated over its record.

The forms are `SingleWriter` (one bookie; a standalone) and `replicated_writer.ReplicatedWriter`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.bookie.api import (
    Bookie,
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    StoredEntry,
)
from magnetar.core.errors import MagnetarError, MetadataError, PersistenceError
from magnetar.ledger.bookies import blames_bookie
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.copies_reader import CopiesReader
from magnetar.ledger.errors import LedgerClosed
from magnetar.ledger.metadata import NO_ENTRY, Ensemble, LedgerMetadata, LedgerState
from magnetar.ledger.records import RecordChanged, read_record, swap

OnAppended = Callable[[int, MagnetarError | None], None]

DRAIN_TIMEOUT_S: Final = 30.0
CLOSE_ATTEMPTS_MAX: Final = 16


class LedgerWriter(ABC):
    """Appends to one open ledger. All methods belong to the event loop's thread."""

    __slots__ = (
        "__weakref__",
        "_context",
        "_drained",
        "_error",
        "_moved",
        "_next_entry",
        "_reader",
        "_revision",
        "lac_watched",
        "last_add_confirmed",
        "ledger_id",
        "length_bytes",
        "metadata",
    )

    def __init__(self, metadata: LedgerMetadata, revision: int, context: LedgerContext) -> None:
        self.metadata = metadata
        self.ledger_id = metadata.ledger_id
        self.last_add_confirmed = NO_ENTRY
        self.lac_watched = False
        """Whether `ExplicitLac` watches the writer; set so that it is called once per pause."""
        self.length_bytes = 0
        self._revision = revision
        self._context = context
        self._next_entry = 0
        self._error: MagnetarError | None = None
        self._drained: asyncio.Future[None] | None = None
        self._reader: CopiesReader | None = None
        self._moved: tuple[LedgerMetadata, LedgerMetadata] | None = None
        """The record as this writer knew it when a read failed, and as it was found then."""

    @property
    def revision(self) -> int:
        """The revision of the record's last write; at first, that of its creation."""
        return self._revision

    @property
    def next_entry(self) -> int:
        """The id of the next appended entry."""
        return self._next_entry

    @property
    def error(self) -> MagnetarError | None:
        """The error that ended the writer; None while it appends."""
        return self._error

    @property
    def at_rest(self) -> bool:
        """Whether all appended entries are confirmed, and every bookie has its copies."""
        return self._error is None and self._settled()

    @property
    def left_open(self) -> bool:
        """Whether the writer has failed and its ledger is not closed."""
        ended = self.metadata.state is LedgerState.CLOSED
        return not ended and not isinstance(self._error, LedgerClosed | LedgerFenced | None)

    @property
    @abstractmethod
    def bookies(self) -> Sequence[BookieIdentity]:
        """The bookies that appended entries are sent to."""

    @property
    def degraded(self) -> bool:
        """Whether entries are confirmed with fewer copies than wanted, for lack of bookies."""
        return len(self.bookies) < self.metadata.write_quorum

    @abstractmethod
    def append(self, entries: list[bytes], on_appended: OnAppended) -> int:
        """Appends a group of one or more; calls `on_appended(first id, None)` once all are
        confirmed.

        On failure it calls `on_appended(-1, error)`. Never calls back from inside the call. Returns
        the group's size in bytes.
        """

    @abstractmethod
    def fail(self, error: MagnetarError) -> None:
        """Fails pending and later groups, as a failed add does. The first error counts.

        Pending entries may be stored; `close` closes the ledger below them.
        """

    @abstractmethod
    def bookie_lost(self, identity: BookieIdentity) -> None:
        """A bookie was deregistered, or its disks were replaced."""

    @abstractmethod
    def grow(self) -> None:
        """Adds a bookie if the ensemble is too small and one is available."""

    @abstractmethod
    def _settled(self) -> bool:
        """Whether nothing is under way that `close` must wait for."""

    @abstractmethod
    async def _quiesce(self) -> None:
        """Stops the ensemble change: from here on only `close` writes the record."""

    def _final_ensembles(self, ensembles: tuple[Ensemble, ...]) -> tuple[Ensemble, ...]:
        """Returns the ensembles of the closed ledger, given those on record."""
        return ensembles

    def _wake_closer(self) -> None:
        if self._drained is not None and not self._drained.done() and self._settled():
            self._drained.set_result(None)

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[StoredEntry]:
        """Reads confirmed entries, as `LedgerReader.read` does."""
        if not 0 <= first <= self.last_add_confirmed:
            raise NoSuchEntry(
                f"entry {first} of ledger {self.ledger_id} is outside 0..{self.last_add_confirmed}"
            )
        if self._reader is None:
            self._reader = CopiesReader(self._context)
        last = min(last, self.last_add_confirmed)
        own, recorded = self._moved or (None, None)
        metadata = recorded if recorded is not None and own is self.metadata else self.metadata
        try:
            return await self._reader.read(metadata, first, last, bytes_max=bytes_max)
        except BookieError as failure:
            # Autorecovery may have moved older entries. The record read here serves reads only:
            # the writer keeps its own for its next swap, which detects such a change.
            moved = await self._read_record()
            if moved is None or moved.ensembles == metadata.ensembles:
                raise failure from None
        self._moved = self.metadata, moved
        return await self._reader.read(moved, first, last, bytes_max=bytes_max)

    async def _read_record(self) -> LedgerMetadata | None:
        try:
            return (await read_record(self._context, self.ledger_id))[0]
        except (MetadataError, NoSuchLedger):
            return None

    async def close(self) -> LedgerMetadata:
        """Waits for pending groups, then closes the ledger at its last confirmed entry.

        Idempotent. Raises LedgerFenced if a recovery closed it first, and MetadataUnavailable if
        the outcome is unknown; then call it again.
        """
        if self.metadata.state is LedgerState.CLOSED:
            return self.metadata
        await self._drain()
        await self._quiesce()
        if self._error is None:
            self.fail(LedgerClosed(f"ledger {self.ledger_id} is closed"))
        if isinstance(self._error, LedgerFenced):
            raise self._error
        current, revision = self.metadata, self._revision
        closed_ms = self._context.clock.now_ms()
        for _ in range(CLOSE_ATTEMPTS_MAX):
            ending = current.with_ensembles(self._final_ensembles(current.ensembles))
            closed = ending.closed(self.last_add_confirmed, self.length_bytes, closed_ms)
            try:
                revision = await swap(self._context, closed, revision)
            except NoSuchLedger:
                raise self._fenced() from None
            except RecordChanged as changed:
                current, revision = changed.metadata, changed.revision
                if current.state is LedgerState.CLOSED:
                    # A recovery with the same end did the work of this call; another end fences.
                    if current.last_entry != self.last_add_confirmed:
                        raise self._fenced() from None
                    closed = current
                elif current.state is LedgerState.IN_RECOVERY:
                    raise self._fenced() from None
                else:
                    continue  # autorecovery replaced bookies of older entries: still our ledger
            # Only now: a repeated call must not overwrite a record of another owner.
            self.metadata, self._revision = closed, revision
            return closed
        raise PersistenceError(
            f"ledger {self.ledger_id} changed {CLOSE_ATTEMPTS_MAX} times while it was closed"
        )

    async def _drain(self) -> None:
        if self._settled():
            return
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await asyncio.shield(self._drained)
        except TimeoutError:
            self.fail(
                PersistenceError(
                    f"ledger {self.ledger_id}: adds were not confirmed within {DRAIN_TIMEOUT_S:g} s"
                )
            )

    def _fenced(self) -> LedgerFenced:
        fenced = LedgerFenced(f"ledger {self.ledger_id} was ended by another owner")
        self._error = fenced
        return fenced


class SingleWriter(LedgerWriter):
    """Writes a ledger to one bookie, which no other can replace: its first failure is final."""

    __slots__ = ("_bookie", "_pending")

    def __init__(
        self, metadata: LedgerMetadata, revision: int, bookie: Bookie, context: LedgerContext
    ) -> None:
        super().__init__(metadata, revision, context)
        self._bookie = bookie
        self._pending: deque[tuple[int, int, int, OnAppended]] = deque()

    @property
    def bookies(self) -> Sequence[BookieIdentity]:
        return (self._bookie.identity,)

    def append(self, entries: list[bytes], on_appended: OnAppended) -> int:
        """See `LedgerWriter.append`."""
        size = sum(map(len, entries))
        if self._error is not None:
            asyncio.get_running_loop().call_soon(on_appended, NO_ENTRY, self._error)
            return size
        first = self._next_entry
        self._next_entry = end = first + len(entries)
        self._pending.append((first, end - 1, size, on_appended))
        self._bookie.add_entries(
            self.ledger_id,
            range(first, end),
            entries,
            last_add_confirmed=self.last_add_confirmed,
            on_added=self._on_added,
        )
        return size

    def _on_added(self, error: BookieError | None) -> None:
        if self._error is not None:
            return  # the pending groups have failed already
        if error is not None:
            if blames_bookie(error):
                self._context.bookies.failed(self._bookie.identity, error)
            self.fail(error)
            return
        first, last, size, on_appended = self._pending.popleft()
        self.last_add_confirmed = last
        self.length_bytes += size
        on_appended(first, None)
        if not self.lac_watched:
            self._context.explicit_lac.watch(self)
        if self._drained is not None and not self._pending:
            self._wake_closer()

    def fail(self, error: MagnetarError) -> None:
        """See `LedgerWriter.fail`."""
        if self._error is not None:
            return
        self._error = error
        pending, self._pending = self._pending, deque()
        for _, _, _, on_appended in pending:
            on_appended(NO_ENTRY, error)
        self._wake_closer()

    def bookie_lost(self, identity: BookieIdentity) -> None:
        """See `LedgerWriter.bookie_lost`."""
        if identity == self._bookie.identity:
            self.fail(BookieUnavailable(f"bookie {identity.bookie_id} has left"))

    def grow(self) -> None:
        """Does nothing: the ledger has all its copies."""

    async def _quiesce(self) -> None:
        """Does nothing: there is no ensemble change."""

    def _settled(self) -> bool:
        return not self._pending
