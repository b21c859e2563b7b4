"""Ends a ledger whose writer may be gone, so that everyone agrees on its last entry.

Each step is harmless to repeat and to run concurrently:

1. Take the writer's right to change the record: OPEN to IN_RECOVERY, by compare-and-swap.
2. Fence the bookies of the last ensemble until no ack quorum is left among those that are not
   fenced (`quorum.fence_covers`). What they know to be confirmed is a lower bound of the end.
3. Read on from there, with reads that fence as well (BookKeeper #2614), asking the whole write set
   at once. An entry that any of them has is stored on all others of them before it counts. The end
   is where enough of them are certain that there is none (`quorum.absence_needs`). Where neither
   can be had the end cannot be known: RecoveryFailed, and the ledger stays in recovery.
4. Write CLOSED with that end and length, by compare-and-swap. Who loses it looks again: another
   recoverer has written what is right as well.

A bookie that fails while entries are stored is replaced, or left out, from that entry on; the new
ensembles are only in memory until step 4 writes them, all entries being there. Were they written
before, a second recoverer would ask bookies that have nothing yet, and cut the ledger short.

An entry that is harmed on every copy that is left was stored, and may have been confirmed: it stays
part of the ledger, and its readers are told.
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
from magnetar.ledger.asking import ask_end, ask_entries, ask_to_store
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
"""For the other copies, once one has answered: who has an entry need not be sent it."""
REPLACEMENTS_MAX: Final = 16
"""Ensembles tried for one run of entries."""

log = get_logger("magnetar.ledger.recovery")


async def recover_ledger(
    context: LedgerContext, metadata: LedgerMetadata, revision: int
) -> LedgerMetadata:
    """The ledger, CLOSED: by this call, or by whoever was faster. Raises RecoveryFailed."""
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
    """Leaves a ledger alone that certainly cannot be ended: its writer may still live."""
    bookies = metadata.ensembles[-1].bookies
    here = {
        slot for slot, identity in enumerate(bookies) if context.bookies.get(identity) is not None
    }
    if not fence_covers(len(bookies), metadata.write_quorum, metadata.ack_quorum, here):
        raise _not_fenced(metadata, {})


def _not_fenced(
    metadata: LedgerMetadata, failures: dict[BookieIdentity, BookieError]
) -> RecoveryFailed:
    said = [
        f"{one.bookie_id}: {failures[one]}"
        if one in failures
        else f"{one.bookie_id} incarnation {one.incarnation} is not here"
        for one in metadata.ensembles[-1].bookies
    ]
    return RecoveryFailed(
        f"ledger {metadata.ledger_id} cannot be ended: too few of its bookies can be fenced "
        f"({'; '.join(said)})"
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A run of entries, and who has all of it for certain; nothing where it is harmed."""

    entries: list[StoredEntry]
    bookies: set[BookieIdentity]


class _Recovery:
    """One attempt, from the record as it stands in recovery."""

    def __init__(self, context: LedgerContext, metadata: LedgerMetadata) -> None:
        self._context = context
        self._metadata = metadata
        self._fragment = metadata.ensembles[-1]
        self._ends: dict[BookieIdentity, LedgerEnd] = {}
        self._lengths = Lengths(context, metadata)
        self._silent: set[BookieIdentity] = set()
        """They did not answer as quickly as others: not waited for again."""

    async def run(self) -> LedgerMetadata:
        """The ledger as it is to be written; raises RecoveryFailed."""
        confirmed = await self._fence()
        metadata = self._metadata
        self._lengths.begin(confirmed, self._ends)
        last = confirmed
        while True:
            found = await self._find(last + 1)
            if found is None:
                break
            if found.entries:
                # What is on ensembles that no record names yet is confirmed to nobody else: the
                # next recoverer, if this one is cut short, has to look at it again.
                known = last if metadata is self._metadata else confirmed
                metadata = await self._store(metadata, found, known)
                self._lengths.add(found.entries)
                last = found.entries[-1].entry_id
            else:
                self._lengths.add_harmed()
                last += 1
        length = await self._lengths.until(last)
        return metadata.closed(last, length, self._context.clock.now_ms())

    # -- step 2

    async def _fence(self) -> int:
        """Fences; the last entry that is known to be confirmed."""
        metadata, bookies = self._metadata, self._fragment.bookies
        failures: dict[BookieIdentity, BookieError] = {}
        confirmed = self._fragment.first_entry - 1
        tasks = {
            asyncio.ensure_future(
                ask_end(self._context, metadata.ledger_id, identity, fence=True)
            ): slot
            for slot, identity in enumerate(bookies)
        }
        fenced: set[int] = set()
        try:
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
        finally:
            for task in tasks:
                task.cancel()
        raise _not_fenced(metadata, failures)

    # -- step 3

    async def _find(self, first: int) -> "_Found | None":
        """Entries from `first` on; none where it is harmed; None where there certainly is none."""
        # Where it is now follows from the record as the writer left it.
        original = self._metadata
        copies = write_set(original, first)
        end = run_last(original, first)
        only = self._ends.get(copies[0]) if len(copies) == 1 else None
        if only is not None and -1 < only.last_entry < first:
            return None  # the only copy there ever was: what it does not know of, nobody does
        # A bookie without any entry is asked: it may have dropped a copy (`drop_copies`) that newer
        # metadata has elsewhere.
        needed = absence_needs(
            len(self._fragment.bookies), original.write_quorum, original.ack_quorum
        )
        tasks = {
            asyncio.ensure_future(
                ask_entries(self._context, original.ledger_id, one, first, end, READ_BYTES)
            ): one
            for one in copies
        }
        absent, failures = 0, dict[BookieIdentity, BookieError]()
        answers: dict[BookieIdentity, list[StoredEntry]] = {}
        try:
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
        finally:
            for task in tasks:
                task.cancel()
        if not answers:
            return self._doubtful(first, failures)
        best = max(answers.values(), key=len)
        return _Found(best, {one for one, has in answers.items() if len(has) == len(best)})

    def _doubtful(
        self,
        entry_id: int,
        failures: dict[BookieIdentity, BookieError],
    ) -> "_Found":
        """Where nobody gave the entry, and too few are certain that there is none."""
        certain = all(isinstance(one, EntryCorrupt | EntryUnknown) for one in failures.values())
        if certain and any(isinstance(one, EntryCorrupt) for one in failures.values()):
            return _Found([], set())
        said = "; ".join(f"{one.bookie_id}: {error}" for one, error in failures.items())
        raise RecoveryFailed(
            f"whether ledger {self._metadata.ledger_id} has an entry {entry_id} cannot be known "
            f"now, so it is not ended: {said}"
        )

    async def _store(
        self, metadata: LedgerMetadata, found: "_Found", confirmed: int
    ) -> LedgerMetadata:
        """Stores a run of entries on all of its write set; the ledger, with who has it now."""
        context, ledger_id = self._context, metadata.ledger_id
        first, data = found.entries[0].entry_id, [entry.data for entry in found.entries]
        failed: dict[BookieIdentity, str] = {}
        stored = found.bookies
        for _ in range(REPLACEMENTS_MAX):
            copies = write_set(metadata, first)
            asked = [one for one in copies if one not in stored]
            answers = await asyncio.gather(
                *(ask_to_store(context, ledger_id, one, first, data, confirmed) for one in asked)
            )
            lost: list[BookieIdentity] = []
            for identity, error in zip(asked, answers, strict=True):
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
        """The ledger with others in place of the lost ones, or without them, from `first` on."""
        before = metadata.ensembles[-1].bookies
        after = choose_more(
            self._context.bookies.living(),
            [None if one in lost else one for one in before],
            metadata.write_quorum,
            self._context.rng,
            failed,
        )
        bookies = tuple(one for one in after if one is not None)
        if len(bookies) < metadata.ack_quorum:
            names = "; ".join(f"{one.bookie_id}: {text}" for one, text in failed.items())
            raise RecoveryFailed(
                f"ledger {metadata.ledger_id}: entry {first} was found, but {len(bookies)} of "
                f"{metadata.ack_quorum} bookies can store it ({names})"
            )
        log.warning(
            "ensemble changed in recovery",
            ledger=metadata.ledger_id,
            first_entry=first,
            without=[one.bookie_id for one in lost],
            bookies=[one.bookie_id for one in bookies],
        )
        return metadata.with_ensembles(with_ensemble(metadata, first, bookies))
