"""Writes of a managed ledger's records that only the topic's owner can make.

In a cluster, a topic belongs to a bundle, and a broker owns a bundle by a record in the metadata
store. The guard of a context (`claim.Guard`) names that record at the revision of this process's
claim, and every write here is one transaction with it: it lands only while the claim is valid. A
standalone has no guard, because no other process could own a topic.

An owner that was paused and lost its claim meanwhile does no harm, for these reasons:

1. Once another claim is in the store, no transaction of the old owner lands any more: each one
   checks a revision that no longer exists. From then on only the new owner changes the records of
   the managed ledger and its cursors, and it reads them after its claim.
2. Without the store, the old owner can only write to ledgers that it had open: the last of the
   record's list, and one per cursor. The records that the new owner reads name all of them, because
   a ledger is created in the transaction that enters it there (`LedgerClient.create` with the
   record's write and the guard). The new owner recovers each before it serves the topic, which
   fences them: a confirmed entry, which may have a receipt, is readable; an unconfirmed one never
   gets a receipt.
3. A cursor's new ledger counts only once the cursor's record was switched to it, which is another
   guarded write: an ack gets its receipt after it, or never.
4. The same holds for idle topics: until the new owner opens one, the old owner may confirm entries
   in a ledger that is still open. They are in the ledger, and its recovery finds them.
5. Ledgers are deleted after they left the records, or below a record that was marked deleted; both
   are guarded writes, and ledger ids are never reused. So a late deletion only deletes unused
   ledgers.

A broker may also release a topic and open it again itself: after an unload, or after its lease was
lost and the bundle claimed again. Tasks of the former instance may still run then, and the store
cannot distinguish the two instances. `Tenure` does: each instance writes through its own. A tenure
ends with its instance, and every attempt of a write checks it. A tenure is also bound to the claim
that it started with, through splits of the bundle but not beyond. A bundle that was lost and
claimed again has another claim, so an earlier instance never writes under the new one. A
transaction under way at the end may still land; so the next instance changes a cursor's record
before it deletes the ledgers that the record retires (`CursorLog.retire`).

A write of unknown outcome (MetadataUnavailable) is repeated: as a compare-and-swap it lands at most
once. If the repetition finds the record changed, and to exactly the written bytes, the first
attempt landed.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from magnetar.core.backoff import backoff_s
from magnetar.core.errors import MagnetarError
from magnetar.ledger.settings import Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.metadata.store import BadRevision, Check, MetadataUnavailable, Operation, Put

WRITE_ATTEMPTS_MAX: Final = 6
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class Created:
    """A ledger and the record that names it, written together.

    Without a writer if its creation became known only afterwards: it stays empty, and its id must
    be retired.
    """

    writer: LedgerWriter | None
    ledger_id: int
    revision: int


class Tenure:
    """The right of one opened instance to write the records of its managed ledger.

    Once the tenure has ended, `write` and `create` raise the error given to `end`; they raise
    ManagedLedgerFenced if the claim is not the one that it started with. Each cursor has a branch,
    which ends with the instance or on its own.
    """

    __slots__ = (
        "_answered",
        "_context",
        "_error",
        "_idle",
        "_origin",
        "_parent",
        "_under_way",
        "follows_unanswered",
        "name",
        "placement",
    )

    def __init__(
        self, context: Context, name: str, origin: Hashable, parent: "Tenure | None" = None
    ) -> None:
        self.name = name
        self._context = context
        self._origin = origin
        self._parent = parent
        self._error: MagnetarError | None = None
        self._under_way = 0
        self._idle: asyncio.Event | None = None
        self._answered = True
        self.placement: dict[str, str] = {}
        """Properties of new ledgers that say where they may lie; cursors have their ledger's."""
        self.follows_unanswered = name in context.unanswered
        """Whether a write of an earlier instance of this process may still land.

        Both instances have the same claim, so only a new revision of the expected record keeps it
        out.
        """

    @classmethod
    async def begin(cls, context: Context, name: str) -> "Tenure":
        """Returns a tenure under the current claim. Raises ManagedLedgerFenced if there is none."""
        return cls(context, name, (await context.guard(name)).origin)

    def branch(self) -> "Tenure":
        """Returns the tenure of one cursor."""
        return Tenure(self._context, self.name, self._origin, self)

    @property
    def error(self) -> MagnetarError | None:
        """The reason why writes are refused; None while they are allowed."""
        if self._error is None and self._parent is not None:
            return self._parent.error
        return self._error

    def end(self, error: MagnetarError) -> None:
        """Refuses all later writes and retries. The first error counts."""
        if self._error is None:
            self._error = error

    def resume(self) -> None:
        """Undoes `end` of a branch, after a deletion that did not happen."""
        self._error = None

    def check(self) -> None:
        """Raises the error given to `end`, if the tenure has ended."""
        if (error := self.error) is not None:
            raise error.with_traceback(None)  # raised often; it would collect frames

    async def holds(self) -> bool:
        """Whether the tenure has not ended and this process still has its claim.

        Raises ManagedLedgerFenced if this process does not own the managed ledger.
        """
        origin = (await self._context.guard(self.name)).origin
        return self.error is None and origin == self._origin

    async def settled(self) -> None:
        """Returns when no transaction of this tenure or its branches is under way.

        Call it after `end`. The store's timeouts bound the wait.
        """
        while self._under_way:
            if self._idle is None:
                self._idle = asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        root = self if self._parent is None else self._parent
        root._under_way += 1
        self._context.unanswered.add(self.name)
        try:
            yield
        except asyncio.CancelledError:
            root._answered = False
            raise
        finally:
            root._under_way -= 1
            if not root._under_way:
                if root._answered:
                    self._context.unanswered.discard(self.name)
                if root._idle is not None:
                    root._idle.set()

    def _not_answered(self) -> None:
        root = self if self._parent is None else self._parent
        root._answered = False

    async def confirm(self) -> None:
        """Raises ManagedLedgerFenced if the store does not have this claim now.

        Call it before fencing a ledger: a process that was paused must not disturb a new owner.
        """
        while True:
            checks = await self._checks()
            for check in checks:
                record = await self._context.store.get(check.key)
                if record is None or record.revision != check.expected:
                    break
            else:
                return
            if await self._checks() == checks:
                raise ManagedLedgerFenced(f"{self.name} is not owned here any more")

    async def write(self, operations: Sequence[Operation]) -> int:
        """Writes `operations`, each with an expected revision, in one transaction; returns its
        revision.

        Raises BadRevision of one of their keys, ManagedLedgerFenced if the claim was lost, and
        MetadataUnavailable if the outcome is unknown.
        """
        unknown = False
        with self._transaction():
            for attempt in range(WRITE_ATTEMPTS_MAX):
                checks = await self._checks()
                try:
                    return await self._written(operations, checks)
                except BadRevision as error:
                    if await self._claim_moved(checks, error):
                        continue
                    if unknown and (revision := await self._landed(operations)) is not None:
                        return revision
                    raise self._refused(checks, error) from error
                except MetadataUnavailable:
                    unknown = True
                    self._not_answered()
                    await self._back_off(attempt)
                except MagnetarError as error:
                    if unknown:  # an earlier attempt may have landed
                        raise MetadataUnavailable(
                            f"{operations[0].key} may have been written: {error}"
                        ) from error
                    raise
        raise MetadataUnavailable(f"{operations[0].key} could not be written")

    async def _written(self, operations: Sequence[Operation], checks: tuple[Check, ...]) -> int:
        store, first = self._context.store, operations[0]
        if not checks and len(operations) == 1 and isinstance(first, Put):
            return await store.put(first.key, first.value, expected=first.expected)
        return await store.transact([*operations, *checks])

    async def create(
        self,
        properties: dict[str, str],
        put: Callable[[int], Put],
        quorums: Quorums | None = None,
    ) -> Created:
        """Creates a ledger and the record that `put` returns for its id. Raises as `write` does."""
        unknown = False
        puts: dict[int, Put] = {}
        with self._transaction():
            for attempt in range(WRITE_ATTEMPTS_MAX):
                checks = await self._checks()

                def with_ledger(
                    ledger_id: int, checks: tuple[Check, ...] = checks
                ) -> Sequence[Operation]:
                    self.check()  # the client itself repeats an attempt without an answer
                    puts[ledger_id] = put(ledger_id)
                    return [puts[ledger_id], *checks]

                try:
                    writer = await self._context.ledgers.create(
                        properties | self._placement,
                        with_ledger=with_ledger,
                        quorums=quorums,
                    )
                except BadRevision as error:
                    if await self._claim_moved(checks, error):
                        continue
                    for ledger_id, planned in puts.items() if unknown else ():
                        if (revision := await self._landed([planned])) is not None:
                            return Created(None, ledger_id, revision)
                    raise self._refused(checks, error) from error
                except MetadataUnavailable:
                    unknown = True
                    self._not_answered()
                    await self._back_off(attempt)
                else:
                    return Created(writer, writer.ledger_id, writer.revision)
        raise MetadataUnavailable(f"no ledger could be created for {self.name}")

    @property
    def _placement(self) -> dict[str, str]:
        return self.placement if self._parent is None else self._parent.placement

    async def _checks(self) -> tuple[Check, ...]:
        """Returns the checks of the next transaction."""
        self.check()
        grant = await self._context.guard(self.name)
        self.check()  # the guard may have waited for a split
        if grant.origin != self._origin:
            raise ManagedLedgerFenced(
                f"{self.name} was claimed anew since this instance was opened: open it again"
            )
        return grant.checks

    async def _claim_moved(self, checks: tuple[Check, ...], error: BadRevision) -> bool:
        """Whether the claim's check failed only because its bundle was split meanwhile."""
        return any(check.key == error.key for check in checks) and await self._checks() != checks

    def _refused(self, checks: tuple[Check, ...], error: BadRevision) -> BadRevision:
        """Returns the error, or raises ManagedLedgerFenced if the claim was lost."""
        if any(check.key == error.key for check in checks):
            raise ManagedLedgerFenced(f"{self.name} is not owned here any more: {error}") from error
        return error

    async def _landed(self, operations: Sequence[Operation]) -> int | None:
        """Returns the revision of an unanswered write if the store has it, else None."""
        for attempt in range(WRITE_ATTEMPTS_MAX):
            self.check()
            try:
                for operation in operations:
                    if isinstance(operation, Check):
                        continue
                    record = await self._context.store.get(operation.key)
                    if isinstance(operation, Put):
                        if record is None or record.value != operation.value:
                            return None
                        return record.revision
                return 0 if record is None else None  # a deletion only
            except MetadataUnavailable:
                await self._back_off(attempt)
        raise MetadataUnavailable(f"{operations[0].key} could not be read again")

    async def _back_off(self, attempt: int) -> None:
        rng = self._context.rng
        await asyncio.sleep(backoff_s(attempt + 1, RETRY_S_MIN, RETRY_S_MAX, rng))
