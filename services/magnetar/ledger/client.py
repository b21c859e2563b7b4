"""Creates, opens and deletes ledgers.

`create` chooses the bookies, gives out the next id and writes the ledger's record in one
transaction, in which the caller's own record that names the new ledger can take part: then a crash
leaves either both or none, and no ledger that nobody knows (`creating`).

`open(recover=True)` ends the ledger first. `delete` tells every bookie that can be reached before
it forgets the record, so that a deletion that was cut short can be repeated; a bookie that cannot
be reached finds out by itself when it collects its garbage.

The client also keeps its writers informed: of bookies that have left, and, where they lack some, of
bookies that have come. It ends the ledgers of those that have failed.
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
)
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.ledger.asking import ask_end, ask_to_delete
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.creating import Creations, Planned, WithLedger
from magnetar.ledger.metadata import (
    LedgerMetadata,
    LedgerState,
    decode,
    ledger_key,
)
from magnetar.ledger.quorum import every_bookie
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.records import get_key, read_record
from magnetar.ledger.recovery import recover_ledger
from magnetar.ledger.replicated_writer import ReplicatedWriter
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
    """See the module's text."""

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
        """The writers of open ledgers, for those who show how they are."""
        return [writer for writer in self._writers if writer.error is None]

    @property
    def late_bytes(self) -> int:
        """Confirmed entries kept for bookies that have not answered yet."""
        return self._context.late_bytes

    async def create(
        self,
        properties: Mapping[str, str],
        *,
        with_ledger: WithLedger = _nothing,
        quorums: Quorums | None = None,
    ) -> LedgerWriter:
        """A new, open ledger with an id above all before.

        `with_ledger` is asked, once the id is known, for operations of the same transaction. It
        may raise, and may be asked again for another id; BadRevision of its keys is passed on.
        Without `quorums` the ledger is spread as the settings say.
        Raises NotEnoughBookies, and MetadataUnavailable where nobody knows whether it was created.
        """
        return await self._creations.create(
            properties, with_ledger, quorums or self.settings.quorums
        )

    def _writer(self, planned: Planned, revision: int) -> LedgerWriter:
        (metadata, bookies), context = planned, self._context
        writer: LedgerWriter
        if metadata.ensemble_size == 1:
            writer = SingleWriter(metadata, revision, bookies[0], context)
        else:
            writer = ReplicatedWriter(metadata, revision, bookies, context)
        self._writers.add(writer)
        for bookie in bookies:
            if context.bookies.get(bookie.identity) is None:
                writer.bookie_lost(bookie.identity)
        if self._growing is None and metadata.write_quorum > 1:
            self._grow_later()
        return writer

    async def open(self, ledger_id: int, *, recover: bool) -> LedgerReader:
        """A reader. With `recover` the ledger is ended first, and its writer fenced.

        Without it an open ledger can be read up to what its bookies know to be confirmed now: the
        most that any of them says, of those that answer at once (each of them says a lower bound).
        Raises NoSuchLedger, RecoveryFailed.
        """
        context = self._context
        metadata, revision = await read_record(context, ledger_id)
        if metadata.state is LedgerState.CLOSED:
            return LedgerReader(metadata, metadata.last_entry, context)
        if recover:
            metadata = await recover_ledger(context, metadata, revision)
            return LedgerReader(metadata, metadata.last_entry, context)
        return LedgerReader(metadata, await self._confirmed(metadata), context)

    async def _confirmed(self, metadata: LedgerMetadata) -> int:
        """The last entry that is known to be confirmed; all below the last ensemble is."""
        last = metadata.ensembles[-1]
        tasks = [
            asyncio.ensure_future(ask_end(self._context, metadata.ledger_id, one, fence=False))
            for one in last.bookies
        ]
        confirmed, failure, waiting = -1, None, set(tasks)
        delay: float | None = None
        try:
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
                        delay = self.settings.speculative_read_delay_s
                    elif isinstance(answer, NoSuchLedger):
                        delay = self.settings.speculative_read_delay_s
                    else:
                        failure = answer
        finally:
            for task in tasks:
                task.cancel()
        if delay is None and failure is not None:
            raise failure
        return max(confirmed, last.first_entry - 1)

    async def delete(self, ledger_id: int) -> None:
        """Frees the ledger's space and forgets it. Idempotent."""
        context, key = self._context, ledger_key(ledger_id)
        record = await get_key(context, key)
        if record is None:
            return
        bookies = every_bookie(decode(key, record.value))
        for failure in await asyncio.gather(
            *(ask_to_delete(context, ledger_id, identity) for identity in bookies)
        ):
            if isinstance(failure, BookieUnavailable):
                log.info("not told of a deletion", ledger=ledger_id, reason=str(failure))
            elif failure is not None:
                raise failure
        await self._store.delete(key)

    async def close(self) -> None:
        """Ends what goes on in the background. Idempotent."""
        if self._listening:
            self._listening = False
            self._context.bookies.remove_listener(self._bookie_lost)
        if self._growing is not None:
            self._growing.cancel()
        self._context.explicit_lac.close()
        await self._context.tasks.stop()

    # -- what the writers are told

    def _bookie_lost(self, identity: BookieIdentity) -> None:
        for writer in list(self._writers):
            if writer.error is None:
                writer.bookie_lost(identity)

    async def _end_all(self, left: list[LedgerWriter]) -> None:
        """Their owners may not write for long: until a ledger is ended, nobody else may see to
        the copies that it lacks. Few at a time: a lost lease leaves all of a broker's at once."""
        at_once = self.settings.changes_at_once_max
        try:
            for start in range(0, len(left), at_once):
                await asyncio.gather(*map(self._end, left[start : start + at_once]))
        finally:
            self._ending = None

    async def _end(self, writer: LedgerWriter) -> None:
        if not writer.left_open:
            return  # its owner was faster
        try:
            await writer.close()
        except MagnetarError as error:
            log.info("ledger not ended now", ledger=writer.ledger_id, error=str(error))

    def _grow_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._growing = loop.call_later(self.settings.regrow_interval_s, self._grow)

    def _grow(self) -> None:
        self._growing = None
        living = list(self._writers)
        for writer in living:
            if writer.error is None and writer.degraded:
                writer.grow()
        left = [one for one in living if one.error is not None and one.left_open]
        if left and self._ending is None:
            self._ending = self._context.tasks.start(self._end_all(left), "end ledgers")
        if living:
            self._grow_later()
