"""Closes a ledger whose writer may be gone, such that all processes agree on its last entry.

Each step may be repeated, and may run concurrently with other recoveries:

1. Revoke the writer's right to change the record: OPEN to IN_RECOVERY, by compare-and-swap.
2. Fence the bookies of the last ensemble until no write set has an ack quorum of unfenced bookies
   (`quorum.fence_covers`). The highest last-add-confirmed they report is a lower bound of the end.
3. Read on from there, with reads that fence as well (BookKeeper #2614), from the whole write set at
   once. An entry that any bookie has is stored on the rest of its write set before it counts. The
   end is where enough bookies are certain that there is no entry (`quorum.absence_needs`). If
   neither is possible, the end cannot be determined: RecoveryFailed, and the ledger stays in
   recovery.
4. Write CLOSED with that end and length, by compare-and-swap. A recovery that loses it reads the
   record again: the winner's result is right as well.

If a bookie fails while entries are stored, it is replaced or left out from that entry on. The new
ensembles stay in memory until step 4 writes them, when all entries are there. If they were written
earlier, a second recovery would ask bookies that have nothing yet, and cut the ledger short.

An entry whose remaining copies are all damaged was stored, and may have been confirmed: it stays
part of the ledger, and its readers get an error.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    EntryCorrupt,
    EntryUnknown,
    LedgerEnd,
    NoSuchEntry,
    StoredEntry,
)
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskScope
from magnetar.ledger.affinity import affinity_of, excluding_others
from magnetar.ledger.bookie_calls import ask_end, ask_entries, ask_to_store
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.length import Lengths
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.placement import choose_more
from magnetar.ledger.quorum import (
    absence_needs,
    fence_covers,
    run_last,
    with_ensemble,
    write_set,
)
from magnetar.ledger.records import RecordChanged, swap

RECOVERY_ATTEMPTS_MAX: Final = 16
READ_BYTES: Final = 4 << 20
OTHERS_WAIT_S: Final = 0.05
"""Wait for the other copies once one has answered: a bookie with the entry is not sent it again."""
REPLACEMENTS_MAX: Final = 16
"""Ensembles tried for one run of entries."""

log = get_logger("magnetar.ledger.recovery")


async def recover_ledger(
    context: LedgerContext, metadata: LedgerMetadata, revision: int
) -> LedgerMetadata:
    """Returns the ledger, CLOSED by this call or a concurrent one. Raises RecoveryFailed."""
    ledger_id = metadata.ledger_id
    try:
        async with asyncio.timeout(context.settings.recovery_timeout_s):
            for _ in range(RECOVERY_ATTEMPTS_MAX):
                if metadata.state is LedgerState.CLOSED:
                    return metadata
                try:
                    if metadata.state is LedgerState.OPEN:
                        _check_reachable(context, metadata)
                        metadata = metadata.in_recovery()
                        revision = await swap(context, metadata, revision)
                    closed = await _Recovery(context, metadata).run()
                    await swap(context, closed, revision)
                except RecordChanged as changed:
                    metadata, revision = changed.metadata, changed.revision
                else:
                    return closed
    except TimeoutError:
        raise RecoveryFailed(
            f"ledger {ledger_id} could not be ended within "
            f"{context.settings.recovery_timeout_s:g} s"
        ) from None
    raise MetadataError(
        f"ledger {ledger_id} changed {RECOVERY_ATTEMPTS_MAX} times while it was recovered"
    )


def _check_reachable(context: LedgerContext, metadata: LedgerMetadata) -> None:
    """Raises RecoveryFailed before any change if the ledger certainly cannot be closed now."""
    bookies = metadata.ensembles[-1].bookies
    reachable = {
        slot for slot, identity in enumerate(bookies) if context.bookies.get(identity) is not None
    }
    if not fence_covers(len(bookies), metadata.write_quorum, metadata.ack_quorum, reachable):
        raise _not_fenced(metadata, {})


def _not_fenced(
    metadata: LedgerMetadata, failures: dict[BookieIdentity, BookieError]
) -> RecoveryFailed:
    reasons = [
        f"{identity.bookie_id}: {failures[identity]}"
        if identity in failures
        else f"{identity.bookie_id} incarnation {identity.incarnation} is not here"
        for identity in metadata.ensembles[-1].bookies
    ]
    return RecoveryFailed(
        f"ledger {metadata.ledger_id} cannot be ended: too few of its bookies can be fenced "
        f"({'; '.join(reasons)})"
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of entries and the bookies that have all of it; no entries if it is damaged."""

    entries: list[StoredEntry]
    bookies: set[BookieIdentity]


class _Recovery:
    """One attempt, from the record as of its start."""

    def __init__(self, context: LedgerContext, metadata: LedgerMetadata) -> None:
        self._context = context
        self._metadata = metadata
        self._fragment = metadata.ensembles[-1]
        self._ends: dict[BookieIdentity, LedgerEnd] = {}
        self._lengths = Lengths(context, metadata)
        self._silent: set[BookieIdentity] = set()
        """Bookies that answered later than others; the next reads do not wait for them."""

    async def run(self) -> LedgerMetadata:
        """Returns the closed record to write; raises RecoveryFailed."""
        confirmed = await self._fence()
        metadata = self._metadata
        self._lengths.begin(confirmed, self._ends)
        last = confirmed
        while True:
            run = await self._find(last + 1)
            if run is None:
                break
            if run.entries:
                # Entries on ensembles that no record names yet are not confirmed: if this recovery
                # is interrupted, the next one must read them again.
                bound = last if metadata is self._metadata else confirmed
                metadata = await self._store(metadata, run, bound)
                self._lengths.add(run.entries)
                last = run.entries[-1].entry_id
            else:
                self._lengths.add_harmed()
                last += 1
        length = await self._lengths.until(last)
        return metadata.closed(last, length, self._context.clock.now_ms())

    async def _fence(self) -> int:
        """Fences the bookies; returns the last entry known to be confirmed."""
        metadata, bookies = self._metadata, self._fragment.bookies
        failures: dict[BookieIdentity, BookieError] = {}
        confirmed = self._fragment.first_entry - 1
        fenced: set[int] = set()
        async with TaskScope(f"recovery of ledger {metadata.ledger_id}") as scope:
            tasks = {
                scope.start(
                    ask_end(self._context, metadata.ledger_id, identity, fence=True),
                    f"fence {identity.bookie_id}",
                ): slot
                for slot, identity in enumerate(bookies)
            }
            waiting = set(tasks)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    slot, answer = tasks[task], task.result()
                    if isinstance(answer, LedgerEnd) and answer.fenced:
                        fenced.add(slot)
                        self._ends[bookies[slot]] = answer
                        confirmed = max(confirmed, answer.last_add_confirmed)
                    elif isinstance(answer, BookieError):
                        failures[bookies[slot]] = answer
                if fence_covers(len(bookies), metadata.write_quorum, metadata.ack_quorum, fenced):
                    return confirmed
        raise _not_fenced(metadata, failures)

    async def _find(self, first: int) -> "_Run | None":
        """Reads entries from `first` on: no entries if damaged, None if certainly absent."""
        # The entry is on the write set of the record that the writer left.
        original = self._metadata
        copies = write_set(original, first)
        end = run_last(original, first)
        only = self._ends.get(copies[0]) if len(copies) == 1 else None
        if only is not None and -1 < only.last_entry < first:
            return None  # the only copy ever written: the entry exists nowhere else
        # A bookie without any entry is asked too: it may have dropped its copy (`drop_copies`)
        # after newer metadata placed it elsewhere.
        needed = absence_needs(
            len(self._fragment.bookies), original.write_quorum, original.ack_quorum
        )
        absent, failures = 0, dict[BookieIdentity, BookieError]()
        answers: dict[BookieIdentity, list[StoredEntry]] = {}
        async with TaskScope(f"recovery of ledger {original.ledger_id}") as scope:
            tasks = {
                scope.start(
                    ask_entries(
                        self._context, original.ledger_id, identity, first, end, READ_BYTES
                    ),
                    f"read at {identity.bookie_id}",
                ): identity
                for identity in copies
            }
            waiting = set(tasks)
            while waiting:
                if answers and all(tasks[task] in self._silent for task in waiting):
                    break
                done, waiting = await asyncio.wait(
                    waiting,
                    timeout=OTHERS_WAIT_S if answers else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    answer = task.result()
                    if not isinstance(answer, BookieError):
                        answers[tasks[task]] = answer
                    elif isinstance(answer, NoSuchEntry):
                        absent += 1
                    else:
                        failures[tasks[task]] = answer
                if not done:
                    break
                if absent >= needed and not answers:
                    return None
            self._silent.update(tasks[task] for task in waiting)
        if not answers:
            return self._doubtful(first, failures)
        best = max(answers.values(), key=len)
        return _Run(best, {bookie for bookie, run in answers.items() if len(run) == len(best)})

    def _doubtful(
        self,
        entry_id: int,
        failures: dict[BookieIdentity, BookieError],
    ) -> "_Run":
        """Decides when no bookie returned the entry, and too few deny it."""
        errors = failures.values()
        certain = all(isinstance(error, EntryCorrupt | EntryUnknown) for error in errors)
        if certain and any(isinstance(error, EntryCorrupt) for error in errors):
            return _Run([], set())
        causes = "; ".join(f"{bookie.bookie_id}: {error}" for bookie, error in failures.items())
        raise RecoveryFailed(
            f"whether ledger {self._metadata.ledger_id} has an entry {entry_id} cannot be known "
            f"now, so it is not ended: {causes}"
        )

    async def _store(self, metadata: LedgerMetadata, run: "_Run", confirmed: int) -> LedgerMetadata:
        """Stores a run on its whole write set; returns the record with the bookies that have it."""
        context, ledger_id = self._context, metadata.ledger_id
        first, data = run.entries[0].entry_id, [entry.data for entry in run.entries]
        failed: dict[BookieIdentity, str] = {}
        stored = run.bookies
        for _ in range(REPLACEMENTS_MAX):
            copies = write_set(metadata, first)
            targets = [identity for identity in copies if identity not in stored]
            answers = await asyncio.gather(
                *(
                    ask_to_store(context, ledger_id, identity, first, data, confirmed)
                    for identity in targets
                )
            )
            lost: list[BookieIdentity] = []
            for identity, error in zip(targets, answers, strict=True):
                if error is None:
                    stored.add(identity)
                else:
                    failed[identity] = str(error)
                    lost.append(identity)
            if not lost:
                return metadata
            metadata = self._without(metadata, first, lost, failed)
        raise RecoveryFailed(f"ledger {ledger_id}: entry {first} could not be stored: {failed}")

    def _without(
        self,
        metadata: LedgerMetadata,
        first: int,
        lost: Sequence[BookieIdentity],
        failed: dict[BookieIdentity, str],
    ) -> LedgerMetadata:
        """Returns the record with the lost bookies replaced, or left out, from `first` on."""
        before = metadata.ensembles[-1].bookies
        living = self._context.bookies.living()
        after = choose_more(
            living,
            [None if identity in lost else identity for identity in before],
            metadata.write_quorum,
            self._context.rng,
            excluding_others(living, affinity_of(metadata.properties), len(before), failed),
        )
        bookies = tuple(identity for identity in after if identity is not None)
        if len(bookies) < metadata.ack_quorum:
            names = "; ".join(f"{identity.bookie_id}: {text}" for identity, text in failed.items())
            raise RecoveryFailed(
                f"ledger {metadata.ledger_id}: entry {first} was found, but {len(bookies)} of "
                f"{metadata.ack_quorum} bookies can store it ({names})"
            )
        log.warning(
            "ensemble changed in recovery",
            ledger=metadata.ledger_id,
            first_entry=first,
            without=[identity.bookie_id for identity in lost],
            bookies=[identity.bookie_id for identity in bookies],
        )
        return metadata.with_ensembles(with_ensemble(metadata, first, bookies))
