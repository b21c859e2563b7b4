"""The steps of a run: what the dead have left is cleaned up, then topic after topic.

Of each topic: the attempt on record, the plan, both passes, the commit; see `swap` for what may
happen in between. A topic that fails does not keep the others from their turn. What became of each
is told in the summary and in the topic's request record, which brokers show as its status.
"""

import asyncio
import hashlib
import re
from contextlib import suppress
from dataclasses import replace
from typing import Final

from magnetar.compaction.records import (
    CompactionRecord,
    RequestState,
)
from magnetar.core.errors import MagnetarError, PersistenceError, PreconditionFailed
from magnetar.core.ids import Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.metadata.store import MetadataStore
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.compact import base, choosing, swap
from magnetar_spark.jobs.compact.engine import (
    LOCAL_BYTES_MAX,
    Compacted,
    compact_by_spark,
    compact_here,
)
from magnetar_spark.jobs.compact.folders import clean_folders
from magnetar_spark.jobs.compact.leftovers import clean_attempts, sweep
from magnetar_spark.jobs.compact.pieces import settled
from magnetar_spark.jobs.compact.plan import Part, behind, part_bytes, parts_of
from magnetar_spark.jobs.compact.second_pass import Writing
from magnetar_spark.jobs.compact.status import ToldStatus
from magnetar_spark.jobs.compact.swap import Attempt, Live, Superseded
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.jobs.sweeping import SWEEP_AGE_S, Removed, cluster_id_of, emptied_trash
from magnetar_spark.log.access import Log, opened_log
from magnetar_spark.log.ledgers import TopicLog, topic_log
from magnetar_spark.log.planning import Range, Window, ranges_of
from magnetar_spark.log.running import run as wait
from magnetar_spark.log.topics import log_name

_OUR_ERROR: Final = re.compile(r"magnetar[\w.]*: ")


def run(job: JobContext) -> Summary:
    """See the module's text."""
    return wait(_run(job))


async def _run(job: JobContext) -> Summary:
    for name in ("topicsCompacted", "topicsUpToDate", "messagesRead", "messagesKept"):
        job.summary.count(name, 0)
    async with opened_log(job.log) as log, swap.job_lease(log.store, job.job_id):
        cluster_id = await cluster_id_of(log.store)
        await _clean(job, log.store)
        named = {parse_topic(name).base for name in job.arguments.topic}
        for topic in await job.topics(log.store):
            wanted = topic.base in named or topic in named
            await _Topic(job, log, topic, cluster_id, wanted=wanted).run()
        await _clean_attempts(job, log.store, last=True)
    return job.summary


async def _clean(job: JobContext, store: MetadataStore) -> None:
    """What cannot be cleaned up now does not keep topics from being compacted."""
    job.summary.count("leftoversDeleted", 0)
    try:
        _tell(job, await emptied_trash(store))
    except MagnetarError as error:
        job.summary.failure(f"leftovers: {error}")
    await _clean_attempts(job, store, last=False)


async def _clean_attempts(job: JobContext, store: MetadataStore, *, last: bool) -> None:
    """Of dead jobs: at first for room, and once more for those of topics compacted since."""
    try:
        _tell(job, await clean_attempts(store, tell_kept=last))
    except MagnetarError as error:
        job.summary.failure(f"leftovers: {error}")


def _tell(job: JobContext, removed: Removed) -> None:
    removed.tell(job.summary, "leftoversDeleted")


class _Topic:
    """One topic's turn."""

    def __init__(
        self, job: JobContext, log: Log, topic: TopicName, cluster_id: str, *, wanted: bool
    ) -> None:
        self._job = job
        self._cluster_id = cluster_id
        self._log = log
        self._topic = topic
        self._name = log_name(topic)
        self._wanted = wanted
        self._status = ToldStatus(log.store, self._name, job.job_id, job.clock)

    async def run(self) -> None:
        """Never raises what is this topic's alone."""
        store, summary = self._log.store, self._job.summary
        try:
            now_ms = self._job.clock.now_ms()
            _tell(self._job, await swap.clean_retired(store, self._name, now_ms))
            _tell(self._job, await clean_folders(store, self._name))
            said = await choosing.said_of(store, self._name)
            self._status.read(said.revision)
            target = self._target(said.store)
            if not (self._wanted or said.requested or said.threshold_bytes > 0):
                return
            await self._compact_if_due(said, target)
            await self._sweep(target)
        except Superseded as error:
            summary.count("topicsCompactedByOthers")
            summary.detail(topic=str(self._topic), state="superseded", reason=str(error))
            await self._status.tell(RequestState.PENDING)
        except (MagnetarError, OSError, TimeoutError) as error:
            text = str(error) or type(error).__name__
            summary.failure(text, topic=str(self._topic))
            await self._status.tell(RequestState.ERROR, text)

    async def _sweep(self, target: StoreSpec | None) -> None:
        """Where files of the topic are or may be."""
        record = (await swap.live(self._log.store, self._name))[0].record
        specs = set() if target is None else {target}
        if record is not None:
            specs |= {record.store, *(file.store for file in record.retired)}
        for spec in sorted(specs, key=str):
            swept = await sweep(
                self._log.store, spec, self._name, self._cluster_id, age_s=SWEEP_AGE_S
            )
            if spec != target and (record is None or spec != record.store):
                # Only files that were replaced are there: the store may be gone for good.
                swept.kept, swept.errors = swept.kept + swept.errors, []
            _tell(self._job, swept)

    def _target(self, by_policy: StoreSpec | None) -> StoreSpec | None:
        given = self._job.arguments
        if given.store:
            return choosing.parse_store(
                given.store, endpoint=given.store_endpoint or "", region=given.store_region or ""
            )
        return by_policy

    async def _compact_if_due(self, said: choosing.Said, target: StoreSpec | None) -> None:
        store, summary = self._log.store, self._job.summary
        planned = await swap.live(store, self._name)
        log = await whole_log(self._log, self._topic)
        now_ms = self._job.clock.now_ms()
        before = await base.usable(self._name, planned[0], log.trimmed_to, now_ms)
        horizon = log.end
        ranges = self._ranges(log, before, horizon)
        if not ranges:
            summary.count("topicsUpToDate")
            if said.requested is not None:
                await self._status.tell(RequestState.SUCCESS)
            return
        new_bytes = sum(each.size_bytes for each in ranges)
        if not (self._wanted or said.requested or new_bytes >= said.threshold_bytes):
            summary.count("topicsBelowThreshold")
            return
        if target is None:
            raise PreconditionFailed(
                f"{self._topic}: nothing says where artefacts go: give --store, or set an offload "
                "driver and bucket for the topic, its namespace or the brokers"
            )
        await self._status.tell(RequestState.RUNNING)
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
        await self._status.tell(RequestState.SUCCESS)

    def _ranges(self, log: TopicLog, before: Live, horizon: Position) -> list[Range]:
        known = before.record
        window = Window(behind(None if known is None else known.horizon), horizon)
        return list(ranges_of(log, window, self._part_bytes(log, known)))

    def _part_bytes(self, log: TopicLog, known: CompactionRecord | None) -> int:
        total = sum(span.size_bytes for span in log.ledgers)
        total += 0 if known is None else known.length_bytes
        return part_bytes(total, self._job.arguments.parallelism)

    async def _compact(self, attempt: Attempt, log: TopicLog, horizon: Position) -> None:
        job, before = self._job, attempt.based_on
        known = before.record
        ranges = self._ranges(log, before, horizon)
        parts = parts_of(known, ranges, self._part_bytes(log, known))
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
        found = await _passes(job, writing, parts, settled(known, job.clock.now_ms()))
        kept = sum(file.messages for file in found.files)
        removed = found.messages_read - kept
        record = await swap.commit(
            self._log.store, attempt, horizon, found.files, removed=removed, clock=job.clock
        )
        with suppress(MagnetarError):  # else the next run finds it
            _tell(job, await clean_folders(self._log.store, self._name))
        summary = job.summary
        summary.count("topicsCompacted")
        for name, count in (
            ("entriesRead", found.entries_read),
            ("bytesRead", found.bytes_read),
            ("messagesRead", found.messages_read),
            ("messagesKept", kept),
            ("entriesKept", record.entries),
            ("bytesWritten", sum(file.file_bytes for file in found.files)),
            ("files", len(found.files)),
        ):
            summary.count(name, count)
        summary.detail(
            topic=str(self._topic),
            horizon=str(horizon),
            read=found.messages_read,
            kept=kept,
            files=len(found.files),
        )


def _number(job_id: str, name: str) -> str:
    """The attempt's number: a job tries each topic once."""
    return hashlib.sha256(f"{job_id}/{name}".encode()).hexdigest()[:32]


async def _passes(
    job: JobContext, writing: Writing, parts: list[Part], settled: Position
) -> Compacted:
    """Spark and its tasks have event loops of their own: they run beside this one, which renews
    the lease meanwhile."""
    total = sum(part.size_bytes for part in parts)
    if total <= LOCAL_BYTES_MAX and not job.arguments.always_spark:
        found = await asyncio.to_thread(compact_here, writing, settled)
        if found is not None:
            return found
    try:
        return await asyncio.to_thread(compact_by_spark, job.spark, writing, settled, job.progress)
    except (MagnetarError, OSError, TimeoutError):
        raise
    except Exception as error:
        # What goes wrong in a task comes as an exception of Spark's or of Py4J's.
        what = f"Spark could not compact {writing.managed_ledger}"
        raise PersistenceError(f"{what}: {told_by_spark(error)}") from error


def told_by_spark(error: Exception) -> str:
    """What its text says first, or, somewhere among tracebacks, an error of ours in a task."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if _OUR_ERROR.match(line)]
    said = ours[0] if ours else next(filter(None, lines), "")
    return said or type(error).__name__


async def whole_log(log: Log, topic: TopicName) -> TopicLog:
    """The topic's ledgers; raises PersistenceError where one that is listed cannot be found.

    What a compaction does not read it would leave out for good.
    """
    found = await topic_log(log, topic)
    if found.gone:
        missing = [item.ledger_id for item in found.gone[:5]]
        raise PersistenceError(
            f"{topic}: ledgers {missing} stand in its record, and are neither on bookies nor in "
            "files"
        )
    return found
