"""The steps of a compaction run: clean up after dead jobs, then compact topic after topic.

Per topic: record the attempt, plan, run both passes, commit; `swap` describes what may happen in
between. A topic that fails does not stop the others. The result of each topic is written to the
summary, and to the topic's request record, which brokers show as its compaction status.
"""

import asyncio
import hashlib
import re
from contextlib import suppress
from dataclasses import replace
from typing import Final

from magnetar.compaction.records import CompactionRecord
from magnetar.core.errors import MagnetarError, PersistenceError, PreconditionFailed
from magnetar.core.ids import Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.metadata.store import MetadataStore
from magnetar.offload.records import RequestState
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.compact import base, swap
from magnetar_spark.jobs.compact.chunks import settled
from magnetar_spark.jobs.compact.engine import (
    LOCAL_BYTES_MAX,
    Compacted,
    compact_by_spark,
    compact_here,
)
from magnetar_spark.jobs.compact.folders import clean_folders
from magnetar_spark.jobs.compact.leftovers import clean_attempts, sweep
from magnetar_spark.jobs.compact.plan import Part, behind, part_bytes, parts_of
from magnetar_spark.jobs.compact.second_pass import Writing
from magnetar_spark.jobs.compact.selection import TopicSettings, topic_settings
from magnetar_spark.jobs.compact.status import CompactionStatus
from magnetar_spark.jobs.compact.swap import Attempt, Live, Superseded
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.store_flag import store_of
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.jobs.sweeper import SWEEP_AGE_S, Removed, cluster_id_of, empty_trash
from magnetar_spark.log.access import Log, opened_log
from magnetar_spark.log.event_loop import run as run_async
from magnetar_spark.log.ledgers import topic_log
from magnetar_spark.log.ranges import Range, Window, ranges_of
from magnetar_spark.log.topic_log import TopicLog
from magnetar_spark.log.topics import log_name

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
        for topic in await job.topics(log.store):
            named_by_flag = topic.base in named or topic in named
            await _Topic(job, log, topic, cluster_id, named=named_by_flag).run()
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


class _Topic:
    """The compaction of one topic. `named` if a flag names the topic."""

    def __init__(
        self, job: JobContext, log: Log, topic: TopicName, cluster_id: str, *, named: bool
    ) -> None:
        self._job = job
        self._cluster_id = cluster_id
        self._log = log
        self._topic = topic
        self._name = log_name(topic)
        self._named = named
        self._status = CompactionStatus(log.store, self._name, job.job_id, job.clock)

    async def run(self) -> None:
        """Compacts the topic if due. An error that concerns only this topic is reported."""
        store, summary = self._log.store, self._job.summary
        try:
            now_ms = self._job.clock.now_ms()
            _report(self._job, await swap.clean_retired(store, self._name, now_ms))
            _report(self._job, await clean_folders(store, self._name))
            settings = await topic_settings(store, self._name)
            self._status.read(settings.revision)
            target = store_of(self._job.arguments) or settings.store
            if not (self._named or settings.requested or settings.threshold_bytes > 0):
                return
            await self._compact_if_due(settings, target)
            await self._sweep(target)
        except Superseded as error:
            summary.count("topicsCompactedByOthers")
            summary.detail(topic=str(self._topic), state="superseded", reason=str(error))
            await self._status.update(RequestState.PENDING)
        except (MagnetarError, OSError, TimeoutError) as error:
            text = str(error) or type(error).__name__
            summary.failure(text, topic=str(self._topic))
            await self._status.update(RequestState.ERROR, text)

    async def _sweep(self, target: StoreSpec | None) -> None:
        """Sweeps all stores that have, or may have, files of the topic."""
        record = (await swap.live(self._log.store, self._name))[0].record
        specs = set() if target is None else {target}
        if record is not None:
            specs |= {record.store, *(file.store for file in record.retired)}
        for spec in sorted(specs, key=str):
            swept = await sweep(
                self._log.store, spec, self._name, self._cluster_id, age_s=SWEEP_AGE_S
            )
            if spec != target and (record is None or spec != record.store):
                # It has only replaced files, and may have been shut down.
                swept.kept, swept.errors = swept.kept + swept.errors, []
            _report(self._job, swept)

    async def _compact_if_due(self, settings: TopicSettings, target: StoreSpec | None) -> None:
        store, summary = self._log.store, self._job.summary
        planned = await swap.live(store, self._name)
        log = await whole_log(self._log, self._topic)
        now_ms = self._job.clock.now_ms()
        before = await base.usable(self._name, planned[0], log.trimmed_to, now_ms)
        horizon = log.end
        ranges = self._ranges(log, before, horizon)
        if not ranges:
            summary.count("topicsUpToDate")
            if settings.requested is not None:
                await self._status.update(RequestState.SUCCESS)
            return
        new_bytes = sum(span.size_bytes for span in ranges)
        if not (self._named or settings.requested or new_bytes >= settings.threshold_bytes):
            summary.count("topicsBelowThreshold")
            return
        if target is None:
            raise PreconditionFailed(
                f"{self._topic}: no store for artifacts: give --store, or set an offload driver "
                "and bucket for the topic, its namespace or the brokers"
            )
        await self._status.update(RequestState.RUNNING)
        job = self._job
        number = _number(job.job_id, self._name)
        attempt = await swap.begin(
            store, self._name, number, target, job.job_id, job.clock, planned=planned
        )
        attempt = replace(attempt, based_on=replace(before, revision=attempt.based_on.revision))
        try:
            await self._compact(attempt, log, horizon)
        except BaseException:
            await swap.give_up(store, attempt)
            raise
        await self._status.update(RequestState.SUCCESS)

    def _ranges(self, log: TopicLog, before: Live, horizon: Position) -> list[Range]:
        previous = before.record
        window = Window(behind(None if previous is None else previous.horizon), horizon)
        return list(ranges_of(log, window, self._part_bytes(log, previous)))

    def _part_bytes(self, log: TopicLog, previous: CompactionRecord | None) -> int:
        total = sum(span.size_bytes for span in log.ledgers)
        total += 0 if previous is None else previous.length_bytes
        return part_bytes(total, self._job.arguments.parallelism)

    async def _compact(self, attempt: Attempt, log: TopicLog, horizon: Position) -> None:
        job, before = self._job, attempt.based_on
        previous = before.record
        ranges = self._ranges(log, before, horizon)
        parts = parts_of(previous, ranges, self._part_bytes(log, previous))
        writing = Writing(
            settings=job.log,
            bookies=tuple(self._log.bookies.registrations()),
            parts=tuple(parts),
            store=attempt.record.store,
            folder=attempt.folder,
            managed_ledger=self._name,
            cluster_id=self._cluster_id,
            horizon=horizon,
        )
        compacted = await _run_passes(job, writing, parts, settled(previous, job.clock.now_ms()))
        kept = sum(file.messages for file in compacted.files)
        removed = compacted.messages_read - kept
        record = await swap.commit(
            self._log.store, attempt, horizon, compacted.files, removed=removed, clock=job.clock
        )
        with suppress(MagnetarError):  # otherwise the next run does it
            _report(job, await clean_folders(self._log.store, self._name))
        summary = job.summary
        summary.count("topicsCompacted")
        for name, count in (
            ("entriesRead", compacted.entries_read),
            ("bytesRead", compacted.bytes_read),
            ("messagesRead", compacted.messages_read),
            ("messagesKept", kept),
            ("entriesKept", record.entries),
            ("bytesWritten", sum(file.file_bytes for file in compacted.files)),
            ("files", len(compacted.files)),
        ):
            summary.count(name, count)
        summary.detail(
            topic=str(self._topic),
            horizon=str(horizon),
            read=compacted.messages_read,
            kept=kept,
            files=len(compacted.files),
        )


def _number(job_id: str, name: str) -> str:
    """The attempt's number: a job attempts each topic once."""
    return hashlib.sha256(f"{job_id}/{name}".encode()).hexdigest()[:32]


async def _run_passes(
    job: JobContext, writing: Writing, parts: list[Part], settled: Position
) -> Compacted:
    """Runs the passes in a thread: they have event loops of their own, and this one renews the
    lease meanwhile."""
    total = sum(part.size_bytes for part in parts)
    if total <= LOCAL_BYTES_MAX and not job.arguments.always_spark:
        compacted = await asyncio.to_thread(compact_here, writing, settled)
        if compacted is not None:
            return compacted
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


async def whole_log(log: Log, topic: TopicName) -> TopicLog:
    """The topic's ledgers. Raises PersistenceError if a listed ledger cannot be found.

    Without it, a compaction would permanently lose the contents of a ledger that it does not read.
    """
    current = await topic_log(log, topic)
    if current.gone:
        missing = [item.ledger_id for item in current.gone[:5]]
        raise PersistenceError(
            f"{topic}: its record lists ledgers {missing}, which are neither on bookies nor in "
            "files"
        )
    return current
