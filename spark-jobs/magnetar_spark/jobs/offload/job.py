"""The steps of an offload, each of which may be repeated and cut short.

1. Attempts of dead jobs are removed, so that a store that was full has room.
2. Topics are planned from metadata: policies, requests, ledgers, live files.
3. Spark runs one task per ledger, the largest first; executors read, write, verify and commit.
4. Requests are finished.
5. Ledgers whose files have been live for the deletion lag are released by the bookies.
6. Leftovers are removed: attempts that tasks left, and files that nobody names.

The driver is asynchronous and waits for Spark in a thread, so that the job's lease is renewed.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Any, Final

import msgspec

from magnetar.core.errors import MetadataError
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.offload import requests
from magnetar_spark.jobs.offload.lease import living
from magnetar_spark.jobs.offload.leftovers import SWEEP_AGE_S, Removed, remove_attempts, sweep
from magnetar_spark.jobs.offload.planning import Override, TopicWork, topic_works
from magnetar_spark.jobs.offload.releasing import release
from magnetar_spark.jobs.offload.work import LedgerTask, Outcome, Result
from magnetar_spark.jobs.offload.writing import offload_ledgers
from magnetar_spark.jobs.progress import BYTES
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.log.access import Log, opened_log
from magnetar_spark.log.running import run as wait

CLUSTER_KEY: Final = "/cluster"
TASKS_MAX: Final = 10_000
"""Of Spark; each has more ledgers where there are more."""
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
    "failed",
)


class _Cluster(msgspec.Struct, frozen=True):
    """What is read of the cluster's record."""

    cluster_id: str


def run(job: JobContext) -> Summary:
    """See the module's text."""
    override = Override.of(job.arguments)
    for name in METRICS:
        job.summary.count(name, 0)
    wait(_run(job, override))
    return job.summary


async def _run(job: JobContext, override: Override) -> None:
    async with opened_log(job.log) as log, living(log.store, job.job_id):
        cluster_id = await _cluster_id(log)
        _add_removed(job, await remove_attempts(log.store, job.job_id, all_tasks_over=False))
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
        await _release(job, log, works)
        _add_removed(job, await remove_attempts(log.store, job.job_id, all_tasks_over=True))
        await _sweep(job, log, cluster_id, works)


async def _cluster_id(log: Log) -> str:
    record = await log.store.get(CLUSTER_KEY)
    if record is None:
        raise MetadataError(f"the metadata store holds no cluster ({CLUSTER_KEY} is not there)")
    return msgspec.json.decode(record.value, type=_Cluster).cluster_id


async def _written(
    job: JobContext, log: Log, cluster_id: str, tasks: list[LedgerTask]
) -> list[Outcome]:
    """Has Spark write the ledgers. Nothing to write starts no Spark."""
    if not tasks:
        return []
    tasks = sorted(tasks, key=lambda task: task.size_bytes, reverse=True)
    bookies = tuple(log.bookies.registrations())
    work = partial(offload_ledgers, job.log, job.job_id, cluster_id, bookies)
    total = sum(task.size_bytes for task in tasks)
    job.progress.say(f"{len(tasks):,} ledgers of {total / 1e6:,.1f} MB are to be offloaded")

    def collected() -> list[Outcome]:
        context = job.spark.sparkContext
        done = context.accumulator(0)

        def write(some: Any) -> Any:
            for outcome in work(some):
                done.add(outcome.length_bytes)
                yield outcome

        with job.progress.units("offloaded", total, BYTES) as advance:
            shown = 0

            def poll() -> None:
                nonlocal shown
                advance(done.value - shown)
                shown = done.value

            with job.progress.stages(context, poll):
                slices = min(len(tasks), TASKS_MAX)
                return context.parallelize(tasks, slices).mapPartitions(write).collect()

    return await asyncio.to_thread(collected)


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


async def _release(job: JobContext, log: Log, works: list[TopicWork]) -> None:
    lags = [(work.name, work.plan.deletion_lag_ms) for work in works]
    released = await release(log, lags, job.clock.now_ms())
    job.summary.count("ledgersReleased", released.ledgers)
    job.summary.count("bytesReleased", released.size_bytes)
    for name, ledger_id, error in released.errors:
        job.summary.failure(error, log=name, ledger=ledger_id)


async def _sweep(job: JobContext, log: Log, cluster_id: str, works: list[TopicWork]) -> None:
    gate = asyncio.Semaphore(SWEEPS_AT_ONCE)

    async def one(spec: StoreSpec, name: str) -> None:
        async with gate:
            _add_removed(job, await sweep(log.store, spec, name, cluster_id, age_s=SWEEP_AGE_S))

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


def _add_removed(job: JobContext, removed: Removed) -> None:
    job.summary.count("leftoversRemoved", removed.files)
    for what, error in removed.errors:
        job.summary.failure(error, leftover=what)
