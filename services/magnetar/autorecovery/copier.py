"""Copies entries from bookies that have them to bookies that need them, and proves the copies.

A `CopyTask` names the sources and targets of one entry. The copier copies a window of tasks in
groups of about a megabyte. It reads a group from one source, which verifies the CRC on its disk. It
adds the group to the targets with `recovery`, which passes a fence and may be repeated. The targets
then prove the entries from their disks (`prove_entries`), and the copier compares the proofs with
the CRC-32C of the entries that it read. If a source cannot return an entry, the copier reads it
from the next one. An entry that no source returns is lost, with the answer of every source.

Bounds: one group in memory per ledger, `ByteBudget` over all ledgers, `ByteRate` for the speed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from google_crc32c import value

from magnetar.autorecovery.answers import NO_ENTRY, NOT_REGISTERED, answer_of
from magnetar.autorecovery.rate import ByteBudget, ByteRate
from magnetar.autorecovery.records import Answer
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.bookie.api import (
    Bookie,
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    NoSuchLedger,
    ProofKind,
    StoredEntry,
)
from magnetar.ledger.bookie_calls import call, store_copies
from magnetar.ledger.bookies import BookieSet

READ_OVER_GAP_ENTRIES: Final = 8
"""One read spans a gap of fewer unneeded entries than this."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One entry to copy: the bookies that may have it, and the bookies that need it."""

    sources: tuple[BookieIdentity, ...]
    targets: tuple[BookieIdentity, ...]


@dataclass(slots=True)
class CopyResult:
    """The result of the copies so far."""

    entries: int = 0
    bytes: int = 0
    lost: list[tuple[int, tuple[Answer, ...]]] = field(default_factory=list)
    """Entries that no source returned, with the sources' answers; ascending within a window."""
    refused: dict[BookieIdentity, str] = field(default_factory=dict)
    """Targets that failed, with the problem: their copies are not proven."""
    touched: set[BookieIdentity] = field(default_factory=set)
    """Targets to which entries were sent."""


class Copier:
    """Copies and proves entries; a node has one copier for all ledgers."""

    def __init__(
        self,
        bookies: BookieSet,
        settings: AutorecoverySettings,
        rate: ByteRate,
        stats: AutorecoveryStats,
    ) -> None:
        self._bookies = bookies
        self._settings = settings
        self._rate = rate
        self._budget = ByteBudget(settings.bytes_in_flight_max)
        self._stats = stats

    async def copy(
        self,
        ledger_id: int,
        tasks: Mapping[int, CopyTask],
        last_add_confirmed: int,
        result: CopyResult,
    ) -> None:
        """Copies one window of tasks by entry id; adds to `result`. Raises no bookie's error."""
        missing = dict(sorted(tasks.items()))
        answers: dict[int, dict[BookieIdentity, Answer]] = {}
        depth = max((len(task.sources) for task in missing.values()), default=0)
        for rank in range(depth):
            by_source: dict[BookieIdentity, list[int]] = {}
            for entry_id, task in missing.items():
                if rank < len(task.sources):
                    by_source.setdefault(task.sources[rank], []).append(entry_id)
            for source, wanted in by_source.items():
                await self._copy_from(
                    ledger_id, source, wanted, missing, last_add_confirmed, answers, result
                )
        for entry_id in missing:
            result.lost.append((entry_id, tuple(answers.get(entry_id, {}).values())))

    async def _copy_from(
        self,
        ledger_id: int,
        source: BookieIdentity,
        wanted: Sequence[int],
        missing: dict[int, CopyTask],
        last_add_confirmed: int,
        answers: dict[int, dict[BookieIdentity, Answer]],
        result: CopyResult,
    ) -> None:
        """Copies the `wanted` entries that one source has, and removes them from `missing`.

        Adds the source's answers about the others to `answers`.
        """

        def record(entry_ids: Sequence[int], answer: Answer) -> None:
            for entry_id in entry_ids:
                if entry_id in missing:
                    answers.setdefault(entry_id, {})[source] = answer

        bookie = self._bookies.get(source)
        if bookie is None:
            record(wanted, Answer(source, NOT_REGISTERED))
            return
        at = 0
        while at < len(wanted):
            run = _run(wanted, at)
            try:
                read = await self._read(bookie, ledger_id, run[0], run[-1])
            except (BookieUnavailable, NoSuchLedger) as error:
                record(wanted[at:], answer_of(source, error))
                return
            except BookieError as error:
                record(run[:1], answer_of(source, error))
                at += 1
                continue
            by_id = {entry.entry_id: entry.data for entry in read}
            end = read[-1].entry_id
            group = {id_: data for id_ in run if (data := by_id.get(id_)) is not None}
            skipped = [id_ for id_ in run if id_ <= end and id_ not in by_id]
            record(skipped, Answer(source, NO_ENTRY))
            await self._store(ledger_id, group, missing, last_add_confirmed, result)
            at += sum(1 for id_ in run if id_ <= end)

    async def _read(
        self, bookie: Bookie, ledger_id: int, first: int, last: int
    ) -> list[StoredEntry]:
        """Reads entries from one source, at least `first`; raises BookieError."""
        read = await call(
            self._bookies,
            bookie.identity,
            bookie.read_entries(ledger_id, first, last, bytes_max=self._settings.group_bytes_max),
            self._settings.request_timeout_s,
        )
        if not read or read[0].entry_id != first:
            raise BookieError(f"bookie {bookie.identity.bookie_id} answered for other entries")
        return read

    async def _store(
        self,
        ledger_id: int,
        group: Mapping[int, bytes],
        missing: dict[int, CopyTask],
        last_add_confirmed: int,
        result: CopyResult,
    ) -> None:
        """Adds a group to its targets, proves it there, and removes it from `missing`."""
        size = sum(map(len, group.values()))
        by_target: dict[BookieIdentity, list[int]] = {}
        for entry_id in group:
            for target in missing.pop(entry_id).targets:
                by_target.setdefault(target, []).append(entry_id)
        await self._budget.take(size)
        try:
            for target, entry_ids in by_target.items():
                if target in result.refused:
                    continue
                entries = [group[entry_id] for entry_id in entry_ids]
                count = sum(map(len, entries))
                await self._rate.spend(count)
                result.touched.add(target)
                problem = await self._put(target, ledger_id, entry_ids, entries, last_add_confirmed)
                if problem is not None:
                    result.refused[target] = problem
                    continue
                result.entries += len(entries)
                result.bytes += count
                self._stats.copied(len(entries), count)
        finally:
            self._budget.release(size)

    async def _put(
        self,
        target: BookieIdentity,
        ledger_id: int,
        entry_ids: list[int],
        entries: list[bytes],
        last_add_confirmed: int,
    ) -> str | None:
        """Adds the entries to one target; returns the problem if it does not prove all of them."""
        bookie = self._bookies.get(target)
        if bookie is None:
            return NOT_REGISTERED
        timeout_s = self._settings.request_timeout_s
        unproven = {
            entry_id: (len(data), value(data))
            for entry_id, data in zip(entry_ids, entries, strict=True)
        }
        try:
            copies = store_copies(bookie, ledger_id, entry_ids, entries, last_add_confirmed)
            await call(self._bookies, target, copies, timeout_s)
            position, last = entry_ids[0], entry_ids[-1]
            while position <= last:
                request = bookie.prove_entries(
                    ledger_id, position, last, count_max=last - position + 1
                )
                answer = await call(self._bookies, target, request, timeout_s)
                for proof in answer.proofs:
                    content = (proof.length_bytes, proof.crc)
                    if proof.kind is ProofKind.PRESENT and unproven.get(proof.entry_id) == content:
                        del unproven[proof.entry_id]
                if answer.next_entry <= position:
                    return "its proof makes no progress"
                position = answer.next_entry
        except BookieError as error:
            return str(error)
        return f"{len(unproven)} entries are not proven there" if unproven else None


def _run(wanted: Sequence[int], at: int) -> Sequence[int]:
    """Returns the entries from index `at` on that one read covers."""
    end = at + 1
    while end < len(wanted) and wanted[end] - wanted[end - 1] <= READ_OVER_GAP_ENTRIES:
        end += 1
    return wanted[at:end]
