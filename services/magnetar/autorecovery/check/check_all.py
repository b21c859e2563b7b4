"""Checks all ledgers, or selected ones, a few at a time.

Memory is bounded by `at_once` windows of proofs and one page of records. A ledger that is deleted
during the run is not reported.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from magnetar.autorecovery.check.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.check.prover import Verdict
from magnetar.autorecovery.pages import LedgerPages
from magnetar.core.errors import MetadataError
from magnetar.core.tasks import TaskSet
from magnetar.ledger.metadata import LedgerMetadata, decode, ledger_key
from magnetar.metadata.store import MetadataStore

AT_ONCE_DEFAULT: Final = 4

OnReport = Callable[[LedgerReport], None]


class UnreadableLedger(MetadataError):
    """The ledger record under `key` is damaged, or a newer release wrote it."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(why)
        self.key = key


@dataclass(slots=True)
class CheckSummary:
    """The totals of all reports of a run."""

    ledgers: int = 0
    entries: int = 0
    bytes: int = 0
    entries_repaired: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """Keys of ledger records that cannot be decoded."""

    def add_unreadable(self, key: str) -> None:
        """Adds the key of an unreadable record, once."""
        if key not in self.unreadable:
            self.unreadable.append(key)

    def add(self, report: LedgerReport) -> None:
        """Adds a ledger's report to the totals."""
        self.ledgers += 1
        self.entries += report.entries
        self.bytes += report.bytes
        self.entries_repaired += report.repaired_entries
        self.verdicts[report.verdict] = self.verdicts.get(report.verdict, 0) + 1

    @property
    def exit_code(self) -> int:
        """0: all are healthy; 1: some are not; 2: some could not be proven."""
        others = self.verdicts.keys() - {Verdict.HEALTHY.value}
        if self.unreadable or others - {Verdict.UNPROVEN.value}:
            return 1
        return 2 if others else 0


async def all_ledgers(store: MetadataStore, summary: CheckSummary) -> AsyncIterator[LedgerMetadata]:
    """Yields every ledger, a page at a time; adds unreadable records to `summary`."""
    async for page in LedgerPages(store).walk():
        summary.unreadable += page.unreadable
        for record in page.ledgers:
            yield record.metadata


async def selected_ledgers(
    store: MetadataStore, ledger_ids: Iterable[int], summary: CheckSummary
) -> AsyncIterator[LedgerMetadata]:
    """Yields the ledgers that exist; adds unreadable records to `summary`."""
    for ledger_id in ledger_ids:
        try:
            metadata = await read_ledger(store, ledger_id)
        except UnreadableLedger as error:
            summary.add_unreadable(error.key)
            continue
        if metadata is not None:
            yield metadata


async def read_ledger(store: MetadataStore, ledger_id: int) -> LedgerMetadata | None:
    """Returns the ledger's current record, if it exists; raises UnreadableLedger."""
    key = ledger_key(ledger_id)
    record = await store.get(key)
    if record is None:
        return None
    try:
        return decode(key, record.value)
    except MetadataError as error:
        raise UnreadableLedger(key, str(error)) from error


class CheckRun:
    """One check of many ledgers, `at_once` concurrently.

    With `repair_checker`, it repairs ledgers that are not healthy. Copies on bookies whose ids are
    in `excluded` do not count.
    """

    def __init__(
        self,
        store: MetadataStore,
        checker: LedgerChecker,
        repair_checker: LedgerChecker | None,
        *,
        at_once: int = AT_ONCE_DEFAULT,
        excluded: Collection[str] = (),
    ) -> None:
        self._store = store
        self._checker = checker
        self._repair_checker = repair_checker
        self._free = asyncio.Semaphore(at_once)
        self._not_counting = excluded
        self._tasks = TaskSet("ledger check")
        self._error: BaseException | None = None

    async def run(
        self, ledgers: AsyncIterator[LedgerMetadata], on_report: OnReport, summary: CheckSummary
    ) -> None:
        """Reports every ledger; raises the first error, after the checks under way have ended."""
        started: set[asyncio.Task[None]] = set()
        try:
            async for metadata in ledgers:
                await self._free.acquire()
                if self._error is not None:
                    break
                task = self._tasks.start(self._check(metadata, on_report, summary), "check")
                if task is not None:
                    started.add(task)
                    task.add_done_callback(started.discard)
            if started:
                await asyncio.wait(started)
        finally:
            await self._tasks.stop()
        if self._error is not None:
            raise self._error

    async def _check(
        self, metadata: LedgerMetadata, on_report: OnReport, summary: CheckSummary
    ) -> None:
        try:
            report = await self._report(metadata)
            if report is not None:
                summary.add(report)
                on_report(report)
        except UnreadableLedger as error:
            summary.add_unreadable(error.key)
        except Exception as error:  # noqa: BLE001  `run` raises it
            self._error = self._error or error
        finally:
            self._free.release()

    async def _report(self, metadata: LedgerMetadata) -> LedgerReport | None:
        report = await self._checker.check(metadata, excluded=self._not_counting)
        if report.verdict == Verdict.HEALTHY:
            return report
        # The ledger may have been replicated, closed or deleted during the check.
        newer = await read_ledger(self._store, metadata.ledger_id)
        if newer is None:
            return None
        if self._repair_checker is not None:
            repaired = await self._repair_checker.check(newer)
            after = await self._checker.check(newer, excluded=self._not_counting)
            return after.after_repair(repaired)
        if newer != metadata:
            return await self._checker.check(newer, excluded=self._not_counting)
        return report
