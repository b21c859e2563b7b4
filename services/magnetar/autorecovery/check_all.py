"""The check of all ledgers, or of some: several at a time, never all in memory.

Memory is bounded by `at_once` windows of proofs and one page of records. A ledger that was deleted
since it was listed is left out.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from magnetar.autorecovery.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.pages import LedgerPages
from magnetar.autorecovery.proving import Verdict
from magnetar.core.errors import MetadataError
from magnetar.core.tasks import TaskSet
from magnetar.ledger.metadata import LedgerMetadata, decode, ledger_key
from magnetar.metadata.store import MetadataStore

AT_ONCE_DEFAULT: Final = 4

OnReport = Callable[[LedgerReport], None]


class UnreadableLedger(MetadataError):
    """The record under `key` is damaged, or a newer release wrote it."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(why)
        self.key = key


@dataclass(slots=True)
class CheckSummary:
    """What all reports say together."""

    ledgers: int = 0
    entries: int = 0
    bytes: int = 0
    entries_repaired: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """Keys whose value is no ledger."""

    def cannot_read(self, key: str) -> None:
        """Notes a record that holds no ledger, once."""
        if key not in self.unreadable:
            self.unreadable.append(key)

    def add(self, report: LedgerReport) -> None:
        """Counts one ledger in."""
        self.ledgers += 1
        self.entries += report.entries
        self.bytes += report.bytes
        self.entries_repaired += report.repaired_entries
        self.verdicts[report.verdict] = self.verdicts.get(report.verdict, 0) + 1

    @property
    def exit_code(self) -> int:
        """0: all are healthy; 1: some are not; 2: of some it could not be told."""
        others = self.verdicts.keys() - {Verdict.HEALTHY.value}
        if self.unreadable or others - {Verdict.UNPROVEN.value}:
            return 1
        return 2 if others else 0


async def all_ledgers(store: MetadataStore, summary: CheckSummary) -> AsyncIterator[LedgerMetadata]:
    """Every ledger, a page at a time."""
    async for page in LedgerPages(store).walk():
        summary.unreadable += page.unreadable
        for record in page.ledgers:
            yield record.metadata


async def these_ledgers(
    store: MetadataStore, ledger_ids: Iterable[int], summary: CheckSummary
) -> AsyncIterator[LedgerMetadata]:
    """The ledgers of `ledger_ids` that exist; `summary` notes the records it cannot read."""
    for ledger_id in ledger_ids:
        try:
            metadata = await read_ledger(store, ledger_id)
        except UnreadableLedger as error:
            summary.cannot_read(error.key)
            continue
        if metadata is not None:
            yield metadata


async def read_ledger(store: MetadataStore, ledger_id: int) -> LedgerMetadata | None:
    """The ledger's current record; raises UnreadableLedger."""
    key = ledger_key(ledger_id)
    record = await store.get(key)
    if record is None:
        return None
    try:
        return decode(key, record.value)
    except MetadataError as error:
        raise UnreadableLedger(key, str(error)) from error


class CheckRun:
    """One run over many ledgers."""

    def __init__(
        self,
        store: MetadataStore,
        checker: LedgerChecker,
        repairing: LedgerChecker | None,
        *,
        at_once: int = AT_ONCE_DEFAULT,
        not_counting: Collection[str] = (),
    ) -> None:
        self._store = store
        self._checker = checker
        self._repairing = repairing
        self._free = asyncio.Semaphore(at_once)
        self._not_counting = not_counting
        self._tasks = TaskSet("ledger check")
        self._error: BaseException | None = None

    async def run(
        self, ledgers: AsyncIterator[LedgerMetadata], on_report: OnReport, summary: CheckSummary
    ) -> None:
        """Reports each ledger; raises the first error that was no answer of a bookie."""
        started: set[asyncio.Task[None]] = set()
        try:
            async for metadata in ledgers:
                await self._free.acquire()
                if self._error is not None:
                    break
                task = self._tasks.start(self._one(metadata, on_report, summary), "one")
                if task is not None:
                    started.add(task)
                    task.add_done_callback(started.discard)
            if started:
                await asyncio.wait(started)
        finally:
            await self._tasks.stop()
        if self._error is not None:
            raise self._error

    async def _one(
        self, metadata: LedgerMetadata, on_report: OnReport, summary: CheckSummary
    ) -> None:
        try:
            report = await self._report(metadata)
            if report is not None:
                summary.add(report)
                on_report(report)
        except UnreadableLedger as error:
            summary.cannot_read(error.key)
        except Exception as error:  # noqa: BLE001  it is raised by `run`
            self._error = self._error or error
        finally:
            self._free.release()

    async def _report(self, metadata: LedgerMetadata) -> LedgerReport | None:
        report = await self._checker.check(metadata, not_counting=self._not_counting)
        if report.verdict == Verdict.HEALTHY:
            return report
        # It may have been moved, ended or deleted while it was read.
        newer = await read_ledger(self._store, metadata.ledger_id)
        if newer is None:
            return None
        if self._repairing is not None:
            repaired = await self._repairing.check(newer)
            after = await self._checker.check(newer, not_counting=self._not_counting)
            return after.after_repair(repaired)
        if newer != metadata:
            return await self._checker.check(newer, not_counting=self._not_counting)
        return report
