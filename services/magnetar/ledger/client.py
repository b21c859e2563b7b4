"""Creates, opens and deletes ledgers.

`create` chooses the bookies, assigns the next id and writes the ledger's record in one transaction.
The caller's own record that names the new ledger can take part in it, so a crash leaves both or
none, and never a ledger that no record names (`creation`).

`open(recover=True)` recovers and closes the ledger first. `delete` deletes the ledger from every
reachable bookie before it deletes the record, so an interrupted deletion can be repeated. An
unreachable bookie deletes its copy in its next garbage collection.

The client also informs its writers when bookies leave, and when a degraded writer can take another
bookie. It closes the ledgers of writers that failed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from weakref import WeakSet

from magnetar.bookie.api import (
    BookieIdentity,
    BookieUnavailable,
    LedgerEnd,
    NoSuchLedger,
    NotPermitted,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskScope
from magnetar.ledger.bookie_calls import ask_end, ask_to_delete
from magnetar.ledger.bookies import BookieInfo, BookieSet
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.creation import Creations, Planned, WithLedger
from magnetar.ledger.metadata import (
    LedgerMetadata,
    LedgerState,
    decode,
    ledger_key,
)
from magnetar.ledger.quorum import every_bookie
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.records import get_key, read_record
from magnetar.ledger.settings import LedgerSettings, Quorums
from magnetar.ledger.writer import LedgerWriter, SingleWriter
from magnetar.metadata.store import (
    MetadataStore,
    Operation,
)

log = get_logger("magnetar.ledger")


def _nothing(_ledger_id: int) -> Sequence[Operation]:
    return ()


class LedgerClient:
    """Creates, opens and deletes the ledgers of one process."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieSet,
        clock: Clock,
        settings: LedgerSettings | None = None,
        *,
        rng: Random | None = None,
    ) -> None:
        settings = settings or LedgerSettings()
        self.settings = settings
        steady = SteadyClock.of(clock)
        self._context = LedgerContext(store, bookies, steady, settings, rng or Random())
        self._store = store
        self._creations = Creations(self._context, self._writer)
        self._writers: WeakSet[LedgerWriter] = WeakSet()
        self._growing: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._listening = True
        bookies.add_listener(self._bookie_lost)

    @property
    def writers(self) -> list[LedgerWriter]:
        """The writers of open ledgers, for status and metrics."""
        return [writer for writer in self._writers if writer.error is None]

    @property
    def late_bytes(self) -> int:
        """Bytes of confirmed entries that some bookie has not acknowledged yet."""
        return self._context.late_bytes

    async def create(
        self,
        properties: Mapping[str, str],
        *,
        with_ledger: WithLedger = _nothing,
        quorums: Quorums | None = None,
    ) -> LedgerWriter:
        """Creates an open ledger with an id above all earlier ones; returns its writer.

        `with_ledger` returns operations for the same transaction, given the id. It may raise, and
        may be called again with another id; BadRevision of its keys is passed on. Without
        `quorums`, the settings decide the spread. Raises NotEnoughBookies; raises
        MetadataUnavailable if the outcome is unknown.
        """
        return await self._creations.create(
            properties, with_ledger, quorums or self.settings.quorums
        )

    @property
    def context(self) -> LedgerContext:
        """What ledgers of this process are read with."""
        return self._context

    def _writer(self, planned: Planned, revision: int) -> LedgerWriter:
        (metadata, bookies), context = planned, self._context
        writer: LedgerWriter
        if metadata.ensemble_size == 1:
            writer = SingleWriter(metadata, revision, bookies[0], context)
        else:
            # Imported here: a standalone does not need it.
            from magnetar.ledger.replicated_writer import ReplicatedWriter

            writer = ReplicatedWriter(metadata, revision, bookies, context)
        self._writers.add(writer)
        for bookie in bookies:
            if context.bookies.get(bookie.identity) is None:
                writer.bookie_lost(bookie.identity)
        if self._growing is None and metadata.write_quorum > 1:
            self._grow_later()
        return writer

    async def open(self, ledger_id: int, *, recover: bool) -> LedgerReader:
        """Returns a reader. With `recover`, the ledger is closed first, and its writer fenced.

        Without `recover`, an open ledger is readable up to the highest last-add-confirmed among the
        bookies that answer promptly; each of them gives a lower bound. Raises NoSuchLedger,
        RecoveryFailed.
        """
        context = self._context
        metadata, revision = await read_record(context, ledger_id)
        if metadata.state is LedgerState.CLOSED:
            return LedgerReader(metadata, metadata.last_entry, context)
        if recover:
            # Imported here: a process that recovers no ledger does not need it.
            from magnetar.ledger.recovery import recover_ledger

            metadata = await recover_ledger(context, metadata, revision)
            return LedgerReader(metadata, metadata.last_entry, context)
        return LedgerReader(metadata, await self._confirmed(metadata), context)

    async def describe(self, ledger_id: int) -> LedgerMetadata:
        """Returns a ledger's record: its bookies and state. Raises NoSuchLedger."""
        metadata, _ = await read_record(self._context, ledger_id)
        return metadata

    def living(self) -> Sequence[BookieInfo]:
        """Returns the registered bookies."""
        return self._context.bookies.living()

    async def _confirmed(self, metadata: LedgerMetadata) -> int:
        """Returns the last entry known to be confirmed; all below the last ensemble is."""
        last = metadata.ensembles[-1]
        confirmed, failure = -1, None
        delay: float | None = None
        async with TaskScope(f"ledger {metadata.ledger_id}") as scope:
            waiting = {
                scope.start(
                    ask_end(self._context, metadata.ledger_id, identity, fence=False),
                    f"end at {identity.bookie_id}",
                )
                for identity in last.bookies
            }
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, timeout=delay, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for task in done:
                    answer = task.result()
                    if isinstance(answer, LedgerEnd):
                        confirmed = max(confirmed, answer.last_add_confirmed)
                        delay = self.settings.more_answers_s
                    elif isinstance(answer, NoSuchLedger):
                        delay = self.settings.more_answers_s
                    else:
                        failure = answer
        if delay is None and failure is not None:
            raise failure
        return max(confirmed, last.first_entry - 1)

    async def delete(self, ledger_id: int) -> None:
        """Deletes the ledger from its bookies, then its record. Idempotent.

        Bookies that are unavailable, or do not permit it to this process, delete their copies once
        the record is gone.
        """
        context, key = self._context, ledger_key(ledger_id)
        record = await get_key(context, key)
        if record is None:
            return
        bookies = every_bookie(decode(key, record.value))
        for failure in await asyncio.gather(
            *(ask_to_delete(context, ledger_id, identity) for identity in bookies)
        ):
            if isinstance(failure, BookieUnavailable | NotPermitted):
                log.info(
                    "ledger not deleted from a bookie; its garbage collection deletes it",
                    ledger=ledger_id,
                    reason=str(failure),
                )
            elif failure is not None:
                raise failure
        await self._store.delete(key)

    async def close(self) -> None:
        """Stops the background work. Idempotent."""
        if self._listening:
            self._listening = False
            self._context.bookies.remove_listener(self._bookie_lost)
        if self._growing is not None:
            self._growing.cancel()
        self._context.explicit_lac.close()
        await self._context.tasks.stop()

    def _bookie_lost(self, identity: BookieIdentity) -> None:
        for writer in list(self._writers):
            if writer.error is None:
                writer.bookie_lost(identity)

    async def _end_all(self, left: list[LedgerWriter]) -> None:
        """Closes ledgers that failed writers left open, a few at a time.

        Their owners may not write for a long time, and autorecovery does not restore the copies of
        an open ledger. A lost lease leaves all ledgers of a broker open at once, hence the bound.
        """
        at_once = self.settings.changes_at_once_max
        try:
            for start in range(0, len(left), at_once):
                await asyncio.gather(*map(self._end, left[start : start + at_once]))
        finally:
            self._ending = None

    async def _end(self, writer: LedgerWriter) -> None:
        if not writer.left_open:
            return  # its owner closed it meanwhile
        try:
            await writer.close()
        except MagnetarError as error:
            log.info("ledger not closed, will retry", ledger=writer.ledger_id, error=str(error))

    def _grow_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._growing = loop.call_later(self.settings.regrow_interval_s, self._grow)

    def _grow(self) -> None:
        self._growing = None
        living = list(self._writers)
        for writer in living:
            writer.grow()
        left = [writer for writer in living if writer.error is not None and writer.left_open]
        if left and self._ending is None:
            self._ending = self._context.tasks.start(self._end_all(left), "end ledgers")
        if living:
            self._grow_later()
