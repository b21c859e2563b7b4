"""Replicates one under-replicated ledger: copies its entries, then changes its record.

`restore` reads the record, takes one step, and reads the record again, until no step is left, so it
never acts on a stale record. For each closed ensemble that lacks copies, it copies the entries to
new bookies, proves them there, and only then puts these bookies into the ensemble by one
compare-and-swap. If the compare fails, `restore` starts again from the current record.

Only the writer of an open ledger changes its last ensemble. If no writer has replaced the lost
bookie within the grace time, `restore` closes the ledger by recovery. Recovery fences, so no
receipted entry is above the end, and a living writer continues in another ledger. A bookie that is
gone stays in the record for the entries that only it has. If the ledger was deleted meanwhile, its
new copies are deleted.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from magnetar.autorecovery.answers import PASSING, bookie_text
from magnetar.autorecovery.check.repairer import Repairer
from magnetar.autorecovery.copier import Copier, CopyResult
from magnetar.autorecovery.members import BookieState, Members, MemberWatch
from magnetar.autorecovery.records import Answer, UnderReplicated, merge_lost
from magnetar.autorecovery.repair.assessment import (
    Assessment,
    Lacking,
    assess,
    target_for,
)
from magnetar.autorecovery.repair.next_step import Outcome, OutcomeKind, remaining_ms
from magnetar.autorecovery.repair.replacement import (
    copy_tasks,
    is_abandoned,
    ranges,
    replace_bookies,
)
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.core.clock import Clock
from magnetar.core.errors import PersistenceError
from magnetar.core.log import get_logger
from magnetar.ledger.affinity import affinity_of, excluding_others
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerMetadata, decode, ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision, Check, MetadataStore, Put

SWAPS_LOST_MAX: Final = 8
ROUNDS_MAX: Final = 4096
TARGETS_TRIED_MAX: Final = 3
CLOSE_TIMEOUT_S: Final = 120.0

CheckLock = Callable[[], Check]
"""Returns the lock's check for a transaction; raises LockLost."""

log = get_logger("magnetar.autorecovery")


@dataclass(slots=True)
class _Attempt:
    """The progress of one call of `restore`."""

    record: UnderReplicated
    check_lock: CheckLock
    entries: int = 0
    bytes: int = 0
    changed: bool = False
    """Whether the ledger's record was changed."""
    swaps_lost: int = 0
    lost: dict[int, tuple[Answer, ...]] = field(default_factory=dict)
    """The answers about each lost entry, by its id."""
    abandoned: dict[int, int] = field(default_factory=dict)
    """Ranges (first: last) that this attempt does not try again."""
    no_target: str = ""
    """Which bookies have no replacement; empty if none was missing."""
    failed: str = ""
    touched: set[BookieIdentity] = field(default_factory=set)
    """Bookies to which entries were copied."""

    def outcome(self, kind: OutcomeKind, detail: str = "", wait_ms: int = 0) -> Outcome:
        """Returns an outcome with the amounts of this attempt."""
        lost = merge_lost(sorted(self.lost.items())) if kind is OutcomeKind.LOST else ()
        return Outcome(kind, detail, lost, wait_ms, self.entries, self.bytes)


class Replicator:
    """Restores the copies of ledgers; a node has one replicator for all ledgers."""

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

    async def restore(self, record: UnderReplicated, check_lock: CheckLock) -> Outcome:
        """Makes one attempt at a ledger. Raises MetadataError if the store fails, and LockLost."""
        attempt = _Attempt(record, check_lock)
        key = ledger_key(record.ledger_id)
        for _ in range(ROUNDS_MAX):
            check_lock()
            stored = await self._store.get(key)
            if stored is None:
                await self._delete_copies(attempt)
                return attempt.outcome(OutcomeKind.DELETED)
            metadata = decode(key, stored.value)
            members = self._members.observe()
            assessment = assess(metadata, members)
            grace_ms = remaining_ms(record.grace_until_ms, self._clock.now_ms(), self._settings)
            if assessment.needs_end and grace_ms <= 0:
                problem = await self._close(record.ledger_id)
                if problem:
                    return attempt.outcome(OutcomeKind.FAILED, problem)
                attempt.changed = True
                continue
            if await self._restore_part(metadata, stored.revision, assessment, members, attempt):
                if attempt.swaps_lost < SWAPS_LOST_MAX:
                    continue
                return attempt.outcome(OutcomeKind.FAILED, "its record kept changing")
            if assessment.needs_end:
                wait = "its writer may still replace the lost bookie"
                return attempt.outcome(OutcomeKind.WAITS, wait, grace_ms)
            return await self._conclude(metadata, assessment, attempt)
        return attempt.outcome(OutcomeKind.FAILED, f"not done in {ROUNDS_MAX} rounds")

    async def _conclude(
        self, metadata: LedgerMetadata, assessment: Assessment, attempt: _Attempt
    ) -> Outcome:
        """Returns the outcome once no ensemble is left to restore.

        If the record requires it, first proves all copies and rewrites wrong ones.
        """
        if attempt.record.prove and not attempt.failed:
            repaired = await self._repairer.repair(metadata, attempt.check_lock)
            attempt.entries += repaired.copied.entries
            attempt.bytes += repaired.copied.bytes
            members = self._members.observe()
            uncertain = (entry for entry in repaired.hopeless if _may_exist(entry[1], members))
            first = next(uncertain, None)
            if first is None:
                attempt.lost.update(repaired.hopeless)
            else:
                attempt.failed = _unread(*first)
            attempt.failed = attempt.failed or repaired.failed
        if attempt.failed:
            return attempt.outcome(OutcomeKind.FAILED, attempt.failed)
        if attempt.lost:
            entries = len(attempt.lost)
            return attempt.outcome(OutcomeKind.LOST, f"{entries} entries have no copy left")
        if assessment.waiting:
            wait_ms = int(self._settings.lost_bookie_delay_s * 1000)
            return attempt.outcome(OutcomeKind.WAITS, "; ".join(assessment.reasons), wait_ms)
        if attempt.no_target:
            return attempt.outcome(OutcomeKind.NO_TARGET, attempt.no_target)
        changed = attempt.changed or attempt.entries
        return attempt.outcome(OutcomeKind.REPAIRED if changed else OutcomeKind.HEALTHY)

    async def _restore_part(
        self,
        metadata: LedgerMetadata,
        revision: int,
        assessment: Assessment,
        members: Members,
        attempt: _Attempt,
    ) -> bool:
        """Restores the first ensemble that it can; returns False if there is none."""
        for lacking in assessment.closed_parts:
            if is_abandoned(lacking.part, attempt.abandoned):
                continue
            changed = await self._copy_part(metadata, lacking, members, attempt)
            if changed is None:
                attempt.abandoned[lacking.part.first] = lacking.part.last
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
        """Copies one ensemble; returns the changed record, or None if nothing can be changed."""
        part = lacking.part
        refused: dict[BookieIdentity, str] = {}
        for _ in range(TARGETS_TRIED_MAX):
            left_out = excluding_others(
                list(members.living.values()),
                affinity_of(metadata.properties),
                lacking.size_wanted,
                refused,
            )
            target = target_for(lacking, members, self._rng, left_out)
            if target == part.bookies:
                break
            result = CopyResult()
            for window in copy_tasks(metadata, part, target, members):
                attempt.check_lock()
                await self._copier.copy(metadata.ledger_id, window, part.last, result)
                if result.refused:
                    break
            attempt.entries += result.entries
            attempt.bytes += result.bytes
            attempt.touched |= result.touched
            if result.refused:
                refused.update(result.refused)
                continue
            return self._after_copy(metadata, lacking, target, result, members, attempt)
        names = ", ".join(bookie_text(identity) for identity in lacking.lost) or "more copies"
        if refused:
            problems = "; ".join(
                f"{bookie_text(identity)}: {problem}" for identity, problem in refused.items()
            )
            attempt.failed = f"the replacements for {names} failed: {problems}"
        else:
            attempt.no_target = f"no bookie can replace {names}"
        return None

    def _after_copy(
        self,
        metadata: LedgerMetadata,
        lacking: Lacking,
        target: tuple[BookieIdentity, ...],
        result: CopyResult,
        members: Members,
        attempt: _Attempt,
    ) -> LedgerMetadata | None:
        """Returns the record with the target, which has proven all entries that any source has.

        Returns None if a source that did not answer may have an entry that is missing.
        """
        for entry_id, answers in result.lost:
            if _may_exist(answers, members):
                attempt.failed = _unread(entry_id, answers)
                return None
        attempt.lost.update(result.lost)
        lost = ranges([entry_id for entry_id, _ in result.lost])
        attempt.abandoned.update(lost)
        return replace_bookies(metadata, lacking.part, target, lost)

    async def _swap(
        self, ledger_id: int, changed: LedgerMetadata, revision: int, attempt: _Attempt
    ) -> None:
        """Writes the record if it is still at `revision`; otherwise counts a lost swap."""
        key = ledger_key(ledger_id)
        try:
            await self._store.transact([attempt.check_lock(), Put(key, encode(changed), revision)])
        except BadRevision as error:
            if error.key != key:
                raise
            attempt.swaps_lost += 1
        else:
            attempt.changed = True

    async def _close(self, ledger_id: int) -> str:
        """Closes an open ledger by recovery; returns the problem, or an empty text."""
        log.info("closing an open ledger whose writer did not replace a bookie", ledger=ledger_id)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._client.open(ledger_id, recover=True)
        except TimeoutError:
            return f"it could not be closed within {CLOSE_TIMEOUT_S:g} s"
        except PersistenceError as error:
            return f"it could not be closed: {error}"
        return ""

    async def _delete_copies(self, attempt: _Attempt) -> None:
        """Deletes the copies that the attempt made: the ledger was deleted."""
        for identity in sorted(attempt.touched):
            bookie = self._bookies.get(identity)
            if bookie is None:
                continue
            try:
                async with asyncio.timeout(self._settings.request_timeout_s):
                    await bookie.delete_ledger(attempt.record.ledger_id)
            except (BookieError, TimeoutError) as error:
                log.info(
                    "copy of a deleted ledger left to the bookie's garbage collection",
                    bookie=identity.bookie_id,
                    error=str(error),
                )


def _may_exist(answers: Sequence[Answer], members: Members) -> bool:
    """Whether a bookie that could not answer, and is not gone, may still have a copy."""
    return any(
        members.state_of(answer.bookie) is BookieState.AWAY
        or (members.state_of(answer.bookie) is not BookieState.GONE and answer.text in PASSING)
        for answer in answers
    )


def _unread(entry_id: int, answers: Sequence[Answer]) -> str:
    texts = ", ".join(f"{bookie_text(answer.bookie)}: {answer.text}" for answer in answers)
    return f"entry {entry_id} could not be read: {texts}"
