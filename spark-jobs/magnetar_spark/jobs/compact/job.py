"""The steps of a compaction run: clean up after dead jobs, then compact topic after topic.

A topic that fails does not stop the others. The result of each topic is written to the summary
(`magnetar.jobs.compaction.topic`).
"""

import asyncio
import re
from functools import partial
from typing import Final

from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.compaction import swap
from magnetar.jobs.compaction.here import Compacted, compact_here
from magnetar.jobs.compaction.leftovers import clean_attempts
from magnetar.jobs.compaction.second_pass import Writing
from magnetar.jobs.compaction.topic import Run, TopicCompaction
from magnetar.jobs.event_loop import run as run_async
from magnetar.jobs.sweeper import Removed, cluster_id_of, empty_trash
from magnetar.metadata.store import MetadataStore
from magnetar_spark.jobs.compact.engine import LOCAL_BYTES_MAX, compact_by_spark
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.store_flag import store_of
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.entry_reader import EntryReader

_OUR_ERROR: Final = re.compile(r"magnetar[\w.]*: ")


def compact(job: JobContext) -> Summary:
    """Compacts the selected topics."""
    return run_async(_compact(job))


async def _compact(job: JobContext) -> Summary:
    for name in ("topicsCompacted", "topicsUpToDate", "messagesRead", "messagesKept"):
        job.summary.count(name, 0)
    async with opened_log(job.log) as log, swap.job_lease(log.store, job.job_id):
        cluster_id = await cluster_id_of(log.store)
        await _clean(job, log.store)
        named = {parse_topic(name).base for name in job.arguments.topic}
        run = Run(
            *(log, job.job_id, cluster_id, job.clock, job.summary),
            reader=partial(EntryReader, job.log, tuple(log.bookies.registrations())),
            engine=partial(_run_passes, job),
            parallelism=job.arguments.parallelism,
            store=partial(store_of, job.arguments),
        )
        for topic in await job.topics(log.store):
            named_by_flag = topic.base in named or topic in named
            await TopicCompaction(run, topic, named=named_by_flag).run()
        await _clean_attempts(job, log.store, last=True)
    return job.summary


async def _clean(job: JobContext, store: MetadataStore) -> None:
    """Cleans up. Errors do not prevent topics from being compacted."""
    job.summary.count("leftoversDeleted", 0)
    try:
        _report(job, await empty_trash(store))
    except MagnetarError as error:
        job.summary.failure(f"leftovers: {error}")
    await _clean_attempts(job, store, last=False)


async def _clean_attempts(job: JobContext, store: MetadataStore, *, last: bool) -> None:
    """Cleans up dead jobs' attempts: first to make room, last for topics compacted since."""
    try:
        _report(job, await clean_attempts(store, report_kept=last))
    except MagnetarError as error:
        job.summary.failure(f"leftovers: {error}")


def _report(job: JobContext, removed: Removed) -> None:
    removed.report(job.summary, "leftoversDeleted")


async def _run_passes(job: JobContext, writing: Writing, settled: Position) -> Compacted:
    """Runs the passes in a thread: they have event loops of their own, and this one renews the
    lease meanwhile."""
    total = sum(part.size_bytes for part in writing.parts)
    if total <= LOCAL_BYTES_MAX and not job.arguments.always_spark:
        return await asyncio.to_thread(compact_here, writing, settled)
    try:
        return await asyncio.to_thread(compact_by_spark, job.spark, writing, settled, job.progress)
    except (MagnetarError, OSError, TimeoutError):
        raise
    except Exception as error:
        # An error in a task arrives as an exception of Spark or Py4J.
        what = f"Spark could not compact {writing.managed_ledger}"
        raise PersistenceError(f"{what}: {spark_error_text(error)}") from error


def spark_error_text(error: Exception) -> str:
    """The first error of ours among an exception's tracebacks, or else its first line."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if _OUR_ERROR.match(line)]
    text = ours[0] if ours else next(filter(None, lines), "")
    return text or type(error).__name__
