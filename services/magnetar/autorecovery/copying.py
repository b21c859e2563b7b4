"""Copies entries from bookies that have them to bookies that should, and proves them there.

A `Need` says for one entry who may have it and who shall get it. A window of needs is copied in
groups of about a megabyte: read from one holder (the bookie checks the CRC of what is on its
disk), added to the targets with `recovery`, which a fence lets pass and which may be repeated, then
read again there by `prove_entries` and held against the CRC-32C of what was read. An entry that one
holder cannot give is asked of the next; one that none can give is lost, with what each said.

Bounds: one group in memory for each ledger, `ByteBudget` over all, `ByteRate` for the speed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from google_crc32c import value

from magnetar.autorecovery.asking import NO_ENTRY, NOT_REGISTERED, add, answer_of
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
from magnetar.ledger.bookies import BookieSet

READ_OVER_GAP_ENTRIES: Final = 8
"""A holder is read across entries that are not needed where they are fewer than these."""


@dataclass(frozen=True, slots=True)
class Need:
    """One entry: who may have it, who shall."""

    sources: tuple[BookieIdentity, ...]
    targets: tuple[BookieIdentity, ...]


@dataclass(slots=True)
class Copied:
    """What came of it."""

    entries: int = 0
    bytes: int = 0
    lost: list[tuple[int, tuple[Answer, ...]]] = field(default_factory=list)
    """Entries that nobody gave, with what each holder said; ascending within one window."""
    refused: dict[BookieIdentity, str] = field(default_factory=dict)
    """Targets that failed, and how: what was meant for them is not proven there."""
    touched: set[BookieIdentity] = field(default_factory=set)
    """Targets that were sent anything."""


class Copier:
    """See the module's text. One for each node."""

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
        self, ledger_id: int, needs: Mapping[int, Need], last_add_confirmed: int, done: Copied
    ) -> None:
        """Copies one window; adds to `done`. Raises nothing that a bookie said."""
        missing = dict(sorted(needs.items()))
        answers: dict[int, dict[BookieIdentity, Answer]] = {}
        depth = max((len(need.sources) for need in missing.values()), default=0)
        for rank in range(depth):
            by_source: dict[BookieIdentity, list[int]] = {}
            for entry_id, need in missing.items():
                if rank < len(need.sources):
                    by_source.setdefault(need.sources[rank], []).append(entry_id)
            for source, wanted in by_source.items():
                await self._from_source(
                    ledger_id, source, wanted, missing, last_add_confirmed, answers, done
                )
        for entry_id in missing:
            done.lost.append((entry_id, tuple(answers.get(entry_id, {}).values())))

    async def _from_source(
        self,
        ledger_id: int,
        source: BookieIdentity,
        wanted: Sequence[int],
        missing: dict[int, Need],
        last_add_confirmed: int,
        answers: dict[int, dict[BookieIdentity, Answer]],
        done: Copied,
    ) -> None:
        """Takes from one holder what it has of `wanted`, and out of `missing` what was got."""

        def note(entry_ids: Sequence[int], answer: Answer) -> None:
            for entry_id in entry_ids:
                if entry_id in missing:
                    answers.setdefault(entry_id, {})[source] = answer

        bookie = self._bookies.get(source)
        if bookie is None:
            note(wanted, Answer(source, NOT_REGISTERED))
            return
        at = 0
        while at < len(wanted):
            run = _run(wanted, at)
            try:
                read = await self._read(bookie, ledger_id, run[0], run[-1])
            except (BookieUnavailable, NoSuchLedger) as error:
                note(wanted[at:], answer_of(source, error))
                return
            except BookieError as error:
                note(run[:1], answer_of(source, error))
                at += 1
                continue
            got = {entry.entry_id: entry.data for entry in read}
            end = read[-1].entry_id
            taken = {id_: data for id_ in run if (data := got.get(id_)) is not None}
            skipped = [id_ for id_ in run if id_ <= end and id_ not in got]
            note(skipped, Answer(source, NO_ENTRY))
            await self._store(ledger_id, taken, missing, last_add_confirmed, done)
            at += sum(1 for id_ in run if id_ <= end)

    async def _read(
        self, bookie: Bookie, ledger_id: int, first: int, last: int
    ) -> list[StoredEntry]:
        """Entries of one holder; raises BookieError, BookieUnavailable where it is late."""
        settings = self._settings
        try:
            async with asyncio.timeout(settings.request_timeout_s):
                read = await bookie.read_entries(
                    ledger_id, first, last, bytes_max=settings.group_bytes_max
                )
        except TimeoutError:
            name = bookie.identity.bookie_id
            late = BookieUnavailable(
                f"bookie {name} did not answer in {settings.request_timeout_s:g} s"
            )
            self._bookies.failed(bookie.identity, late)
            raise late from None
        except BookieUnavailable as error:
            self._bookies.failed(bookie.identity, error)
            raise
        if not read or read[0].entry_id != first:
            raise BookieError(f"bookie {bookie.identity.bookie_id} answered for other entries")
        return read

    async def _store(
        self,
        ledger_id: int,
        taken: Mapping[int, bytes],
        missing: dict[int, Need],
        last_add_confirmed: int,
        done: Copied,
    ) -> None:
        """Adds a group to those that shall have it, proves it, and takes it out of `missing`."""
        size = sum(map(len, taken.values()))
        by_target: dict[BookieIdentity, list[int]] = {}
        for entry_id in taken:
            for target in missing.pop(entry_id).targets:
                by_target.setdefault(target, []).append(entry_id)
        await self._budget.take(size)
        try:
            for target, entry_ids in by_target.items():
                if target in done.refused:
                    continue
                group = [taken[entry_id] for entry_id in entry_ids]
                count = sum(map(len, group))
                await self._rate.spend(count)
                done.touched.add(target)
                problem = await self._put(target, ledger_id, entry_ids, group, last_add_confirmed)
                if problem is not None:
                    done.refused[target] = problem
                    continue
                done.entries += len(group)
                done.bytes += count
                self._stats.copied(len(group), count)
        finally:
            self._budget.give_back(size)

    async def _put(
        self,
        target: BookieIdentity,
        ledger_id: int,
        entry_ids: list[int],
        group: list[bytes],
        last_add_confirmed: int,
    ) -> str | None:
        """What went wrong, if the group is not proven to be there."""
        bookie = self._bookies.get(target)
        if bookie is None:
            return NOT_REGISTERED
        timeout_s = self._settings.request_timeout_s
        wanted = {
            entry_id: (len(data), value(data))
            for entry_id, data in zip(entry_ids, group, strict=True)
        }
        try:
            await add(bookie, ledger_id, entry_ids, group, last_add_confirmed, timeout_s)
            position, last = entry_ids[0], entry_ids[-1]
            while position <= last:
                async with asyncio.timeout(timeout_s):
                    proofs = await bookie.prove_entries(
                        ledger_id, position, last, count_max=last - position + 1
                    )
                for proof in proofs.proofs:
                    found = (proof.length_bytes, proof.crc)
                    if proof.kind is ProofKind.PRESENT and wanted.get(proof.entry_id) == found:
                        del wanted[proof.entry_id]
                if proofs.next_entry <= position:
                    return "its proof does not go on"
                position = proofs.next_entry
        except TimeoutError:
            return f"no proof within {timeout_s:g} s"
        except BookieError as error:
            self._bookies.failed(target, error)
            return str(error)
        return f"{len(wanted)} entries are not proven there" if wanted else None


def _run(wanted: Sequence[int], at: int) -> Sequence[int]:
    """The entries from `at` on that are worth one read."""
    end = at + 1
    while end < len(wanted) and wanted[end] - wanted[end - 1] <= READ_OVER_GAP_ENTRIES:
        end += 1
    return wanted[at:end]
