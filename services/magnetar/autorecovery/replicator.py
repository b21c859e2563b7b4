"""Makes one ledger whole: copies what it lacks, then changes its record by compare-and-swap.

`restore` looks at the record, does one thing about it, and looks again, until nothing is left that
it can do; so it never acts on what it remembers. For every ensemble that can be put right: entries
are copied to the bookies that should have them and proven there, and only then does one
compare-and-swap put those bookies into the ensemble. Whoever loses it looks again from the start.

An open ledger's last ensemble belongs to its writer. Only where no writer has put it right within
the grace time is the ledger ended by recovery, which fences: no receipted entry can be above the
end then, and a writer that lives goes on in another ledger. Nothing of a bookie that is gone is
taken out of the record while an entry is only there. A ledger that was deleted meanwhile is deleted
on the bookies that it was copied to.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from magnetar.autorecovery.asking import PASSING
from magnetar.autorecovery.assess import Assessment, Lacking, assess, shown, target_for
from magnetar.autorecovery.copying import Copied, Copier
from magnetar.autorecovery.members import Members, MemberWatch, Standing
from magnetar.autorecovery.next_step import Outcome, OutcomeKind, left_ms
from magnetar.autorecovery.records import Answer, UnderReplicated, merge_lost
from magnetar.autorecovery.repairing import Repairer
from magnetar.autorecovery.replacing import inside, needs, ranges, with_replaced
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.core.clock import Clock
from magnetar.core.errors import PersistenceError
from magnetar.core.log import get_logger
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerMetadata, decode, encode, ledger_key
from magnetar.metadata.store import ABSENT, BadRevision, Check, MetadataStore, Put

SWAPS_LOST_MAX: Final = 8
ROUNDS_MAX: Final = 4096
TARGETS_TRIED_MAX: Final = 3
END_TIMEOUT_S: Final = 120.0

Holding = Callable[[], Check]
"""The lock's check; raises LockLost where it is not held any more."""

log = get_logger("magnetar.autorecovery")


@dataclass(slots=True)
class _Attempt:
    """What one call of `restore` has done so far."""

    record: UnderReplicated
    holding: Holding
    entries: int = 0
    bytes: int = 0
    changes: int = 0
    swaps_lost: int = 0
    lost: list[tuple[int, tuple[Answer, ...]]] = field(default_factory=list)
    given_up: dict[int, int] = field(default_factory=dict)
    """Ranges (first: last) that nothing more can be done about in this attempt."""
    no_target: str = ""
    failed: str = ""
    touched: set[BookieIdentity] = field(default_factory=set)

    def done(self, kind: OutcomeKind, detail: str = "", wait_ms: int = 0) -> Outcome:
        lost = merge_lost(self.lost) if kind is OutcomeKind.LOST else ()
        return Outcome(kind, detail, lost, wait_ms, self.entries, self.bytes)


class Replicator:
    """See the module's text. One for each node."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieSet,
        client: LedgerClient,
        members: MemberWatch,
        copier: Copier,
        repairer: Repairer,
        clock: Clock,
        settings: AutorecoverySettings,
        rng: Random,
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._client = client
        self._members = members
        self._copier = copier
        self._repairer = repairer
        self._clock = clock
        self._settings = settings
        self._rng = rng

    async def restore(self, record: UnderReplicated, holding: Holding) -> Outcome:
        """One attempt at one ledger. Raises MetadataError where the store fails."""
        attempt = _Attempt(record, holding)
        key = ledger_key(record.ledger_id)
        for _ in range(ROUNDS_MAX):
            holding()
            stored = await self._store.get(key)
            if stored is None:
                await self._forget(attempt)
                return attempt.done(OutcomeKind.DELETED)
            metadata = decode(key, stored.value)
            members = self._members.look()
            found = assess(metadata, members)
            grace_ms = left_ms(record.grace_until_ms, self._clock.now_ms(), self._settings)
            if found.needs_end and grace_ms <= 0:
                problem = await self._end(record.ledger_id)
                if problem:
                    return attempt.done(OutcomeKind.FAILED, problem)
                attempt.changes += 1
                continue
            if await self._copy_one(metadata, stored.revision, found, members, attempt):
                if attempt.swaps_lost < SWAPS_LOST_MAX:
                    continue
                return attempt.done(OutcomeKind.FAILED, "its record kept changing")
            if found.needs_end:
                wait = "its writer may put it right itself"
                return attempt.done(OutcomeKind.WAITS, wait, max(1, grace_ms))
            return await self._conclude(metadata, found, attempt)
        return attempt.done(OutcomeKind.FAILED, f"not done in {ROUNDS_MAX} rounds")

    async def _conclude(
        self, metadata: LedgerMetadata, found: Assessment, attempt: _Attempt
    ) -> Outcome:
        """Nothing more can be copied by the record: what is left to say of it."""
        if attempt.record.prove and not (attempt.lost or attempt.failed):
            repaired = await self._repairer.repair(metadata, attempt.holding)
            attempt.entries += repaired.copied.entries
            attempt.bytes += repaired.copied.bytes
            members = self._members.look()
            late = (one for one in repaired.hopeless if _may_yet_come(one[1], members))
            unsure = next(late, None)
            if unsure is None:
                attempt.lost += repaired.hopeless
            else:
                attempt.failed = _unread(*unsure)
            attempt.failed = attempt.failed or repaired.failed
        if attempt.failed:
            return attempt.done(OutcomeKind.FAILED, attempt.failed)
        if attempt.lost:
            entries = len(attempt.lost)
            return attempt.done(OutcomeKind.LOST, f"{entries} entries have no copy left")
        if found.waiting:
            wait_ms = int(self._settings.lost_bookie_delay_s * 1000)
            return attempt.done(OutcomeKind.WAITS, "; ".join(found.reasons), max(1, wait_ms))
        if attempt.no_target:
            return attempt.done(OutcomeKind.NO_TARGET, attempt.no_target)
        changed = attempt.changes or attempt.entries
        return attempt.done(OutcomeKind.REPAIRED if changed else OutcomeKind.HEALTHY)

    async def _copy_one(
        self,
        metadata: LedgerMetadata,
        revision: int,
        found: Assessment,
        members: Members,
        attempt: _Attempt,
    ) -> bool:
        """Puts one ensemble right; whether the record is to be looked at again."""
        for lacking in found.closed_parts:
            if inside(lacking.part, attempt.given_up):
                continue
            changed = await self._copy_part(metadata, lacking, members, attempt)
            if changed is None:
                attempt.given_up[lacking.part.first] = lacking.part.last
                continue
            await self._swap(metadata.ledger_id, changed, revision, attempt)
            return True
        return False

    async def _copy_part(
        self,
        metadata: LedgerMetadata,
        lacking: Lacking,
        members: Members,
        attempt: _Attempt,
    ) -> LedgerMetadata | None:
        """The record as it may stand once this returns; None where nothing can be changed."""
        part = lacking.part
        refused: dict[BookieIdentity, str] = {}
        for _ in range(TARGETS_TRIED_MAX):
            target = target_for(lacking, members, self._rng, refused)
            if target == part.bookies:
                break
            done = Copied()
            for window in needs(metadata, part, target, members):
                attempt.holding()
                await self._copier.copy(metadata.ledger_id, window, part.last, done)
                if done.refused:
                    break
            attempt.entries += done.entries
            attempt.bytes += done.bytes
            attempt.touched |= done.touched
            if done.refused:
                refused.update(done.refused)
                continue
            return self._after_copy(metadata, lacking, target, done, members, attempt)
        names = ", ".join(shown(one) for one in lacking.lost) or "more copies"
        if refused:
            said = "; ".join(f"{shown(one)}: {text}" for one, text in refused.items())
            attempt.failed = f"those that were to stand in for {names} failed: {said}"
        else:
            attempt.no_target = f"no bookie can stand in for {names}"
        return None

    def _after_copy(
        self,
        metadata: LedgerMetadata,
        lacking: Lacking,
        target: tuple[BookieIdentity, ...],
        done: Copied,
        members: Members,
        attempt: _Attempt,
    ) -> LedgerMetadata | None:
        """Everything that some bookie has is proven on the target; the rest is lost, or late."""
        for entry_id, answers in done.lost:
            if _may_yet_come(answers, members):
                attempt.failed = _unread(entry_id, answers)
                return None
        attempt.lost += done.lost
        lost = ranges([entry_id for entry_id, _ in done.lost])
        attempt.given_up.update(lost)
        return with_replaced(metadata, lacking.part, target, lost)

    async def _swap(
        self, ledger_id: int, changed: LedgerMetadata, revision: int, attempt: _Attempt
    ) -> None:
        """Writes the record, if it is still as it was."""
        key = ledger_key(ledger_id)
        try:
            await self._store.transact([attempt.holding(), Put(key, encode(changed), revision)])
        except BadRevision as error:
            if error.key != key:
                raise
            if error.actual != ABSENT:
                attempt.swaps_lost += 1
        else:
            attempt.changes += 1

    async def _end(self, ledger_id: int) -> str:
        """Ends a ledger whose writer did not; what went wrong, if anything."""
        log.info("ending a ledger whose writer left it open", ledger=ledger_id)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._client.open(ledger_id, recover=True)
        except TimeoutError:
            return f"it could not be ended within {END_TIMEOUT_S:g} s"
        except PersistenceError as error:
            return f"it could not be ended: {error}"
        return ""

    async def _forget(self, attempt: _Attempt) -> None:
        """The ledger is gone: so goes what was copied of it."""
        for identity in sorted(attempt.touched):
            bookie = self._bookies.get(identity)
            if bookie is None:
                continue
            try:
                async with asyncio.timeout(self._settings.request_timeout_s):
                    await bookie.delete_ledger(attempt.record.ledger_id)
            except (BookieError, TimeoutError) as error:
                # The search for orphans finds it.
                log.info("copy left behind", bookie=identity.bookie_id, error=str(error))


def _may_yet_come(answers: Sequence[Answer], members: Members) -> bool:
    """Whether one that said nothing of its copy may have it. One that is gone for good may be late
    or silent: that is no reason to wait."""
    return any(
        members.standing(one.bookie) is Standing.AWAY
        or (members.standing(one.bookie) is not Standing.GONE and one.said in PASSING)
        for one in answers
    )


def _unread(entry_id: int, answers: Sequence[Answer]) -> str:
    said = ", ".join(f"{shown(one.bookie)}: {one.said}" for one in answers)
    return f"entry {entry_id} could not be read: {said}"
