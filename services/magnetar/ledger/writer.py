"""The one writer of an open ledger.

Ids are given out in order and completions come in that order, group by group. Each group carries
the writer's last confirmed entry, so that bookies know a bound below which everything is confirmed
(last-add-confirmed). The first failure is final: every group that waits, and every later one, fails
with it, because a hole must never be followed by an entry. `close` then ends the ledger at the last
confirmed entry by compare-and-swap; if a recovering reader was faster the writer is fenced.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from magnetar.bookie.api import Bookie, BookieError, LedgerFenced, NoSuchEntry, StoredEntry
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.ledger.metadata import (
    NO_ENTRY,
    LedgerMetadata,
    LedgerState,
    decode,
    encode,
    ledger_key,
)
from magnetar.ledger.reader import read_contiguous
from magnetar.metadata.store import BadRevision, MetadataStore

OnAppended = Callable[[int, MagnetarError | None], None]

DRAIN_TIMEOUT_S: Final = 30.0


class LedgerClosed(PersistenceError):
    """The ledger was closed by its own writer."""


class LedgerWriter:
    """See the module's text. All methods belong to the event loop's thread."""

    __slots__ = (
        "_bookie",
        "_clock",
        "_drained",
        "_error",
        "_length_next",
        "_next_entry",
        "_pending",
        "_revision",
        "_store",
        "last_add_confirmed",
        "ledger_id",
        "length_bytes",
        "metadata",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        revision: int,
        store: MetadataStore,
        bookie: Bookie,
        clock: Clock,
    ) -> None:
        self.metadata = metadata
        self.ledger_id = metadata.ledger_id
        self.last_add_confirmed = NO_ENTRY
        self.length_bytes = 0
        self._revision = revision
        self._store = store
        self._bookie = bookie
        self._clock = clock
        self._next_entry = 0
        self._pending: deque[tuple[int, int, int, OnAppended]] = deque()
        self._error: MagnetarError | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def revision(self) -> int:
        """The revision that last wrote the ledger's record: at first, that of its creation."""
        return self._revision

    @property
    def next_entry(self) -> int:
        """The id that the next appended entry gets."""
        return self._next_entry

    @property
    def error(self) -> MagnetarError | None:
        """Why nothing more can be appended, once that is so."""
        return self._error

    def append(self, entries: list[bytes], on_appended: OnAppended) -> int:
        """Appends a group of one or more; `on_appended(first id, None)` once all are durable.

        On failure it is called with (-1, the error). Never calls back from inside the call.
        Returns the group's size in bytes.
        """
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
            return  # what was pending has been failed already
        if error is not None:
            self.fail(error)
            return
        first, last, size, on_appended = self._pending.popleft()
        self.last_add_confirmed = last
        self.length_bytes += size
        on_appended(first, None)
        if self._drained is not None and not self._pending:
            self._wake_closer()

    def fail(self, error: MagnetarError) -> None:
        """Fails what is pending and all that comes, as a failed add does. The first error counts.

        What was pending may be stored; `close` ends the ledger below it.
        """
        if self._error is not None:
            return
        self._error = error
        pending, self._pending = self._pending, deque()
        for _, _, _, on_appended in pending:
            on_appended(NO_ENTRY, error)
        self._wake_closer()

    def _wake_closer(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[StoredEntry]:
        """Reads back what is confirmed, as `LedgerReader.read` does."""
        if not 0 <= first <= self.last_add_confirmed:
            raise NoSuchEntry(
                f"entry {first} of ledger {self.ledger_id} is outside 0..{self.last_add_confirmed}"
            )
        last = min(last, self.last_add_confirmed)
        return await read_contiguous(self._bookie, self.ledger_id, first, last, bytes_max=bytes_max)

    async def close(self) -> LedgerMetadata:
        """Waits for what is pending, then ends the ledger at its last confirmed entry.

        Idempotent. Raises LedgerFenced where a recovering reader ended it first.
        """
        if self.metadata.state is LedgerState.CLOSED:
            return self.metadata
        await self._drain()
        if self._error is None:
            self._error = LedgerClosed(f"ledger {self.ledger_id} is closed")
        closed = self.metadata.closed(
            self.last_add_confirmed, self.length_bytes, self._clock.now_ms()
        )
        key = ledger_key(self.ledger_id)
        try:
            self._revision = await self._store.put(key, encode(closed), expected=self._revision)
        except BadRevision:
            record = await self._store.get(key)
            theirs = None if record is None else decode(key, record.value)
            ended = theirs is not None and theirs.state is LedgerState.CLOSED
            # A recovery that found the same end did our work; any other end is not ours to use.
            if theirs is None or not ended or theirs.last_entry != self.last_add_confirmed:
                raise self._fenced() from None
            closed = theirs
        self.metadata = closed
        return closed

    async def _drain(self) -> None:
        if not self._pending:
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
