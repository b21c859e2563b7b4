"""The steps of an offload, each of which may be repeated and cut short.

1. Attempts of dead jobs are removed, and the trash is emptied, so that a store that was full has
   room.
2. Topics are planned from metadata: policies, requests, ledgers, live files.
3. Spark runs tasks of some ledgers each, the largest first; executors read, write, verify and
   commit ledger by ledger.
4. Requests are finished.
5. Ledgers whose files have been live for the deletion lag are released by the bookies.
6. Leftovers are removed: attempts that tasks left, and files that nobody names.

The driver is asynchronous and waits for Spark in a thread, so that the job's lease is renewed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final

from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.offload import requests
from magnetar_spark.jobs.offload.lease import living
from magnetar_spark.jobs.offload.leftovers import remove_attempts, sweep
from magnetar_spark.jobs.offload.planning import Override, TopicWork, topic_works
from magnetar_spark.jobs.offload.releasing import release
from magnetar_spark.jobs.offload.work import LedgerTask, Outcome, Result
from magnetar_spark.jobs.offload.writing import offload_ledgers
from magnetar_spark.jobs.progress import BYTES
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.jobs.sweeping import SWEEP_AGE_S, Removed, cluster_id_of, emptied_trash
from magnetar_spark.log.access import Log, opened_log
from magnetar_spark.log.running import run as wait
from magnetar_spark.worker import keep_imports

TASK_BYTES: Final = 128 << 20
"""Of ledgers in one task of Spark's, where there are enough for every core: a task costs about
0.1 s of CPU beside what it does."""
TASKS_PER_CORE: Final = 4
"""So many tasks at least, so that no core waits long for the last one."""
TASKS_MAX: Final = 10_000
SWEEPS_AT_ONCE: Final = 8
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


def run(job: JobContext) -> Summary:
    """See the module's text."""
    override = Override.of(job.arguments)
    for name in METRICS:
        job.summary.count(name, 0)
    wait(_run(job, override))
    return job.summary


async def _run(job: JobContext, override: Override) -> None:
    async with opened_log(job.log) as log, living(log.store, job.job_id):
        cluster_id = await cluster_id_of(log.store)
        _tell(job, await remove_attempts(log.store, job.job_id, all_tasks_over=False))
        _tell(job, await emptied_trash(log.store))
        topics = await job.topics(log.store)
        works = await topic_works(log.store, topics, override, job.clock.now_ms())
        job.summary.count("topics", len(works))
        for work in works:
            await requests.take_up(log.store, work, job.job_id)
            if work.plan.store is None and (override.asks or work.store_missing):
                job.summary.failure(
                    "nothing says where to offload to: set --store, or the topic's or "
                    "namespace's offload policies, or managedLedgerOffloadDriver",
                    topic=str(work.topic),
                )
        tasks = [task for work in works for task in work.tasks]
        outcomes = await _written(job, log, cluster_id, tasks)
        _count(job.summary, outcomes)
        await _finish_requests(job, log, works, outcomes)
        await _release(job, log, works, override)
        _tell(job, await remove_attempts(log.store, job.job_id, all_tasks_over=True))
        await _sweep(job, log, cluster_id, works)


async def _written(
    job: JobContext, log: Log, cluster_id: str, tasks: list[LedgerTask]
) -> list[Outcome]:
    """Has Spark write the ledgers. Nothing to write starts no Spark."""
    if not tasks:
        return []
    tasks = sorted(tasks, key=lambda task: task.size_bytes, reverse=True)
    bookies = tuple(log.bookies.registrations())
    work = partial(offload_ledgers, job.log, job.job_id, cluster_id, bookies)
    return await asyncio.to_thread(_by_spark, job, tasks, work)


def _by_spark(
    job: JobContext,
    tasks: Sequence[LedgerTask],
    work: Callable[[Iterable[LedgerTask]], Iterator[Outcome]],
) -> list[Outcome]:
    """Has Spark's executors do the work, and shows the bytes that they have written."""
    total = sum(task.size_bytes for task in tasks)
    job.progress.say(f"{len(tasks):,} ledgers of {total / 1e6:,.1f} MB are to be offloaded")
    context = job.spark.sparkContext
    done = context.accumulator(0)

    def write(some: Iterable[list[LedgerTask]]) -> Iterator[Outcome]:
        keep_imports()
        for outcome in work(chain.from_iterable(some)):
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
    """What each task of Spark's gets of these ledgers, which come with the largest first."""
    wanted = -(-sum(task.size_bytes for task in tasks) // TASK_BYTES)
    count = min(max(wanted, TASKS_PER_CORE * cores), len(tasks), TASKS_MAX)
    return [list(tasks[number::count]) for number in range(count)]


def _count(summary: Summary, outcomes: list[Outcome]) -> None:
    by_result = Counter(outcome.result for outcome in outcomes)
    summary.count("ledgersOffloaded", by_result[Result.OFFLOADED])
    summary.count("ledgersByOthers", by_result[Result.ALREADY])
    summary.count("ledgersGone", by_result[Result.GONE])
    summary.count("executorCpuSeconds", round(sum(each.cpu_s for each in outcomes), 3))
    for each in outcomes:
        if each.result is Result.OFFLOADED:
            summary.count("entriesOffloaded", each.entries)
            summary.count("bytesOffloaded", each.length_bytes)
            summary.count("fileBytes", each.file_bytes)
        elif each.result is Result.FAILED:
            summary.failure(each.error, log=each.name, ledger=each.ledger_id)


async def _finish_requests(
    job: JobContext, log: Log, works: list[TopicWork], outcomes: list[Outcome]
) -> None:
    for work in works:
        errors = [each.error for each in outcomes if each.error and each.name == work.name]
        ended = await requests.finish(log.store, work, job.clock.now_ms(), errors)
        if ended is not None:
            job.summary.count("requestsFinished")


async def _release(job: JobContext, log: Log, works: list[TopicWork], override: Override) -> None:
    """Goes by the policies of this moment: writing may have taken hours, and no release is undone.

    A topic that is gone has nothing to release.
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


async def _sweep(job: JobContext, log: Log, cluster_id: str, works: list[TopicWork]) -> None:
    gate = asyncio.Semaphore(SWEEPS_AT_ONCE)

    async def one(spec: StoreSpec, name: str) -> None:
        async with gate:
            _tell(job, await sweep(log.store, spec, name, cluster_id, age_s=SWEEP_AGE_S))

    await asyncio.gather(*(one(spec, work.name) for spec, work in _places(works)))


def _places(works: list[TopicWork]) -> list[tuple[StoreSpec, TopicWork]]:
    """Where files of the topics are or may be."""
    places: list[tuple[StoreSpec, TopicWork]] = []
    for work in works:
        specs = {file.store for file, _ in work.files.values()}
        if work.plan.store is not None:
            specs.add(work.plan.store)
        places += [(spec, work) for spec in sorted(specs, key=str)]
    return places


def _tell(job: JobContext, removed: Removed) -> None:
    removed.tell(job.summary, "leftoversRemoved")
