"""Reads entries from any of their copies.

If all bookies of an ensemble hold all of its entries, a range is read from one bookie, which can
read ahead. Otherwise it is read stripe by stripe, up to STRIPES_AT_ONCE_MAX at a time, each from
the first bookie of its write set. Bookies that failed, are slow, in quarantine or unreachable are
asked last.

If a copy has not answered after `speculative_read_delay_s`, the next one is asked as well; if it
fails (unavailable, corrupt, unknown, absent), at once. The first good answer wins. The result is
NoSuchEntry only if every bookie of the write set is certain of it, EntryUnknown if one of them
cannot know, and BookieUnavailable if one cannot be reached.

The result is contiguous from the first requested id; the part of an answer behind a gap is dropped.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.bookie.api import (
    Bookie,
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    EntryCorrupt,
    EntryUnknown,
    NoSuchEntry,
    NoSuchLedger,
    StoredEntry,
)
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.errors import ReadTimeout
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.quorum import ensemble_index, run_last, striped, write_set

STRIPES_AT_ONCE_MAX: Final = 8
ENTRY_BYTES_GUESSED: Final = 1024
"""The assumed size of an entry before the first read."""

SIZE_WEIGHT: Final = 0.25


def contiguous(entries: list[StoredEntry], first: int, bookie_id: str) -> list[StoredEntry]:
    """Returns the head of a bookie's answer up to its first gap; raises NoSuchEntry if `first` is
    missing."""
    if not entries or entries[0].entry_id != first:
        raise NoSuchEntry(f"bookie {bookie_id} answered for others than entry {first}")
    if entries[-1].entry_id != first + len(entries) - 1:
        for index, entry in enumerate(entries):
            if entry.entry_id != first + index:
                return entries[:index]
    return entries


def bookie_of(context: LedgerContext, ledger_id: int, identity: BookieIdentity) -> Bookie:
    """Returns the bookie; raises BookieUnavailable if this incarnation's address is unknown."""
    bookie = context.bookies.get(identity)
    if bookie is None:
        raise BookieUnavailable(
            f"ledger {ledger_id} is on bookie {identity.bookie_id} incarnation "
            f"{identity.incarnation}, which is not here"
        )
    return bookie


class CopiesReader:
    """Reads the entries of one reader or writer; it remembers the mean size of an entry."""

    __slots__ = ("_context", "_entry_bytes")

    def __init__(self, context: LedgerContext) -> None:
        self._context = context
        self._entry_bytes = float(ENTRY_BYTES_GUESSED)

    async def read(
        self, metadata: LedgerMetadata, first: int, last: int, *, bytes_max: int
    ) -> list[StoredEntry]:
        """Returns at least entry `first`, then as many successors as fit, without a gap."""
        run_end = run_last(metadata, first)
        size = len(metadata.ensembles[ensemble_index(metadata, first)].bookies)
        if last <= run_end or not striped(size, metadata.write_quorum):
            return await self._read_run(metadata, first, min(last, run_end), bytes_max)
        runs = self._runs(metadata, first, last, bytes_max)
        if len(runs) == 1:
            return await self._read_run(metadata, *runs[0], bytes_max)
        answers = await asyncio.gather(
            *(self._read_run(metadata, *run, bytes_max) for run in runs), return_exceptions=True
        )
        entries: list[StoredEntry] = []
        room = bytes_max
        for (_, run_end), answer in zip(runs, answers, strict=True):
            if isinstance(answer, BaseException):
                if not entries:
                    raise answer
                break
            for entry in answer:
                room -= len(entry.data)
                if room < 0 and entries:
                    return entries
                entries.append(entry)
            if answer[-1].entry_id != run_end:
                break
        return entries

    def _runs(
        self, metadata: LedgerMetadata, first: int, last: int, bytes_max: int
    ) -> list[tuple[int, int]]:
        """Returns the stripes that hold about `bytes_max` bytes from `first` on."""
        wanted = first + max(1, int(bytes_max / max(1.0, self._entry_bytes)))
        last = min(last, wanted)
        runs: list[tuple[int, int]] = []
        while first <= last and len(runs) < STRIPES_AT_ONCE_MAX:
            end = min(last, run_last(metadata, first))
            runs.append((first, end))
            first = end + 1
        return runs

    async def _read_run(
        self, metadata: LedgerMetadata, first: int, last: int, bytes_max: int
    ) -> list[StoredEntry]:
        """Reads entries of one write set."""
        copies = write_set(metadata, first)
        ledger_id = metadata.ledger_id
        if len(copies) == 1:
            entries = await self._read_only_copy(ledger_id, copies[0], first, last, bytes_max)
        else:
            ordered = self._context.health.ordered(_rotated(copies, ledger_id))
            entries = await self._read_copies(ledger_id, ordered, first, last, bytes_max)
        average = sum(len(entry.data) for entry in entries) / len(entries)
        self._entry_bytes += SIZE_WEIGHT * (average - self._entry_bytes)
        return entries

    async def _read_only_copy(
        self, ledger_id: int, identity: BookieIdentity, first: int, last: int, bytes_max: int
    ) -> list[StoredEntry]:
        timeout_s = self._context.settings.read_timeout_s
        bookie = bookie_of(self._context, ledger_id, identity)
        try:
            async with asyncio.timeout(timeout_s):
                entries = await bookie.read_entries(ledger_id, first, last, bytes_max=bytes_max)
        except TimeoutError:
            raise _late([identity], ledger_id, first, timeout_s) from None
        return contiguous(entries, first, identity.bookie_id)

    async def _read_copies(
        self,
        ledger_id: int,
        copies: Sequence[BookieIdentity],
        first: int,
        last: int,
        bytes_max: int,
    ) -> list[StoredEntry]:
        context, settings = self._context, self._context.settings
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.read_timeout_s
        waiting = list(copies)
        asked: dict[asyncio.Task[list[StoredEntry]], BookieIdentity] = {}
        failures: list[BookieError] = []
        try:
            while True:
                if waiting:
                    identity = waiting.pop(0)
                    asking = self._ask(ledger_id, identity, first, last, bytes_max)
                    task = loop.create_task(asking, name=f"ledger {ledger_id} from {identity}")
                    asked[task] = identity
                left = deadline - loop.time()
                delay = min(left, settings.speculative_read_delay_s) if waiting else left
                done, _ = await asyncio.wait(
                    asked, timeout=max(0.0, delay), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    identity = asked.pop(task)
                    error = task.exception()
                    if error is None:
                        return task.result()
                    if not isinstance(error, BookieError):
                        raise error
                    failures.append(error)
                    if not isinstance(error, NoSuchEntry | NoSuchLedger):
                        context.health.failed(identity, error)
                if not done:
                    for identity in asked.values():
                        context.health.late(identity)
                    if loop.time() >= deadline:
                        raise _late(copies, ledger_id, first, settings.read_timeout_s)
                if not (asked or waiting):
                    raise verdict(ledger_id, first, failures)
        finally:
            for task in asked:
                task.cancel()
                task.add_done_callback(_ignore)

    async def _ask(
        self, ledger_id: int, identity: BookieIdentity, first: int, last: int, bytes_max: int
    ) -> list[StoredEntry]:
        begun = self._context.clock.monotonic()
        bookie = bookie_of(self._context, ledger_id, identity)
        entries = await bookie.read_entries(ledger_id, first, last, bytes_max=bytes_max)
        self._context.health.answered(identity, self._context.clock.monotonic() - begun)
        return contiguous(entries, first, identity.bookie_id)


def _ignore(task: asyncio.Task[list[StoredEntry]]) -> None:
    """Retrieves the exception of a read that lost the race, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def verdict(ledger_id: int, entry_id: int, failures: Sequence[BookieError]) -> BookieError:
    """Returns the error of an entry that no copy could deliver."""
    for failure in failures:
        if not isinstance(failure, NoSuchEntry | NoSuchLedger | EntryUnknown | EntryCorrupt):
            return failure  # that copy may become readable
    for failure in failures:
        if isinstance(failure, EntryCorrupt):
            return failure
    causes = "; ".join(map(str, failures))
    if any(isinstance(failure, EntryUnknown) for failure in failures):
        return EntryUnknown(f"entry {entry_id} of ledger {ledger_id}: {causes}")
    if all(isinstance(failure, NoSuchLedger) for failure in failures):
        return NoSuchLedger(f"no bookie has ledger {ledger_id}: {causes}")
    return NoSuchEntry(f"no bookie has entry {entry_id} of ledger {ledger_id}: {causes}")


def _rotated(copies: tuple[BookieIdentity, ...], ledger_id: int) -> Sequence[BookieIdentity]:
    """Rotates the copies by ledger, so that not all ledgers are read from their first bookie."""
    turn = ledger_id % len(copies)
    return copies[turn:] + copies[:turn]


def _late(
    copies: Sequence[BookieIdentity], ledger_id: int, first: int, timeout_s: float
) -> ReadTimeout:
    names = ", ".join(identity.bookie_id for identity in copies)
    return ReadTimeout(
        f"bookie {names} did not return entry {ledger_id}:{first} within {timeout_s:g} s"
    )
