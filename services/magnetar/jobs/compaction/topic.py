"""The compaction of one topic: whether it is due, its attempt, both passes, and the commit.

`swap` describes what may happen between the steps. An error that concerns only this topic is
reported, and written to the topic's request record, which brokers show as its compaction status.
The engine runs the passes: Spark, this process (`here`), or a worker process of a broker.
"""

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from magnetar.compaction.records import CompactionRecord
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, PersistenceError, PreconditionFailed
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.jobs.compaction import base, swap
from magnetar.jobs.compaction.chunks import settled
from magnetar.jobs.compaction.folders import clean_folders
from magnetar.jobs.compaction.here import Compacted
from magnetar.jobs.compaction.leftovers import sweep
from magnetar.jobs.compaction.plan import behind, part_bytes, parts_of
from magnetar.jobs.compaction.second_pass import Writing
from magnetar.jobs.compaction.selection import TopicSettings, topic_settings
from magnetar.jobs.compaction.status import CompactionStatus
from magnetar.jobs.compaction.swap import Attempt, Live, Superseded
from magnetar.jobs.log.ledgers import topic_log
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.range_reader import OpenReader
from magnetar.jobs.log.ranges import Range, Window, ranges_of
from magnetar.jobs.log.topic_log import TopicLog
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.sweeper import SWEEP_AGE_S, Removed, Report
from magnetar.offload.records import RequestState
from magnetar.offload.stores import StoreSpec

Engine = Callable[[Writing, Position], Awaitable[Compacted]]
"""Runs the passes. The position is that of `chunks.settled`."""

UNBOUNDED: Final = -1


@dataclass(frozen=True, slots=True)
class Run:
    """One run of compactions: what its topics have in common."""

    log: Log
    job_id: str
    cluster_id: str
    clock: Clock
    report: Report
    reader: OpenReader
    engine: Engine
    parallelism: int = 1
    store: Callable[[], StoreSpec | None] = lambda: None
    """Where artifacts go, regardless of policies; None leaves it to them. It may raise."""
    store_otherwise: StoreSpec | None = None
    """Where artifacts go if no policy names a store."""
    bytes_max: int = UNBOUNDED
    """The input above which a topic is left to another job."""
    leaves_topics: bool = False
    """Whether another job may take a topic that has no store, or is too large."""


class TopicCompaction:
    """The compaction of one topic. `named` if it is to be compacted without a request."""

    def __init__(self, run: Run, topic: TopicName, *, named: bool) -> None:
        self._run = run
        self._topic = topic
        self._name = log_name(topic)
        self._named = named
        self._status = CompactionStatus(run.log.store, self._name, run.job_id, run.clock)

    async def run(self) -> None:
        """Compacts the topic if due. An error that concerns only this topic is reported."""
        run, store, report = self._run, self._run.log.store, self._run.report
        try:
            self._report(await swap.clean_retired(store, self._name, run.clock.now_ms()))
            self._report(await clean_folders(store, self._name))
            settings = await topic_settings(store, self._name)
            self._status.read(settings.revision)
            target = run.store() or settings.store or run.store_otherwise
            if not (self._named or settings.requested or settings.threshold_bytes > 0):
                return
            await self._compact_if_due(settings, target)
            await self._sweep(target)
        except Superseded as error:
            report.count("topicsCompactedByOthers")
            report.detail(topic=str(self._topic), state="superseded", reason=str(error))
            await self._status.update(RequestState.PENDING)
        except (MagnetarError, OSError, TimeoutError) as error:
            text = str(error) or type(error).__name__
            report.failure(text, topic=str(self._topic))
            await self._status.update(RequestState.ERROR, text)

    def _report(self, removed: Removed) -> None:
        removed.report(self._run.report, "leftoversDeleted")

    async def _sweep(self, target: StoreSpec | None) -> None:
        """Sweeps all stores that have, or may have, files of the topic."""
        store = self._run.log.store
        record = (await swap.live(store, self._name))[0].record
        specs = set() if target is None else {target}
        if record is not None:
            specs |= {record.store, *(file.store for file in record.retired)}
        for spec in sorted(specs, key=str):
            cluster_id = self._run.cluster_id
            swept = await sweep(store, spec, self._name, cluster_id, age_s=SWEEP_AGE_S)
            if spec != target and (record is None or spec != record.store):
                # It has only replaced files, and may have been shut down.
                swept.kept, swept.errors = swept.kept + swept.errors, []
            self._report(swept)

    async def _compact_if_due(self, settings: TopicSettings, target: StoreSpec | None) -> None:
        run, store, report = self._run, self._run.log.store, self._run.report
        planned = await swap.live(store, self._name)
        log = await whole_log(run.log, self._topic)
        now_ms = run.clock.now_ms()
        before = await base.usable(self._name, planned[0], log.trimmed_to, now_ms)
        horizon = log.end
        ranges = self._ranges(log, before, horizon)
        if not ranges:
            report.count("topicsUpToDate")
            if settings.requested is not None:
                await self._status.update(RequestState.SUCCESS)
            return
        new_bytes = sum(span.size_bytes for span in ranges)
        if not (self._named or settings.requested or new_bytes >= settings.threshold_bytes):
            report.count("topicsBelowThreshold")
            return
        if target is None and run.leaves_topics:
            await self._leave(settings, "no store is configured: a job has --store", new_bytes)
            return
        if target is None:
            raise PreconditionFailed(
                f"{self._topic}: no store for artifacts: give --store, or set an offload driver "
                "and bucket for the topic, its namespace or the brokers"
            )
        old_bytes = 0 if before.record is None else before.record.length_bytes
        if run.bytes_max != UNBOUNDED and new_bytes + old_bytes > run.bytes_max:
            await self._leave(settings, "too large", new_bytes + old_bytes)
            return
        await self._status.update(RequestState.RUNNING)
        attempt = await swap.begin(
            *(store, self._name, _number(run.job_id, self._name), target, run.job_id, run.clock),
            planned=planned,
        )
        attempt = replace(attempt, based_on=replace(before, revision=attempt.based_on.revision))
        try:
            await self._compact(attempt, log, horizon)
        except BaseException:
            with suppress(MagnetarError, OSError, TimeoutError):  # the next job does it
                await swap.give_up(store, attempt)
            raise
        await self._status.update(RequestState.SUCCESS)

    async def _leave(self, settings: TopicSettings, why: str, size_bytes: int) -> None:
        """Leaves the topic to a job, which takes it for the request that is open then."""
        self._run.report.count("topicsLeftToJobs")
        self._run.report.detail(topic=str(self._topic), state=why, bytes=size_bytes)
        # A running job's status must stay its own: it writes the result only over what it wrote.
        if settings.requested is None and not settings.in_progress:
            await self._status.update(RequestState.PENDING)

    def _ranges(self, log: TopicLog, before: Live, horizon: Position) -> list[Range]:
        previous = before.record
        window = Window(behind(None if previous is None else previous.horizon), horizon)
        return list(ranges_of(log, window, self._part_bytes(log, previous)))

    def _part_bytes(self, log: TopicLog, previous: CompactionRecord | None) -> int:
        total = sum(span.size_bytes for span in log.ledgers)
        total += 0 if previous is None else previous.length_bytes
        return part_bytes(total, self._run.parallelism)

    async def _compact(self, attempt: Attempt, log: TopicLog, horizon: Position) -> None:
        run, before = self._run, attempt.based_on
        previous = before.record
        ranges = self._ranges(log, before, horizon)
        writing = Writing(
            reader=run.reader,
            parts=tuple(parts_of(previous, ranges, self._part_bytes(log, previous))),
            store=attempt.record.store,
            folder=attempt.folder,
            managed_ledger=self._name,
            cluster_id=run.cluster_id,
            horizon=horizon,
        )
        compacted = await run.engine(writing, settled(previous, run.clock.now_ms()))
        kept = sum(file.messages for file in compacted.files)
        removed = compacted.messages_read - kept
        record = await swap.commit(
            run.log.store, attempt, horizon, compacted.files, removed=removed, clock=run.clock
        )
        with suppress(MagnetarError):  # otherwise the next run does it
            self._report(await clean_folders(run.log.store, self._name))
        report = run.report
        report.count("topicsCompacted")
        for name, count in (
            ("entriesRead", compacted.entries_read),
            ("bytesRead", compacted.bytes_read),
            ("messagesRead", compacted.messages_read),
            ("messagesKept", kept),
            ("entriesKept", record.entries),
            ("bytesWritten", sum(file.file_bytes for file in compacted.files)),
            ("files", len(compacted.files)),
        ):
            report.count(name, count)
        report.detail(
            topic=str(self._topic),
            horizon=str(horizon),
            read=compacted.messages_read,
            kept=kept,
            files=len(compacted.files),
        )


def _number(job_id: str, name: str) -> str:
    """The attempt's number: a job attempts each topic once."""
    return hashlib.sha256(f"{job_id}/{name}".encode()).hexdigest()[:32]


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
