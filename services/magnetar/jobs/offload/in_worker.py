"""Offloads one topic of a standalone: the steps of a job, and a worker process for each file."""

from functools import partial

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.core.names import TopicName
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.ranges import Range
from magnetar.jobs.offload import requests
from magnetar.jobs.offload.file_writer import record_of, write_verified
from magnetar.jobs.offload.lease import job_lease
from magnetar.jobs.offload.leftovers import remove_attempts, sweep
from magnetar.jobs.offload.plan import Override, TopicWork, topic_works
from magnetar.jobs.offload.release import is_due, release
from magnetar.jobs.offload.work import LedgerTask, Outcome, Result
from magnetar.jobs.sweeper import SWEEP_AGE_S, Report, ensure_cluster_id
from magnetar.jobs.worker.child import open_reader
from magnetar.jobs.worker.process import in_worker
from magnetar.ledger.metadata import LedgerMetadata, ledger_key
from magnetar.metadata.store import MetadataUnavailable
from magnetar.offload.file_format import WrittenFile
from magnetar.offload.repository import Attempt, CommitResult, OffloadRepository
from magnetar.offload.stores import open_object_store
from magnetar.offload.trash import delete_file

POLICIES = Override()
"""No flags: the topic's policies and requests decide."""
LEFTOVERS = "leftoversRemoved"


async def offload_topic(
    log: Log, topic: TopicName, report: Report, *, job_id: str, clock: Clock
) -> None:
    """Offloads the ledgers that are due, and releases those whose lag has passed.

    A topic with nothing to do costs reads of metadata only. Raises MagnetarError.
    """
    works = await topic_works(log.store, [topic], POLICIES, clock.now_ms())
    if not any([await _has_work(log, work, clock.now_ms()) for work in works]):
        return
    async with job_lease(log.store, job_id):
        run = _Run(log, report, job_id, await ensure_cluster_id(log.store, clock.now_ms()), clock)
        removed = await remove_attempts(log.store, job_id, all_tasks_over=False)
        removed.report(report, LEFTOVERS)
        for work in works:
            await run.offload(work)
        await run.release(works)
        removed = await remove_attempts(log.store, job_id, all_tasks_over=True)
        removed.report(report, LEFTOVERS)
        for work in works:
            if work.tasks and work.plan.store is not None:
                swept = await sweep(
                    log.store, work.plan.store, work.name, run.cluster_id, age_s=SWEEP_AGE_S
                )
                swept.report(report, LEFTOVERS)


async def _has_work(log: Log, work: TopicWork, now_ms: int) -> bool:
    """Whether there is a ledger to offload or to release, or a request to answer."""
    if work.tasks or work.request:
        return True
    for file in work.files.values():
        due = is_due(file.record, work.plan.deletion_lag_ms, now_ms)
        if due and await log.store.get(ledger_key(file.record.ledger_id)) is not None:
            return True
    return False


class _Run:
    """One run: what its ledgers have in common."""

    def __init__(
        self, log: Log, report: Report, job_id: str, cluster_id: str, clock: Clock
    ) -> None:
        self.cluster_id = cluster_id
        self._log = log
        self._report = report
        self._job = job_id
        self._clock = clock
        self._repository = OffloadRepository(log.store)

    async def offload(self, work: TopicWork) -> None:
        """Writes the files of a topic's due ledgers, and finishes its request."""
        store = self._log.store
        await requests.mark_running(store, work, self._job)
        errors: list[str] = []
        for task in work.tasks:
            try:
                outcome = await self._ledger(task)
            except (MagnetarError, OSError, TimeoutError) as error:
                errors.append(str(error) or type(error).__name__)
                self._report.failure(errors[-1], log=task.name, ledger=task.ledger_id)
                continue
            if outcome.result is Result.OFFLOADED:
                self._report.count("ledgersOffloaded")
                self._report.count("bytesOffloaded", outcome.length_bytes)
        if await requests.finish(store, work, self._clock.now_ms(), errors) is not None:
            self._report.count("requestsFinished")

    async def _ledger(self, task: LedgerTask) -> Outcome:
        """The steps of `file_writer.LedgerOffloader`, with metadata here and the file elsewhere."""
        name, ledger_id, repository = task.name, task.ledger_id, self._repository
        if await repository.file(name, ledger_id) is not None:
            return Outcome(name, ledger_id, Result.ALREADY)
        ledger = await repository.closed_ledger(ledger_id)
        if ledger is None:
            return Outcome(name, ledger_id, Result.GONE)
        attempt = await repository.begin_attempt(
            name, ledger_id, task.store, self._job, self._clock.now_ms()
        )
        try:
            written = await self._written(task, ledger[0], attempt)
            file = record_of(task, attempt, written, self._clock.now_ms())
            result = await repository.commit(name, attempt, file)
        except MetadataUnavailable:
            raise  # the file may be live: it must not be deleted (see `offload.repository`)
        except BaseException:
            await self._give_up(task, attempt)
            raise
        if result is not CommitResult.OFFLOADED:
            await self._give_up(task, attempt)
        return Outcome(
            name,
            ledger_id,
            Result(result),
            written.entries,
            written.length_bytes,
            written.file_bytes,
        )

    async def _written(
        self, task: LedgerTask, metadata: LedgerMetadata, attempt: Attempt
    ) -> WrittenFile:
        body = partial(write_verified, open_reader, self.cluster_id, task, metadata, attempt)
        whole = Range(
            task.topic, task.partition, metadata, 0, metadata.last_entry, metadata.length_bytes
        )
        written = await in_worker(self._log, body, [whole])
        if not isinstance(written, WrittenFile):
            raise PersistenceError(f"a worker process answered {type(written).__name__}")
        return written

    async def _give_up(self, task: LedgerTask, attempt: Attempt) -> None:
        """Deletes the file unless it is live; what fails is left to the next run."""
        files = open_object_store(task.store)
        try:
            mine = await self._repository.reclaim_attempt(attempt, self._job)
            if mine is not None:
                await self._repository.discard_attempt(files, mine)
                return
            live = await self._repository.file(task.name, task.ledger_id)
            if live is None or live.attempt != attempt.attempt:
                await delete_file(files, attempt.path)
        except (MagnetarError, OSError, TimeoutError) as error:
            self._report.detail(attempt=attempt.key, note=str(error) or type(error).__name__)

    async def release(self, works: list[TopicWork]) -> None:
        """Has the bookie delete ledgers by current policies: a release is final."""
        now_ms = self._clock.now_ms()
        topics = [work.topic for work in works]
        current = await topic_works(self._log.store, topics, POLICIES, now_ms)
        lags = [(work.name, work.plan.deletion_lag_ms) for work in current]
        released = await release(self._log, lags, now_ms)
        self._report.count("ledgersReleased", released.ledgers)
        for name, ledger_id, error in released.errors:
            self._report.failure(error, log=name, ledger=ledger_id)
