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

A write whose outcome is unknown (MetadataUnavailable) is repeated: being a compare-and-swap it
lands once at most. Where the repetition finds the record changed, and to the very bytes that were
to be written, it was the first attempt that landed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.ledger.settings import Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.metadata.store import BadRevision, Check, MetadataUnavailable, Operation, Put

if TYPE_CHECKING:
    from magnetar.managed_ledger.context import Context

Guard = Callable[[str], Awaitable[tuple[Check, ...]]]
"""From a managed ledger's name to what must hold for its owner to write.

Raises ManagedLedgerFenced where this process does not own it. Waits while the claim is being
exchanged for another of this process (its bundle is being split).
"""

WRITE_ATTEMPTS_MAX: Final = 6
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 1.0


async def unguarded(_name: str) -> tuple[Check, ...]:
    """Where there is only one process."""
    return ()


async def check_claim(context: "Context", name: str) -> None:
    """Raises ManagedLedgerFenced where the store does not have this process's claim now.

    Before ledgers are fenced: one that was paused must not get in the way of the new owner.
    """
    for check in await context.guard(name):
        record = await context.store.get(check.key)
        if record is None or record.revision != check.expected:
            raise ManagedLedgerFenced(f"{name} is not owned here any more")


@dataclass(frozen=True, slots=True)
class Created:
    """A ledger, and the record that names it, written together.

    Without a writer where it is known only afterwards that it was created: nothing will ever be in
    it, and its id is to be retired.
    """

    writer: LedgerWriter | None
    ledger_id: int
    revision: int


async def write_guarded(context: "Context", name: str, operations: Sequence[Operation]) -> int:
    """One transaction of `operations`, each with an expected revision; its revision.

    Raises BadRevision of one of their keys, and ManagedLedgerFenced where the claim is gone.
    """
    unknown = False
    for attempt in range(WRITE_ATTEMPTS_MAX):
        checks = await context.guard(name)
        try:
            return await _written(context, operations, checks)
        except BadRevision as error:
            if await _claim_moved(context, name, checks, error):
                continue
            if unknown and (revision := await _landed(context, operations)) is not None:
                return revision
            raise _told(name, checks, error) from error
        except MetadataUnavailable:
            unknown = True
            await _back_off(context, attempt)
    raise MetadataUnavailable(f"{operations[0].key} could not be written")


async def _written(
    context: "Context", operations: Sequence[Operation], checks: tuple[Check, ...]
) -> int:
    first = operations[0]
    if not checks and len(operations) == 1 and isinstance(first, Put):
        return await context.store.put(first.key, first.value, expected=first.expected)
    return await context.store.transact([*operations, *checks])


async def create_guarded(
    context: "Context",
    name: str,
    properties: dict[str, str],
    put: Callable[[int], Put],
    quorums: Quorums | None = None,
) -> Created:
    """A new ledger, with the record that `put` makes of its id. Raises as `write_guarded` does."""
    unknown = False
    puts: dict[int, Put] = {}
    for attempt in range(WRITE_ATTEMPTS_MAX):
        checks = await context.guard(name)

        def with_ledger(ledger_id: int, checks: tuple[Check, ...] = checks) -> Sequence[Operation]:
            puts[ledger_id] = put(ledger_id)
            return [puts[ledger_id], *checks]

        try:
            writer = await context.ledgers.create(
                properties, with_ledger=with_ledger, quorums=quorums
            )
        except BadRevision as error:
            if await _claim_moved(context, name, checks, error):
                continue
            for ledger_id, planned in puts.items() if unknown else ():
                if (revision := await _landed(context, [planned])) is not None:
                    return Created(None, ledger_id, revision)
            raise _told(name, checks, error) from error
        except MetadataUnavailable:
            unknown = True
            await _back_off(context, attempt)
        else:
            return Created(writer, writer.ledger_id, writer.revision)
    raise MetadataUnavailable(f"no ledger could be created for {name}")


async def _claim_moved(
    context: "Context", name: str, checks: tuple[Check, ...], error: BadRevision
) -> bool:
    """Whether it was the claim that did not fit, and there is another one by now."""
    return any(check.key == error.key for check in checks) and await context.guard(name) != checks


def _told(name: str, checks: tuple[Check, ...], error: BadRevision) -> BadRevision:
    if any(check.key == error.key for check in checks):
        raise ManagedLedgerFenced(f"{name} is not owned here any more: {error}") from error
    return error


async def _landed(context: "Context", operations: Sequence[Operation]) -> int | None:
    """The revision at which the store holds what was to be written, if it does."""
    for attempt in range(WRITE_ATTEMPTS_MAX):
        try:
            for operation in operations:
                record = await context.store.get(operation.key)
                if isinstance(operation, Put):
                    matches = record is not None and record.value == operation.value
                    return record.revision if matches and record is not None else None
            return 0 if record is None else None  # nothing but a delete
        except MetadataUnavailable:
            await _back_off(context, attempt)
    raise MetadataUnavailable(f"{operations[0].key} could not be read again")


async def _back_off(context: "Context", attempt: int) -> None:
    bound = min(RETRY_S_MIN * 2**attempt, RETRY_S_MAX)
    await asyncio.sleep(bound * context.rng.uniform(0.5, 1.0))
