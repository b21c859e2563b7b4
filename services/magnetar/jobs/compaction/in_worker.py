"""Compacts one topic as a broker does: the steps of a job, with the passes in a worker process."""

from functools import partial

from magnetar.core.clock import Clock
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.jobs.compaction import swap
from magnetar.jobs.compaction.here import Compacted, compact_here
from magnetar.jobs.compaction.leftovers import clean_attempts
from magnetar.jobs.compaction.second_pass import Writing
from magnetar.jobs.compaction.topic import Run, TopicCompaction
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.ranges import Range
from magnetar.jobs.sweeper import Report, ensure_cluster_id
from magnetar.jobs.worker.child import open_reader
from magnetar.jobs.worker.process import in_worker
from magnetar.offload.stores import StoreSpec


async def compact_topic(
    log: Log,
    topic: TopicName,
    report: Report,
    *,
    job_id: str,
    clock: Clock,
    index_bytes: int,
    disk_bytes: int,
    bytes_max: int,
    leaves_topics: bool,
    store_otherwise: StoreSpec | None,
) -> None:
    """Compacts the topic if due, and deletes what dead jobs have left. Raises MagnetarError."""
    async with swap.job_lease(log.store, job_id):
        run = Run(
            *(log, job_id, await ensure_cluster_id(log.store, clock.now_ms()), clock, report),
            reader=open_reader,
            engine=partial(_passes, log, index_bytes, disk_bytes),
            store_otherwise=store_otherwise,
            bytes_max=bytes_max,
            leaves_topics=leaves_topics,
        )
        # First to make room; last for what had to be kept until the topic was compacted as far.
        (await clean_attempts(log.store, report_kept=False)).report(report, "leftoversDeleted")
        await TopicCompaction(run, topic, named=False).run()
        (await clean_attempts(log.store, report_kept=False)).report(report, "leftoversDeleted")


async def _passes(
    log: Log, index_bytes: int, disk_bytes: int, writing: Writing, settled: Position
) -> Compacted:
    pieces = [piece for part in writing.parts for piece in part.pieces]
    ranges = [piece for piece in pieces if isinstance(piece, Range)]
    task = partial(compact_here, writing, settled, index_bytes, disk_bytes)
    result = await in_worker(log, task, ranges)
    if not isinstance(result, Compacted):
        raise PersistenceError(f"a worker process answered {type(result).__name__}")
    return result
