"""Creates ledgers, several in one transaction: bookies, ids and records.

The transaction advances the last assigned id (`/ledger-id`), writes the records of the new ledgers,
and performs their owners' operations: all or nothing. A process runs one transaction at a time,
because two would only contend for the counter. Requests that arrive meanwhile share the next one,
so thousands of topics that need a ledger at once (after their broker died) cost few transactions.
If one request conflicts, it fails alone and the others continue.

If the answer to a transaction is lost, the outcome is looked up: each ledger carries a nonce, which
its record shows if the transaction landed. It cannot land later unnoticed, because it carries the
counter's revision, as the next transaction does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.api import Bookie
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.ledger.affinity import affinity_of, excluding_others
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LEDGER_ID_KEY, Ensemble, LedgerMetadata, decode, ledger_key
from magnetar.ledger.placement import choose_ensemble
from magnetar.ledger.records import ATTEMPT_TIMEOUT_S, get_key
from magnetar.ledger.settings import Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.records import encode
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
"""Multiplied by the number of consecutive conflicts and a random factor: other processes move the
counter too."""
GROUP_BYTES_MAX: Final = 512 << 10
"""Bound of the values in one transaction; etcd refuses requests of 1.5 MiB."""

WithLedger = Callable[[int], Sequence[Operation]]
Planned = tuple[LedgerMetadata, list[Bookie]]
NewWriter = Callable[[Planned, int], LedgerWriter]


@dataclass(slots=True)
class _Request:
    """A request for one ledger, with the future of its writer."""

    properties: Mapping[str, str]
    with_ledger: WithLedger
    quorums: Quorums
    writer: "asyncio.Future[LedgerWriter]"
    attempted: list[Planned] = field(default_factory=list)
    """Ledgers that a transaction without an answer may have created."""
    planned: Planned | None = None
    keys: set[str] = field(default_factory=set)

    def fail(self, error: MagnetarError) -> None:
        if not self.writer.done():
            self.writer.set_exception(error)


class Creations:
    """Creates the ledgers of one client; `new_writer` takes a plan and the record's revision."""

    def __init__(self, context: LedgerContext, new_writer: NewWriter) -> None:
        self._context = context
        self._new_writer = new_writer
        self._waiting: deque[_Request] = deque()
        self._working: asyncio.Task[None] | None = None
        self._known: tuple[int, int] | None = None
        """The last id and its key's revision, if this process wrote it last."""

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
                raise MetadataUnavailable("no ledger can be created: the process is stopping")
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
                request.fail(
                    MetadataUnavailable(
                        "whether the ledger was created is not known: the process is stopping"
                    )
                )
            self._waiting.clear()

    def _next_group(self) -> list[_Request]:
        # A request writes its own record, and usually its owner's record and a check.
        count = min(len(self._waiting), TRANSACTION_OPS_MAX // 2)
        return [self._waiting.popleft() for _ in range(count)]

    async def _create_all(self, group: list[_Request]) -> None:
        """Completes each request of the group; raises an error that applies to all that remain."""
        context = self._context
        loop = asyncio.get_running_loop()
        deadline = loop.time() + context.settings.metadata_timeout_s
        conflicts = unanswered = 0
        while _keep_unanswered(group):
            last, revision = await self._last_id()
            # After reading the counter: a transaction that has not landed yet cannot land any more.
            for request in group:
                if request.attempted:
                    await self._find(request)
            _keep_unanswered(group)
            operations, covered = self._planned(group, last, revision)
            if not covered:
                continue  # all requests are completed, or failed to plan
            try:
                async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                    revision = await context.store.transact(operations)
            except BadRevision as error:
                self._known = None
                for request in covered:
                    request.attempted.pop()  # this one did not land, but an earlier one may have
                if error.key != LEDGER_ID_KEY:
                    await self._refuse(covered, error)
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
                self._known = (last + len(covered), revision)
                for request in covered:
                    self._done(request, revision)

    async def _last_id(self) -> tuple[int, int]:
        """Returns the last assigned id, and its key's revision."""
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

    def _planned(
        self, group: list[_Request], last: int, revision: int
    ) -> tuple[list[Operation], list[_Request]]:
        """Returns the transaction, and the requests that it covers; the rest follow."""
        covered: list[_Request] = []
        operations: dict[str, Operation] = {}
        size = 0
        for request in group:
            ledger_id = last + 1 + len(covered)
            try:
                planned = self._plan(ledger_id, request.properties, request.quorums)
                own: list[Operation] = [
                    Put(ledger_key(ledger_id), encode(planned[0]), ABSENT),
                    *request.with_ledger(ledger_id),
                ]
            except MagnetarError as error:
                request.fail(error)
                continue
            new = {
                operation.key: operation
                for operation in own
                if operations.get(operation.key) != operation
            }
            size += sum(len(operation.value) for operation in own if isinstance(operation, Put))
            full = len(operations) + len(new) >= TRANSACTION_OPS_MAX or size > GROUP_BYTES_MAX
            if covered and (full or not operations.keys().isdisjoint(new)):
                break
            operations.update(new)
            request.planned, request.keys = planned, {operation.key for operation in own}
            request.attempted.append(planned)
            covered.append(request)
        value = str(last + len(covered)).encode()
        return [Put(LEDGER_ID_KEY, value, revision), *operations.values()], covered

    def _plan(self, ledger_id: int, properties: Mapping[str, str], quorums: Quorums) -> Planned:
        context, settings = self._context, self._context.settings
        reachable = {
            info.identity: bookie
            for info in context.bookies.living()
            if (bookie := context.bookies.get(info.identity)) is not None
        }
        living = [info for info in context.bookies.living() if info.identity in reachable]
        size = quorums.ensemble_size
        bookies = choose_ensemble(
            living,
            size,
            quorums.write_quorum,
            quorums.ack_quorum,
            context.rng,
            excluding_others(living, affinity_of(properties), size, {}),
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
        return metadata, [reachable[identity] for identity in bookies]

    def _done(self, request: _Request, revision: int) -> None:
        if not request.writer.done() and request.planned is not None:
            request.writer.set_result(self._new_writer(request.planned, revision))

    async def _find(self, request: _Request) -> None:
        """Completes the request if an unanswered transaction created its ledger."""
        for planned in request.attempted:
            key = ledger_key(planned[0].ledger_id)
            record = await get_key(self._context, key)
            if record is not None and decode(key, record.value).nonce == planned[0].nonce:
                request.planned = planned
                self._done(request, record.revision)
                return

    async def _refuse(self, covered: list[_Request], error: BadRevision) -> None:
        """Fails the requests whose keys conflict, unless their own earlier write is the cause."""
        for request in covered:
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
    """Removes completed requests from the group; returns whether any remain."""
    group[:] = [request for request in group if not request.writer.done()]
    return bool(group)
