"""Creates ledgers: bookies, ids and records, of several ledgers in one transaction.

The transaction moves the last id given out (`/ledger-id`), writes the records of the new ledgers
and whatever their owners write with them: all of it or nothing. One transaction is under way at a
time in a process, for two would only contend for the counter; who asks meanwhile is part of the
next one, so that very many topics that get a ledger at once (after the death of their broker)
cost few transactions. Where one of them does not fit, it is told and the others go on without it.

A transaction whose answer is lost is looked after: each ledger carries a nonce, so that it is found
in its record if the transaction has happened. It cannot happen later unseen: it carries the
counter's revision, as the next one does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.api import Bookie
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import (
    LEDGER_ID_KEY,
    Ensemble,
    LedgerMetadata,
    decode,
    encode,
    ledger_key,
)
from magnetar.ledger.placement import choose_ensemble
from magnetar.ledger.records import ATTEMPT_TIMEOUT_S, get_key
from magnetar.ledger.settings import Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.store import (
    ABSENT,
    TRANSACTION_OPS_MAX,
    BadRevision,
    MetadataUnavailable,
    Operation,
    Put,
)

CREATE_ATTEMPTS_MAX: Final = 64
CONFLICT_PAUSE_S: Final = 0.002
"""Times the number of conflicts in a row, and by chance: for the counter that others move too."""
GROUP_BYTES_MAX: Final = 512 << 10
"""Of the values in one transaction; etcd refuses requests of 1.5 MiB."""

WithLedger = Callable[[int], Sequence[Operation]]
Planned = tuple[LedgerMetadata, list[Bookie]]
Made = Callable[[Planned, int], LedgerWriter]


@dataclass(slots=True)
class _Request:
    """One ledger that somebody waits for."""

    properties: Mapping[str, str]
    with_ledger: WithLedger
    quorums: Quorums
    writer: "asyncio.Future[LedgerWriter]"
    attempted: list[Planned] = field(default_factory=list)
    """What may have been created, but was not answered."""
    planned: Planned | None = None
    keys: set[str] = field(default_factory=set)

    def fail(self, error: MagnetarError) -> None:
        if not self.writer.done():
            self.writer.set_exception(error)


class Creations:
    """See the module's text. `made` gets a ledger and its record's revision: its writer."""

    def __init__(self, context: LedgerContext, made: Made) -> None:
        self._context = context
        self._made = made
        self._waiting: deque[_Request] = deque()
        self._working: asyncio.Task[None] | None = None
        self._known: tuple[int, int] | None = None
        """The last id and its key's revision, where this process wrote it a moment ago."""

    async def create(
        self, properties: Mapping[str, str], with_ledger: WithLedger, quorums: Quorums
    ) -> LedgerWriter:
        """See `LedgerClient.create`."""
        future: asyncio.Future[LedgerWriter] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(properties, with_ledger, quorums, future))
        if self._working is None:
            self._working = self._context.tasks.start(self._work(), "create ledgers")
            if self._working is None:
                self._waiting.clear()
                raise MetadataUnavailable("no ledger is created any more: the process is stopping")
        return await future

    async def _work(self) -> None:
        group: list[_Request] = []
        try:
            while self._waiting:
                group = self._next_group()
                try:
                    await self._create_all(group)
                except MagnetarError as error:
                    for request in group:
                        request.fail(error)
        finally:
            self._working = self._known = None
            for request in (*group, *self._waiting):
                request.fail(MetadataUnavailable("whether it was created is not known: stopping"))
            self._waiting.clear()

    def _next_group(self) -> list[_Request]:
        # A request has one record of its own, and mostly another of its owner and a check.
        count = min(len(self._waiting), TRANSACTION_OPS_MAX // 2)
        return [self._waiting.popleft() for _ in range(count)]

    async def _create_all(self, group: list[_Request]) -> None:
        """Sees to each of the group; raises what is true for all that are left of it."""
        context = self._context
        loop = asyncio.get_running_loop()
        deadline = loop.time() + context.settings.metadata_timeout_s
        conflicts = unanswered = 0
        while _keep_unanswered(group):
            last, revision = await self._last_id()
            # After that: what has not happened by now cannot happen beside the next attempt.
            for request in group:
                if request.attempted:
                    await self._find(request)
            _keep_unanswered(group)
            operations, taken = self._planned(group, last, revision)
            if not taken:
                continue  # nobody is left, or those that could not be planned were told
            try:
                async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                    revision = await context.store.transact(operations)
            except BadRevision as error:
                self._known = None
                for request in taken:
                    request.attempted.pop()  # this one did not happen, but an earlier one may have
                if error.key != LEDGER_ID_KEY:
                    await self._refuse(taken, error)
                    continue
                conflicts += 1
                if conflicts == CREATE_ATTEMPTS_MAX:
                    raise MetadataError(
                        f"{LEDGER_ID_KEY} changed {CREATE_ATTEMPTS_MAX} times in a row"
                    ) from error
                await asyncio.sleep(CONFLICT_PAUSE_S * (conflicts - 1) * context.rng.random())
            except (MetadataUnavailable, TimeoutError) as error:
                self._known = None
                if loop.time() >= deadline:
                    raise MetadataUnavailable(
                        f"whether ledger {last + 1} was created is not known: {error}"
                    ) from error
                await context.back_off(unanswered)
                unanswered += 1
            else:
                conflicts = 0
                self._known = (last + len(taken), revision)
                for request in taken:
                    self._done(request, revision)

    async def _last_id(self) -> tuple[int, int]:
        """The last id given out, and its key's revision."""
        if self._known is not None:
            return self._known
        counter = await get_key(self._context, LEDGER_ID_KEY)
        if counter is None:
            return 0, ABSENT
        try:
            return int(counter.value), counter.revision
        except ValueError:
            raise MetadataError(
                f"{LEDGER_ID_KEY} holds no number: {counter.value[:32]!r}"
            ) from None

    # -- what is written

    def _planned(
        self, group: list[_Request], last: int, revision: int
    ) -> tuple[list[Operation], list[_Request]]:
        """The transaction, and those of the group that it is for; others follow."""
        taken: list[_Request] = []
        operations: dict[str, Operation] = {}
        size = 0
        for request in group:
            ledger_id = last + 1 + len(taken)
            try:
                planned = self._plan(ledger_id, request.properties, request.quorums)
                own: list[Operation] = [
                    Put(ledger_key(ledger_id), encode(planned[0]), ABSENT),
                    *request.with_ledger(ledger_id),
                ]
            except MagnetarError as error:
                request.fail(error)
                continue
            more = {one.key: one for one in own if operations.get(one.key) != one}
            size += sum(len(one.value) for one in own if isinstance(one, Put))
            full = len(operations) + len(more) >= TRANSACTION_OPS_MAX or size > GROUP_BYTES_MAX
            if taken and (full or not operations.keys().isdisjoint(more)):
                break
            operations.update(more)
            request.planned, request.keys = planned, {one.key for one in own}
            request.attempted.append(planned)
            taken.append(request)
        value = str(last + len(taken)).encode()
        return [Put(LEDGER_ID_KEY, value, revision), *operations.values()], taken

    def _plan(self, ledger_id: int, properties: Mapping[str, str], quorums: Quorums) -> Planned:
        context, settings = self._context, self._context.settings
        here = {
            info.identity: bookie
            for info in context.bookies.living()
            if (bookie := context.bookies.get(info.identity)) is not None
        }
        bookies = choose_ensemble(
            [info for info in context.bookies.living() if info.identity in here],
            quorums.ensemble_size,
            quorums.write_quorum,
            quorums.ack_quorum,
            context.rng,
        )
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensembles=(Ensemble(0, bookies),),
            created_ms=context.clock.now_ms(),
            ensemble_size=quorums.ensemble_size,
            write_quorum=quorums.write_quorum,
            ack_quorum=quorums.ack_quorum,
            stripe_entries=settings.stripe_entries,
            properties=dict(properties),
            nonce=f"{context.rng.getrandbits(64):016x}",
        )
        return metadata, [here[identity] for identity in bookies]

    # -- what became of it

    def _done(self, request: _Request, revision: int) -> None:
        if not request.writer.done() and request.planned is not None:
            request.writer.set_result(self._made(request.planned, revision))

    async def _find(self, request: _Request) -> None:
        """Whether it was created by one of the transactions whose answers were lost."""
        for planned in request.attempted:
            key = ledger_key(planned[0].ledger_id)
            record = await get_key(self._context, key)
            if record is not None and decode(key, record.value).nonce == planned[0].nonce:
                request.planned = planned
                self._done(request, record.revision)
                return

    async def _refuse(self, taken: list[_Request], error: BadRevision) -> None:
        """Tells those whose keys do not fit, unless it is their own earlier write that is there."""
        for request in taken:
            if error.key not in request.keys:
                continue
            if request.attempted:
                await self._find(request)
            if request.planned and error.key == ledger_key(request.planned[0].ledger_id):
                request.fail(
                    MetadataError(
                        f"{LEDGER_ID_KEY} went back: ledger {request.planned[0].ledger_id} exists"
                    )
                )
            request.fail(error)


def _keep_unanswered(group: list[_Request]) -> bool:
    """Leaves those in it that are still to be answered; whether there are any."""
    group[:] = [request for request in group if not request.writer.done()]
    return bool(group)
