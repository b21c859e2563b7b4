"""Replaces bookies of an open ledger, by compare-and-swap on its record.

A ledger has one change at a time. A change runs in rounds until nothing is left to change:

1. *Plan.* Other bookies replace the failed replicas; if there are none, the ensemble shrinks, down
   to the ack quorum. An ensemble with fewer bookies than the write quorum grows if a bookie exists.
2. *Switch.* The new ensemble is to hold all entries from F on: F is the first unconfirmed entry, or
   an earlier confirmed one that a failed replica never acknowledged. All these entries are still in
   memory; they go to the replicas that lack them, and so do later appends. Until the record is
   written, an ack counts only if its bookie is in the entry's write set by the old *and* the new
   ensemble: a recovery finds an ack quorum by either of them.
3. *Copy.* Confirmed entries from F on need an ack quorum in the new ensemble before it may be
   recorded: a recovery that finds the new record asks no other bookie.
4. *Swap.* If the record changed, it is read again. If it is not OPEN any more, the ledger is
   fenced. If autorecovery replaced bookies of older entries, the change keeps its ensembles and
   adds its own behind them. If the outcome of the swap is unknown, both records count as possible,
   and the next round starts from either; it never assumes the old record alone.

The same task occasionally records the ledger's length, so that recovery need not count it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar.bookie.api import Bookie, BookieIdentity, LedgerFenced, NoSuchLedger
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.core.log import get_logger
from magnetar.ledger.affinity import affinity_of, excluding_others
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.placement import Excluded, choose_more, not_enough
from magnetar.ledger.quorum import with_ensemble
from magnetar.ledger.records import RecordChanged, swap
from magnetar.ledger.replicas import Layout, Replica
from magnetar.metadata.store import MetadataUnavailable

Change = Callable[[LedgerMetadata], LedgerMetadata]

SWAPS_MAX: Final = 16
ROUNDS_MAX: Final = 64

log = get_logger("magnetar.ledger.ensemble")


class ChangingWriter(Protocol):
    """The writer whose ensemble changes: it owns the layouts and the pieces."""

    ledger_id: int
    metadata: LedgerMetadata
    last_add_confirmed: int
    length_bytes: int

    @property
    def revision(self) -> int: ...

    @property
    def error(self) -> MagnetarError | None: ...

    @property
    def layout(self) -> Layout:
        """The layout to which the writer sends entries."""

    @property
    def possible(self) -> tuple[Layout, ...]:
        """The layouts that the record may hold as its last ensemble; the first is on record."""

    @property
    def unconfirmed(self) -> bool:
        """Whether appended entries wait for their ack quorum."""

    @property
    def idle(self) -> bool:
        """Whether every bookie has acknowledged every entry sent to it."""

    @property
    def count_due(self) -> bool:
        """Whether the record should get a newer count of the ledger's bytes."""

    @property
    def first_unsafe(self) -> int:
        """The first entry that is unconfirmed, or that a failed replica never acknowledged."""

    def replica_of(self, bookie: Bookie) -> Replica:
        """Returns a new replica on the bookie."""

    def layout_of(self, first_entry: int, replicas: Sequence[Replica]) -> Layout:
        """Returns a layout of the replicas, from `first_entry` on."""

    def switch(self, layout: Layout) -> None:
        """Sends the layout's replicas the entries that they lack, and all later entries."""

    def copied(self) -> bool:
        """Whether all confirmed entries of the layout have an ack quorum in it."""

    def rewritten(self, metadata: LedgerMetadata, revision: int) -> None:
        """Takes over the record as it was written."""

    def recorded(self, layout: Layout) -> None:
        """Makes this layout, which is on record now, the only possible one."""

    def count_later(self) -> None:
        """Schedules the next count."""

    def fail(self, error: MagnetarError) -> None:
        """Fails the writer for good."""

    def settle(self) -> None:
        """Resumes a close that waits for the change to end."""


class EnsembleChange:
    """Replaces failed bookies of one writer's ledger, one change at a time."""

    __slots__ = ("_avoided", "_context", "_growing", "_task", "_waiting", "_writer")

    def __init__(self, writer: ChangingWriter, context: LedgerContext) -> None:
        self._writer = writer
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._growing = False
        self._avoided: dict[BookieIdentity, tuple[float, str]] = {}

    @property
    def running(self) -> bool:
        return self._task is not None

    def avoid(self, identity: BookieIdentity, reason: str) -> None:
        """Excludes a bookie that failed from replacements, for `avoid_s`."""
        until = self._context.clock.monotonic() + self._context.settings.avoid_s
        self._avoided[identity] = (until, reason)

    def start(self) -> None:
        """Starts a change, or wakes the running one."""
        if self._task is not None:
            self.wake()
            return
        self._task = self._context.tasks.start(self._run(), f"ensemble of {self._writer.ledger_id}")
        if self._task is None:
            self._writer.fail(PersistenceError("the process is stopping"))

    def start_growing(self) -> None:
        """Starts a change that adds a bookie, if one is available."""
        if self._task is None and self._filled() is not None:
            self._growing = True
            self.start()

    def wake(self) -> None:
        """Wakes a change that waits for acks or for a failure."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def stop(self) -> None:
        """Cancels the change; whether a swap landed is then unknown."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        writer = self._writer
        try:
            if writer.idle:
                async with self._context.gate:
                    await self._rounds()
            else:
                await self._rounds()
        except MagnetarError as error:
            log.warning(
                "writer failed; its topic continues in another ledger",
                ledger=writer.ledger_id,
                error=str(error),
            )
            self._task = None
            writer.fail(error)
        except Exception as error:
            log.exception("ensemble change failed", ledger=writer.ledger_id)
            self._task = None
            writer.fail(PersistenceError(f"ledger {writer.ledger_id}: {error!r}"))
        finally:
            self._task = None
            self._growing = False
            writer.settle()

    async def _rounds(self) -> None:
        writer = self._writer
        for attempt in range(ROUNDS_MAX):
            if writer.error is not None:
                return
            confirmed = writer.last_add_confirmed
            failed = any(replica.error is not None for replica in writer.layout.replicas)
            if failed or self._growing:
                layout = self._plan()
                if layout is not None:
                    self._switch(layout)
            elif len(writer.possible) == 1:
                if not writer.count_due:
                    return
                await self._count()
                continue
            if await self._copied():
                try:
                    await self._record(writer.layout)
                except MetadataUnavailable:
                    # The outcome is unknown. Retry while acks still confirm entries; else fail.
                    if writer.unconfirmed and writer.last_add_confirmed == confirmed:
                        raise
                    await self._context.back_off(attempt)
        raise PersistenceError(
            f"ledger {writer.ledger_id}: its bookies failed {ROUNDS_MAX} times in a row"
        )

    def _filled(self) -> tuple[BookieIdentity, ...] | None:
        """Returns the ensemble with its gaps filled; None if it is complete already."""
        writer, now = self._writer, self._context.clock.monotonic()
        metadata = writer.metadata
        before: list[BookieIdentity | None] = [
            None if replica.error is not None else replica.identity
            for replica in writer.layout.replicas
        ]
        if all(before) and len(before) >= metadata.write_quorum:
            return None
        before += [None] * (metadata.write_quorum - len(before))
        for identity in [key for key, (until, _) in self._avoided.items() if until <= now]:
            del self._avoided[identity]
        excluded: Excluded = {identity: reason for identity, (_, reason) in self._avoided.items()}
        living = [
            info
            for info in self._context.bookies.living()
            if self._context.bookies.get(info.identity) is not None
        ]
        excluded = excluding_others(living, affinity_of(metadata.properties), len(before), excluded)
        after = choose_more(living, before, metadata.write_quorum, self._context.rng, excluded)
        bookies = tuple(identity for identity in after if identity is not None)
        if len(bookies) < metadata.ack_quorum:
            raise not_enough(metadata.ack_quorum, living, excluded)
        failed = None in before[: len(writer.layout.replicas)]
        return bookies if failed or len(bookies) > len(writer.layout.replicas) else None

    def _plan(self) -> Layout | None:
        """Returns the layout to switch to; None if the ensemble is complete."""
        writer = self._writer
        self._growing = False
        bookies = self._filled()
        if bookies is None:
            return None
        current = {
            replica.identity: replica for replica in writer.layout.replicas if replica.error is None
        }
        replicas: list[Replica] = []
        for identity in bookies:
            replica = current.get(identity)
            if replica is None:
                bookie = self._context.bookies.get(identity)
                if bookie is None:
                    raise PersistenceError(
                        f"bookie {identity.bookie_id} was deregistered meanwhile"
                    )
                replica = writer.replica_of(bookie)
            replicas.append(replica)
        return writer.layout_of(self._first_entry(), replicas)

    def _first_entry(self) -> int:
        """Returns F, the entry from which on the new ensemble is to hold everything."""
        first = self._writer.first_unsafe
        # An earlier switch may be on no record yet: this change includes it.
        return min(first, *(layout.first_entry for layout in self._writer.possible[1:]), first)

    def _switch(self, layout: Layout) -> None:
        """Sends the new ensemble the entries that it lacks, and all later ones."""
        writer = self._writer
        log.info(
            "ensemble changes",
            ledger=writer.ledger_id,
            first_entry=layout.first_entry,
            before=[identity.bookie_id for identity in writer.layout.bookies],
            bookies=[identity.bookie_id for identity in layout.bookies],
        )
        writer.switch(layout)

    async def _copied(self) -> bool:
        """Waits until confirmed entries are safe in the layout; False if a replica failed."""
        writer = self._writer
        while writer.error is None:
            if any(replica.error is not None for replica in writer.layout.replicas):
                return False
            if writer.copied():
                return True
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return False

    async def _record(self, layout: Layout) -> None:
        """Writes the new ensemble, which is then the only possible one."""

        def changed(metadata: LedgerMetadata) -> LedgerMetadata:
            ensembles = with_ensemble(metadata, layout.first_entry, layout.bookies)
            return metadata.with_ensembles(ensembles)

        if await self._swap(changed):
            self._writer.recorded(layout)

    async def _count(self) -> None:
        """Records the length; a failure is harmless."""
        try:
            await self._swap(lambda metadata: metadata)
        except MetadataUnavailable as error:
            log.warning("length not recorded", ledger=self._writer.ledger_id, error=str(error))
        self._writer.count_later()

    async def _swap(self, change: Change) -> bool:
        """Applies `change` to the record while the ledger is open; returns whether it did."""
        writer = self._writer
        metadata, revision = writer.metadata, writer.revision
        for _ in range(SWAPS_MAX):
            wanted = change(metadata).counted(writer.last_add_confirmed + 1, writer.length_bytes)
            try:
                revision = await swap(self._context, wanted, revision)
            except RecordChanged as changed:
                metadata, revision = changed.metadata, changed.revision
                if metadata.state is not LedgerState.OPEN:
                    raise _fenced(writer.ledger_id) from None
                continue
            except NoSuchLedger:
                raise _fenced(writer.ledger_id) from None
            writer.rewritten(wanted, revision)
            return writer.error is None
        raise PersistenceError(
            f"ledger {writer.ledger_id} changed {SWAPS_MAX} times while its bookies were replaced"
        )


def _fenced(ledger_id: int) -> LedgerFenced:
    return LedgerFenced(f"ledger {ledger_id} was ended by another owner")
