"""Writes of a managed ledger's records that only the topic's owner can make.

In a cluster a topic belongs to a bundle, and a broker owns a bundle by a record in the metadata
store. The guard of a context (`Guard`) names that record at the revision of this process's claim,
and every write here is one transaction with it: it lands only while the claim stands. Standalone
has no guard: nobody else could own anything.

Why an owner that was paused, and lost its claim meanwhile, does no harm whatever it goes on to do:

1. Once another's claim is in the store, no transaction of the old owner lands any more: each one
   checks a revision that will never be again. So from then on the managed ledger's record and its
   cursors' records are changed by the new owner alone, and it reads them after its claim.
2. What the old owner may still write to without the store's consent are the ledgers that it had
   open by then: the last of the record's list, and one for each cursor. All of them stand in the
   records that the new owner reads, since a ledger is created in the same transaction that enters
   it there (`LedgerClient.create` with the record's write and the guard). The new owner recovers
   each before it serves the topic, which fences them: what was confirmed, and may have been
   receipted, is read; what was not will never be.
3. A cursor's new ledger counts only once the cursor's record was switched to it, which is another
   guarded write: an ack is receipted after it, or not at all.
4. Idle topics are no exception: until the new owner opens one, the old owner may have writes
   receipted in a ledger that is still open. They are in it, and found by whoever recovers it.
5. Ledgers are deleted after they have left the records, or with a record that was marked deleted
   before, both guarded; ledger ids are never given out twice. So a late deletion takes only what
   nobody has.

A broker may also give a topic up and open it again itself: after an unload, or after its lease was
lost and the bundle claimed anew. The former instance's tasks may still run then, and nothing in the
store tells the two instances apart. `Tenure` does: each instance writes through its own. A tenure
ends with its instance, and every attempt of a write checks it. A tenure is also bound to the claim
that it began with: it follows that claim through splits, and no further. A bundle that was lost and
claimed again has another claim, so an instance from before never writes under the new one. A
transaction that was under way at the end may still land; the next instance therefore changes a
cursor's record before it deletes the ledgers that the record retires (`CursorLog.retire`).

A write whose outcome is unknown (MetadataUnavailable) is repeated: being a compare-and-swap it
lands once at most. Where the repetition finds the record changed, and to the very bytes that were
to be written, it was the first attempt that landed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.core.errors import MagnetarError
from magnetar.ledger.settings import Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.metadata.store import BadRevision, Check, MetadataUnavailable, Operation, Put

if TYPE_CHECKING:
    from magnetar.managed_ledger.context import Context


@dataclass(frozen=True, slots=True)
class Grant:
    """This process's claim of a managed ledger, at this moment.

    `checks` bind a transaction to the claim. `origin` identifies the claim that this process was
    given: it stays the same when the bundle is split, and differs for every later claim.
    """

    origin: Hashable
    checks: tuple[Check, ...]


Guard = Callable[[str], Awaitable[Grant]]
"""From a managed ledger's name to the claim under which its owner writes.

Raises ManagedLedgerFenced if this process does not own it. Waits while the claim is being
exchanged for another of this process (its bundle is being split).
"""

WRITE_ATTEMPTS_MAX: Final = 6
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 1.0

_ALONE: Final = Grant(None, ())


async def unguarded(_name: str) -> Grant:
    """The guard of a process that shares the store with no other."""
    return _ALONE


@dataclass(frozen=True, slots=True)
class Created:
    """A ledger, and the record that names it, written together.

    Without a writer where it is known only afterwards that it was created: nothing will ever be in
    it, and its id is to be retired.
    """

    writer: LedgerWriter | None
    ledger_id: int
    revision: int


class Tenure:
    """The right of one opened instance to write the records of its managed ledger.

    `write` and `create` raise the error given to `end` once the tenure has ended, and
    ManagedLedgerFenced if the claim is not the one that it began with. Each cursor has a branch,
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
    )

    def __init__(
        self, context: "Context", name: str, origin: Hashable, parent: "Tenure | None" = None
    ) -> None:
        self.name = name
        self._context = context
        self._origin = origin
        self._parent = parent
        self._error: MagnetarError | None = None
        self._under_way = 0
        self._idle: asyncio.Event | None = None
        self._answered = True
        self.follows_unanswered = name in context.unanswered
        """Whether a write of an earlier instance of this process may still land. Its claim is this
        one's, so only another revision of the record that it expects keeps it out."""

    @classmethod
    async def begin(cls, context: "Context", name: str) -> "Tenure":
        """A tenure under the present claim. Raises ManagedLedgerFenced if there is none."""
        return cls(context, name, (await context.guard(name)).origin)

    def branch(self) -> "Tenure":
        """The tenure of one cursor."""
        return Tenure(self._context, self.name, self._origin, self)

    # -- its end

    @property
    def error(self) -> MagnetarError | None:
        """Why nothing may be written any more; None while writes are allowed."""
        if self._error is None and self._parent is not None:
            return self._parent.error
        return self._error

    def end(self, error: MagnetarError) -> None:
        """No write begins, and none is repeated, from now on. The first error stays."""
        if self._error is None:
            self._error = error

    def resume(self) -> None:
        """Undoes `end` of a branch: its cursor was not deleted."""
        self._error = None

    def check(self) -> None:
        """Raises the error of the end, if the tenure has ended."""
        if (error := self.error) is not None:
            raise error.with_traceback(None)  # it is raised often, and keeps its frames

    async def holds(self) -> bool:
        """Whether this process has the claim that the tenure began with, and it has not ended.

        Raises ManagedLedgerFenced if this process does not own the managed ledger.
        """
        origin = (await self._context.guard(self.name)).origin
        return self.error is None and origin == self._origin

    async def settled(self) -> None:
        """Returns when no transaction of this tenure or of its branches is under way.

        Call it after `end`. The store's own timeouts bound the wait.
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

    # -- writing

    async def confirm(self) -> None:
        """Raises ManagedLedgerFenced if the store does not have this claim now.

        Call it before a ledger is fenced: a process that was paused must not disturb a new owner.
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
        """One transaction of `operations`, each with an expected revision; its revision.

        Raises BadRevision of one of their keys, ManagedLedgerFenced if the claim is gone, and
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
                    raise self._told(checks, error) from error
                except MetadataUnavailable:
                    unknown = True
                    self._not_answered()
                    await self._back_off(attempt)
                except MagnetarError as error:
                    if unknown:  # the earlier attempt may have landed
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
        """A new ledger, with the record that `put` makes of its id. Raises as `write` does."""
        unknown = False
        puts: dict[int, Put] = {}
        with self._transaction():
            for attempt in range(WRITE_ATTEMPTS_MAX):
                checks = await self._checks()

                def with_ledger(
                    ledger_id: int, checks: tuple[Check, ...] = checks
                ) -> Sequence[Operation]:
                    self.check()  # the client repeats an unanswered attempt by itself
                    puts[ledger_id] = put(ledger_id)
                    return [puts[ledger_id], *checks]

                try:
                    writer = await self._context.ledgers.create(
                        properties, with_ledger=with_ledger, quorums=quorums
                    )
                except BadRevision as error:
                    if await self._claim_moved(checks, error):
                        continue
                    for ledger_id, planned in puts.items() if unknown else ():
                        if (revision := await self._landed([planned])) is not None:
                            return Created(None, ledger_id, revision)
                    raise self._told(checks, error) from error
                except MetadataUnavailable:
                    unknown = True
                    self._not_answered()
                    await self._back_off(attempt)
                else:
                    return Created(writer, writer.ledger_id, writer.revision)
        raise MetadataUnavailable(f"no ledger could be created for {self.name}")

    # -- the claim

    async def _checks(self) -> tuple[Check, ...]:
        """What the next transaction checks."""
        self.check()
        grant = await self._context.guard(self.name)
        self.check()  # the guard may have waited for a split
        if grant.origin != self._origin:
            raise ManagedLedgerFenced(
                f"{self.name} was claimed anew since this instance was opened: open it again"
            )
        return grant.checks

    async def _claim_moved(self, checks: tuple[Check, ...], error: BadRevision) -> bool:
        """Whether the claim did not fit, because its bundle was split meanwhile."""
        return any(check.key == error.key for check in checks) and await self._checks() != checks

    def _told(self, checks: tuple[Check, ...], error: BadRevision) -> BadRevision:
        if any(check.key == error.key for check in checks):
            raise ManagedLedgerFenced(f"{self.name} is not owned here any more: {error}") from error
        return error

    # -- unknown outcomes

    async def _landed(self, operations: Sequence[Operation]) -> int | None:
        """The revision at which the store holds what was to be written, if it does."""
        for attempt in range(WRITE_ATTEMPTS_MAX):
            self.check()
            try:
                for operation in operations:
                    if isinstance(operation, Check):
                        continue
                    record = await self._context.store.get(operation.key)
                    if isinstance(operation, Put):
                        matches = record is not None and record.value == operation.value
                        return record.revision if matches and record is not None else None
                return 0 if record is None else None  # nothing but a delete
            except MetadataUnavailable:
                await self._back_off(attempt)
        raise MetadataUnavailable(f"{operations[0].key} could not be read again")

    async def _back_off(self, attempt: int) -> None:
        bound = min(RETRY_S_MIN * 2**attempt, RETRY_S_MAX)
        await asyncio.sleep(bound * self._context.rng.uniform(0.5, 1.0))
