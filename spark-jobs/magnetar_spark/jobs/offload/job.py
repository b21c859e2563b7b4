"""The steps of an offload. Every step may be repeated, or cut short.

1. Remove attempts of dead jobs and empty the trash, so that a store that was full has room.
2. Plan topics from metadata: policies, requests, ledgers, live files.
3. Have Spark run tasks of a few ledgers, the largest first. Executors read, write, verify and
   commit ledger by ledger.
4. Finish the requests.
5. Have the bookies delete ledgers whose files have been live for the deletion lag.
6. Remove leftovers: attempts that tasks left, and files that no record names.

The driver is asynchronous and waits for Spark in a thread, so that it can renew the job's lease.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final

from magnetar.core.errors import PreconditionFailed, ServiceNotReady
from magnetar.core.names import TopicName
from magnetar.jobs.event_loop import run as run_async
from magnetar.jobs.offload import requests
from magnetar.jobs.offload.lease import job_lease
from magnetar.jobs.offload.leftovers import remove_attempts, sweep
from magnetar.jobs.offload.plan import Override, TopicWork, topic_works, why_none
from magnetar.jobs.offload.release import release
from magnetar.jobs.offload.work import LedgerTask, Outcome, Result
from magnetar.jobs.sweeper import SWEEP_AGE_S, Removed, cluster_id_of, empty_trash
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.offload.executor import offload_ledgers
from magnetar_spark.jobs.offload.flags import override_of
from magnetar_spark.jobs.progress import BYTES
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.log.access import RegisteredLog, opened_log
from magnetar_spark.log.admin import Admin
from magnetar_spark.worker import keep_imports

TASK_BYTES: Final = 128 << 20
"""The size of a Spark task, if there is enough work for every core: a task costs about 0.1 s of CPU
beside its work."""
TASKS_PER_CORE: Final = 4
"""The minimum, so that no core waits long for the last task."""
TASKS_MAX: Final = 10_000
SWEEPS_AT_ONCE: Final = 8
EXPLAINED_MAX: Final = 100
"""Topics whose reason is given: most topics of a cluster have nothing to offload in a run."""
METRICS: Final = (
    "topics",
    "ledgersOffloaded",
    "entriesOffloaded",
    "bytesOffloaded",
    "fileBytes",
    "executorCpuSeconds",
    "ledgersByOthers",
    "ledgersGone",
    "requestsFinished",
    "ledgersReleased",
    "bytesReleased",
    "leftoversRemoved",
    "leftoversKept",
    "failed",
)


def offload(job: JobContext) -> Summary:
    """Runs all steps on the selected topics."""
    override = override_of(job.arguments)
    for name in METRICS:
        job.summary.count(name, 0)
    run_async(_offload(job, override))
    return job.summary


async def _offload(job: JobContext, override: Override) -> None:
    async with opened_log(job.log) as log, job_lease(log.store, job.job_id):
        cluster_id = await cluster_id_of(log.store)
        _report(job, await remove_attempts(log.store, job.job_id, all_tasks_over=False))
        _report(job, await empty_trash(log.store))
        topics = await job.topics(log.store)
        if job.arguments.roll:
            await _roll(job, log, topics)
        works = await topic_works(log.store, topics, override, job.clock.now_ms())
        job.summary.count("topics", len(works))
        for work in works:
            await requests.mark_running(log.store, work, job.job_id)
            if _lacks_store(work, override):
                job.summary.failure(
                    "no store to offload to: set --store, or the topic's or namespace's offload "
                    "policies, or managedLedgerOffloadDriver",
                    topic=str(work.topic),
                )
        tasks = [task for work in works for task in work.tasks]
        outcomes = await _write_files(job, log, cluster_id, tasks)
        _count_outcomes(job.summary, outcomes)
        await _finish_requests(job, log, works, outcomes)
        await _release(job, log, works, override)
        _report(job, await remove_attempts(log.store, job.job_id, all_tasks_over=True))
        await _sweep(job, log, cluster_id, works)
        reported = [work for work in works if not _lacks_store(work, override)]
        _explain(job.summary, reported, job.clock.now_ms())


def _lacks_store(work: TopicWork, override: Override) -> bool:
    """Whether ledgers are to be offloaded, and there is no store: an error, which is reported."""
    return work.plan.store is None and (override.selects_ledgers or work.store_missing)


async def _roll(job: JobContext, log: RegisteredLog, topics: Sequence[TopicName]) -> None:
    """Has the brokers close the open ledgers. A topic whose broker refuses is reported."""
    if not isinstance(log.admin, Admin):
        raise PreconditionFailed("--roll: brokers close ledgers, so give --admin-url")
    for topic in topics:
        try:
            await log.admin.close_ledger(topic)
        except ServiceNotReady as error:
            job.summary.failure(f"--roll: {error}", topic=str(topic))


def _explain(summary: Summary, works: Sequence[TopicWork], now_ms: int) -> None:
    """Says for each topic without a ledger to offload why there is none."""
    idle = [work for work in works if not work.tasks]
    for work in idle[:EXPLAINED_MAX]:
        note = why_none(work.ledgers, work.files, work.plan, now_ms)
        summary.detail(topic=str(work.topic), note=note)
    if len(idle) > EXPLAINED_MAX:
        more = len(idle) - EXPLAINED_MAX
        summary.detail(note=f"{more:,} more topics have no ledger to offload: select them singly")


async def _write_files(
    job: JobContext, log: RegisteredLog, cluster_id: str, tasks: list[LedgerTask]
) -> list[Outcome]:
    """Has Spark write the ledgers. Without tasks, Spark is not started."""
    if not tasks:
        return []
    tasks = sorted(tasks, key=lambda task: task.size_bytes, reverse=True)
    bookies = tuple(log.bookies.registrations())
    work = partial(offload_ledgers, job.log, job.job_id, cluster_id, bookies)
    return await asyncio.to_thread(_write_by_spark, job, tasks, work)


def _write_by_spark(
    job: JobContext,
    tasks: Sequence[LedgerTask],
    work: Callable[[Iterable[LedgerTask]], Iterator[Outcome]],
) -> list[Outcome]:
    """Runs the work on Spark's executors, and shows progress in bytes."""
    total = sum(task.size_bytes for task in tasks)
    job.progress.say(f"{len(tasks):,} ledgers of {total / 1e6:,.1f} MB are to be offloaded")
    context = job.spark.sparkContext
    done = context.accumulator(0)

    def write(slices: Iterable[list[LedgerTask]]) -> Iterator[Outcome]:
        keep_imports()
        for outcome in work(chain.from_iterable(slices)):
            done.add(outcome.length_bytes)
            yield outcome

    with job.progress.units("offloaded", total, BYTES) as advance:
        shown = 0

        def poll() -> None:
            nonlocal shown
            advance(done.value - shown)
            shown = done.value

        with job.progress.stages(context, poll):
            slices = slices_of(tasks, context.defaultParallelism)
            return context.parallelize(slices, len(slices)).mapPartitions(write).collect()


def slices_of(tasks: Sequence[LedgerTask], cores: int) -> list[list[LedgerTask]]:
    """Divides ledgers, sorted by descending size, among Spark tasks of similar sizes. Pure."""
    wanted = -(-sum(task.size_bytes for task in tasks) // TASK_BYTES)
    count = min(max(wanted, TASKS_PER_CORE * cores), len(tasks), TASKS_MAX)
    return [list(tasks[number::count]) for number in range(count)]


def _count_outcomes(summary: Summary, outcomes: list[Outcome]) -> None:
    by_result = Counter(outcome.result for outcome in outcomes)
    summary.count("ledgersOffloaded", by_result[Result.OFFLOADED])
    summary.count("ledgersByOthers", by_result[Result.ALREADY])
    summary.count("ledgersGone", by_result[Result.GONE])
    summary.count("executorCpuSeconds", round(sum(outcome.cpu_s for outcome in outcomes), 3))
    for outcome in outcomes:
        if outcome.result is Result.OFFLOADED:
            summary.count("entriesOffloaded", outcome.entries)
            summary.count("bytesOffloaded", outcome.length_bytes)
            summary.count("fileBytes", outcome.file_bytes)
        elif outcome.result is Result.FAILED:
            summary.failure(outcome.error, log=outcome.name, ledger=outcome.ledger_id)


async def _finish_requests(
    job: JobContext, log: RegisteredLog, works: list[TopicWork], outcomes: list[Outcome]
) -> None:
    for work in works:
        errors = [
            outcome.error for outcome in outcomes if outcome.error and outcome.name == work.name
        ]
        finished = await requests.finish(log.store, work, job.clock.now_ms(), errors)
        if finished is not None:
            job.summary.count("requestsFinished")


async def _release(
    job: JobContext, log: RegisteredLog, works: list[TopicWork], override: Override
) -> None:
    """Releases ledgers by current policies: writing may have taken hours, and a release is final.

    A topic that was deleted meanwhile has nothing to release.
    """
    now_ms = job.clock.now_ms()
    topics = [work.topic for work in works]
    current = await topic_works(log.store, topics, override, now_ms)
    lags = [(work.name, work.plan.deletion_lag_ms) for work in current]
    released = await release(log, lags, now_ms)
    job.summary.count("ledgersReleased", released.ledgers)
    job.summary.count("bytesReleased", released.size_bytes)
    for name, ledger_id, error in released.errors:
        job.summary.failure(error, log=name, ledger=ledger_id)


async def _sweep(
    job: JobContext, log: RegisteredLog, cluster_id: str, works: list[TopicWork]
) -> None:
    gate = asyncio.Semaphore(SWEEPS_AT_ONCE)

    async def sweep_store(spec: StoreSpec, name: str) -> None:
        async with gate:
            _report(job, await sweep(log.store, spec, name, cluster_id, age_s=SWEEP_AGE_S))

    await asyncio.gather(*(sweep_store(spec, work.name) for spec, work in _stores(works)))


def _stores(works: list[TopicWork]) -> list[tuple[StoreSpec, TopicWork]]:
    """The stores that have, or may have, files of the topics."""
    stores: list[tuple[StoreSpec, TopicWork]] = []
    for work in works:
        specs = {file.record.store for file in work.files.values()}
        if work.plan.store is not None:
            specs.add(work.plan.store)
        stores += [(spec, work) for spec in sorted(specs, key=str)]
    return stores


def _report(job: JobContext, removed: Removed) -> None:
    removed.report(job.summary, "leftoversRemoved")
