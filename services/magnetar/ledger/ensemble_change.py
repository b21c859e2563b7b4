"""Replaces bookies of an open ledger, by compare-and-swap on its record.

One change at a time, in rounds, until nothing is left to be changed:

1. *Plan.* Others take the place of the replicas that failed; where there are none the ensemble
   gets smaller, down to the ack quorum. An ensemble with fewer bookies than copies are wanted is
   filled up where there is somebody.
2. *Switch.* The new ensemble is to hold all entries from F on: F is the first unconfirmed entry,
   or a confirmed one before it that a failed replica never acknowledged. All those entries are
   still in memory, and go to who lacks them; so does what is appended from now on. Until the
   record is known, an ack counts only if its bookie is in the entry's write set by the old *and*
   the new ensemble: whichever of them a recovering reader finds, it finds an ack quorum.
3. *Copy.* Confirmed entries from F on must have an ack quorum in the new ensemble before it may be
   recorded: a reader who finds the record asks nobody else.
4. *Swap.* If the record was changed by others, it is read again: not OPEN any more means fenced;
   bookies of older entries were replaced (autorecovery) means that theirs is taken, with ours
   behind it. If nobody knows whether the swap happened, both count as possible, and the next
   round begins with either; it never goes back to believing in the old one alone.

The same task now and then records how long the ledger is, for recovery not to have to count.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar.bookie.api import BookieIdentity, LedgerFenced, NoSuchLedger
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.core.log import get_logger
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.placement import choose_more, not_enough
from magnetar.ledger.quorum import with_ensemble
from magnetar.ledger.records import RecordChanged, swap
from magnetar.ledger.replicas import Layout, Replica
from magnetar.metadata.store import MetadataUnavailable

if TYPE_CHECKING:
    from magnetar.ledger.replicated_writer import ReplicatedWriter

Change = Callable[[LedgerMetadata], LedgerMetadata]

SWAPS_MAX: Final = 16
ROUNDS_MAX: Final = 64

log = get_logger("magnetar.ledger.ensemble")


class EnsembleChange:
    """See the module's text. Of one writer."""

    __slots__ = ("_avoided", "_context", "_growing", "_task", "_waiting", "_writer")

    def __init__(self, writer: "ReplicatedWriter", context: LedgerContext) -> None:
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
        """A bookie that failed does not stand in for others for a while."""
        until = self._context.clock.monotonic() + self._context.settings.avoid_s
        self._avoided[identity] = (until, reason)

    def start(self) -> None:
        """Sees to what is to be changed, if that is not being done."""
        if self._task is not None:
            self.wake()
            return
        self._task = self._context.tasks.start(self._run(), f"ensemble of {self._writer.ledger_id}")
        if self._task is None:
            self._writer.fail(PersistenceError("the process is stopping"))

    def start_growing(self) -> None:
        """Takes in a bookie, if there is one."""
        if self._task is None and self._filled() is not None:
            self._growing = True
            self.start()

    def wake(self) -> None:
        """Something has moved that a change may wait for."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def stop(self) -> None:
        """Ends what is under way; whether a swap happened is then not known."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # -- the task

    async def _run(self) -> None:
        writer = self._writer
        try:
            if writer.pending or writer.late:
                await self._rounds()
            else:
                async with self._context.gate:
                    await self._rounds()
        except MagnetarError as error:
            log.warning("writer gives up", ledger=writer.ledger_id, error=str(error))
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
                    # Nobody knows. What does not depend on it goes on; else this is the end.
                    if writer.pending and writer.last_add_confirmed == confirmed:
                        raise
                    await self._context.back_off(attempt)
        raise PersistenceError(
            f"ledger {writer.ledger_id}: its bookies failed {ROUNDS_MAX} times in a row"
        )

    # -- 1: plan

    def _filled(self) -> tuple[BookieIdentity, ...] | None:
        """The ensemble as it should be; None where it is so already."""
        writer, now = self._writer, self._context.clock.monotonic()
        metadata = writer.metadata
        before: list[BookieIdentity | None] = [
            None if replica.error is not None else replica.identity
            for replica in writer.layout.replicas
        ]
        if all(before) and len(before) >= metadata.write_quorum:
            return None
        before += [None] * (metadata.write_quorum - len(before))
        for identity in [one for one, (until, _) in self._avoided.items() if until <= now]:
            del self._avoided[identity]
        excluded = {one: reason for one, (_, reason) in self._avoided.items()}
        living = [
            info
            for info in self._context.bookies.living()
            if self._context.bookies.get(info.identity) is not None
        ]
        after = choose_more(living, before, metadata.write_quorum, self._context.rng, excluded)
        bookies = tuple(one for one in after if one is not None)
        if len(bookies) < metadata.ack_quorum:
            raise not_enough(metadata.ack_quorum, living, excluded)
        failed = None in before[: len(writer.layout.replicas)]
        return bookies if failed or len(bookies) > len(writer.layout.replicas) else None

    def _plan(self) -> Layout | None:
        writer = self._writer
        self._growing = False
        bookies = self._filled()
        if bookies is None:
            return None
        known = {one.identity: one for one in writer.layout.replicas if one.error is None}
        replicas: list[Replica] = []
        for identity in bookies:
            replica = known.get(identity)
            if replica is None:
                bookie = self._context.bookies.get(identity)
                if bookie is None:
                    raise PersistenceError(f"bookie {identity.bookie_id} left meanwhile")
                replica = writer.replica_of(bookie)
            replicas.append(replica)
        return writer.layout_of(self._first_entry(), replicas)

    def _first_entry(self) -> int:
        """From where on the new ensemble is to hold everything."""
        writer = self._writer
        first = writer.last_add_confirmed + 1
        for piece in writer.late:
            if piece.want & writer.dead & ~piece.acked:
                first = min(first, piece.first)
                break
        # What was switched already may stand in no record: it is part of this change.
        return min(first, *(layout.first_entry for layout in writer.possible[1:]), first)

    # -- 2: switch

    def _switch(self, layout: Layout) -> None:
        """Sends to the new ensemble what it lacks, and from now on everything."""
        writer = self._writer
        log.info(
            "ensemble changes",
            ledger=writer.ledger_id,
            first_entry=layout.first_entry,
            before=[one.bookie_id for one in writer.layout.bookies],
            bookies=[one.bookie_id for one in layout.bookies],
        )
        writer.layout = layout
        writer.possible = (*writer.possible, layout)
        confirmed = writer.last_add_confirmed
        for pieces in (writer.late, writer.pending):
            for piece in pieces:
                if piece.first < layout.first_entry:
                    continue
                piece.want, replicas = layout.set_of(piece.first)
                piece.need = writer.need_of(piece.first, piece.want)
                for replica in replicas:
                    if not piece.sent & replica.bit:
                        piece.sent |= replica.bit
                        replica.send(piece, confirmed)
        writer.watch()

    # -- 3: copy

    async def _copied(self) -> bool:
        """Whether confirmed entries are where they must be; not, where another replica failed."""
        writer = self._writer
        quorum = writer.metadata.ack_quorum
        while writer.error is None:
            layout = writer.layout
            if any(replica.error is not None for replica in layout.replicas):
                return False
            if all(
                (piece.acked & piece.want).bit_count() >= quorum
                for piece in writer.late
                if piece.first >= layout.first_entry
            ):
                return True
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return False

    # -- 4: swap

    async def _record(self, layout: Layout) -> None:
        """Writes the new ensemble; it is the only possible one afterwards."""

        def changed(metadata: LedgerMetadata) -> LedgerMetadata:
            ensembles = with_ensemble(metadata, layout.first_entry, layout.bookies)
            return metadata.with_ensembles(ensembles)

        if await self._swap(changed):
            self._writer.recorded(layout)

    async def _count(self) -> None:
        try:
            await self._swap(lambda metadata: metadata)
        except MetadataUnavailable as error:
            log.warning("length not recorded", ledger=self._writer.ledger_id, error=str(error))
        self._writer.count_later()

    async def _swap(self, change: Change) -> bool:
        """Changes the record as it is now, as long as the ledger is ours. Whether it was done."""
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
