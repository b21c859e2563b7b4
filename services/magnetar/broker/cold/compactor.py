"""Compacts topics of this broker: on request, and above their threshold.

One topic at a time, in a worker process, with the steps and fences of a job
(`magnetar.jobs.compaction`): so a job, another broker, or a former owner that compacts the same
topic excludes itself and this broker from committing both. A topic that is too large, or has no
store, is left to a job: `left` names those that wait, for `due_jobs`.

The queue holds names of loaded topics, each at most once. A topic whose compaction failed is tried
again after RETRY_S, or when it is requested.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.catalog.topic_names import is_system_topic, topic_of_ledger
from magnetar.broker.cold.compaction import Compaction
from magnetar.broker.topic.open_topics import OpenTopics
from magnetar.broker.topic.persistent import PersistentTopic, as_persistent
from magnetar.compaction.records import JOBS_PREFIX, REQUESTS_PREFIX
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName
from magnetar.core.tasks import TaskSet
from magnetar.documents.due_jobs import DueTopic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.store import MetadataStore, MetadataUnavailable, StoreClosed
from magnetar.offload.stores import StoreSpec
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD

log = get_logger("magnetar.compaction")

RETRY_S: Final = 600.0
LATENCY_BOUNDS_MS: Final = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
"""Pulsar's buckets."""
DISABLED: Final = "brokers compact nothing: compaction_topic_size_mb_max is 0"
TOPICS_PER_TURN: Final = 1_000
"""Loaded topics that a check looks at before it lets the event loop do other work."""


@dataclass(slots=True)
class Counters:
    """The compactions of one topic by this broker, for metrics."""

    succeeded: int = 0
    failed: int = 0
    removed: int = 0
    """Messages."""
    duration_ms: int = 0
    """Of the last one."""
    read_bytes: int = 0
    """Of the last one, as `written_bytes`."""
    written_bytes: int = 0
    entries: int = 0
    """In the artifact, as `size_bytes`."""
    size_bytes: int = 0
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))
    """Compactions by their duration; the last are longer than all bounds."""
    latency_sum_ms: int = 0

    def lasted(self, duration_ms: int) -> None:
        """A compaction has succeeded, and lasted so long."""
        self.duration_ms = duration_ms
        self.latencies[bisect_left(LATENCY_BOUNDS_MS, duration_ms)] += 1
        self.latency_sum_ms += duration_ms


@dataclass(slots=True)
class Result:
    """What a compaction reports (`jobs.sweeper.Report`)."""

    counts: dict[str, int | float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    remarks: list[dict[str, Any]] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    """What could not be deleted of earlier attempts, maybe another topic's, and why."""

    def count(self, name: str, by: int | float = 1) -> None:
        """Adds to a counter."""
        self.counts[name] = self.counts.get(name, 0) + by

    def detail(self, **fields: Any) -> None:
        """Adds a remark."""
        self.remarks.append(fields)

    def failure(self, error: str, **fields: Any) -> None:
        """Adds an error."""
        if (leftover := fields.get("leftover")) is not None:
            self.leftovers.append(f"{leftover}: {error}")
        else:
            self.errors.append(error)


Compact = Callable[[TopicName, StoreSpec | None, Result], Awaitable[None]]
"""Compacts one topic, if it is due. The store is that of `Compactor.artifacts`."""


class Compactor:
    """The queue of topics to compact, and the check that fills it."""

    def __init__(
        self,
        compaction: Compaction,
        store: MetadataStore,
        topics: OpenTopics,
        clock: Clock,
        compact: Compact,
        *,
        enabled: bool,
    ) -> None:
        self.counters: dict[str, Counters] = {}
        """By the full names of topics that this broker has compacted and that are loaded."""
        self.left: dict[str, DueTopic] = {}
        """Loaded topics that were left to a job and may still wait, by full name."""
        self.artifacts: StoreSpec | None = None
        """Where artifacts go if no policy names a store."""
        self.enabled = enabled
        self.compaction = compaction
        self._store = store
        self._topics = topics
        self._clock = clock
        self._compact = compact
        self._tasks = TaskSet("compaction")
        self._queue: dict[str, None] = {}
        self._running = False
        self._retry_at: dict[str, float] = {}
        self._below: dict[str, tuple[Position, int]] = {}
        """Topics with too little to compact: their `_state` when that was found."""

    async def forget_jobs(self) -> None:
        """Ends the compactions on record; for a broker that is alone, when it starts.

        Their process is dead, but its leases are kept for a while: until then they would count as
        running.
        """
        for stored in await self._store.list(JOBS_PREFIX):
            await self._store.delete(stored.key)

    async def stop(self) -> None:
        """Cancels the compaction in progress; the next one deletes what it leaves."""
        self._queue.clear()
        await self._tasks.stop()

    def requested(self, logs: Iterable[str]) -> None:
        """Compacts these managed ledgers, if their topics are loaded here."""
        for name in logs:
            topic = str(topic_of_ledger(name))
            self._retry_at.pop(topic, None)
            self._add(topic)

    def _add(self, topic: str) -> None:
        if topic not in self._topics:
            return
        if not self.enabled:
            self.left[topic] = DueTopic(topic, DISABLED)
            return
        self._queue[topic] = None
        if not self._running:
            self._running = True
            self._tasks.start(self._work(), "queue")

    async def check(self) -> None:
        """Adds the topics that are due: those with open requests, and those above a threshold."""
        if not self.enabled:
            self.left.clear()  # those that still wait are added again
        self._forget_gone()
        now = self._clock.monotonic()
        self._retry_at = {name: at for name, at in self._retry_at.items() if at > now}
        for number, stored in enumerate(await self._store.list(REQUESTS_PREFIX), 1):
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            name = stored.key.removeprefix(REQUESTS_PREFIX)
            topic = str(topic_of_ledger(name))
            if topic in self._retry_at or topic not in self._topics:
                continue
            if await _readable(self.compaction.is_open(stored), topic):
                self._add(topic)
        self._below = {name: at for name, at in self._below.items() if name in self._topics}
        for number, loaded in enumerate(self._topics, 1):
            topic_above = as_persistent(loaded)
            if topic_above is not None and await _readable(
                self._is_above(topic_above), topic_above.full_name
            ):
                self._add(topic_above.full_name)
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _forget_gone(self) -> None:
        for name in [name for name in self.counters if name not in self._topics]:
            del self.counters[name]
        for name in [name for name in self.left if name not in self._topics]:
            del self.left[name]

    async def forget_compacted(self) -> None:
        """Forgets left topics that no longer wait for a job. Raises MetadataError."""
        self._forget_gone()
        if not self.enabled:
            return  # a topic above its threshold has no request then; `check` lists all of them
        for name, due in list(self.left.items()):
            loaded = self._topics.get(name)
            topic = None if loaded is None else as_persistent(loaded)
            waits = topic is not None and await self.compaction.waits_for_job(
                topic.managed_ledger.name
            )
            if not waits and self.left.get(name) is due:
                del self.left[name]

    async def _is_above(self, topic: PersistentTopic) -> bool:
        """Whether the part of the log that is not compacted reaches the threshold.

        A topic that was below it, and has got nothing since, costs no read of metadata.
        """
        threshold = topic.policies.value(COMPACTION_THRESHOLD)
        ledger = topic.managed_ledger
        if not threshold or not topic.serving or ledger.bytes_total < threshold:
            return False
        if topic.full_name in self._retry_at or is_system_topic(topic.name):
            return False
        state = _state(topic)
        if self._below.get(topic.full_name) == state:
            return False
        if await self._not_compacted_bytes(ledger) >= state[1]:
            return True
        self._below[topic.full_name] = state
        return False

    async def _not_compacted_bytes(self, ledger: ManagedLedger) -> int:
        artifact = await self.compaction.artifacts.live(ledger.name, ledger.created_ms)
        if artifact is None:
            return ledger.bytes_total
        horizon = artifact.horizon
        if horizon >= ledger.last_visible:
            return 0
        newer = 0
        for info in ledger.ledgers:
            if info.ledger_id == horizon.ledger_id and info.entries:
                newer += info.size_bytes * (info.entries - 1 - horizon.entry_id) // info.entries
            elif info.ledger_id > horizon.ledger_id:
                newer += info.size_bytes
        return newer

    async def _work(self) -> None:
        try:
            while self._queue:
                self._forget_gone()
                topic = next(iter(self._queue))
                del self._queue[topic]
                loaded = self._topics.get(topic)
                if loaded is not None and (persistent := as_persistent(loaded)) is not None:
                    await self._run(persistent)
        finally:
            self._running = False

    async def _run(self, topic: PersistentTopic) -> None:
        result, name, state = Result(), topic.full_name, _state(topic)
        self.left.pop(name, None)
        try:
            await self._compact(topic.name, self.artifacts, result)
        except (MagnetarError, OSError, TimeoutError) as error:
            result.failure(str(error) or type(error).__name__)
        except ModuleNotFoundError as error:
            result.failure(f"{error}: install magnetar[offload]")
            await self._tell_why_it_waits(topic, result.errors[-1])
        except Exception as error:  # the topics behind this one are compacted all the same
            log.exception("compaction ended by an error of the program", topic=name)
            result.failure(f"{type(error).__name__}: {error}")
        counters = self.counters.get(name, Counters())
        if result.counts.get("topicsCompacted"):
            counters.succeeded += 1
            self.counters[name] = counters
            await self._count(topic, counters, result)
        if result.errors:
            counters.failed += 1
            self.counters[name] = counters
            self._retry_at[name] = self._clock.monotonic() + RETRY_S
            log.warning(
                "not compacted: its readers get the last compacted state and all of the log after",
                topic=name,
                error="; ".join(result.errors),
                again_in_s=RETRY_S,
            )
        if result.leftovers:
            log.warning("files of earlier compactions are left", why="; ".join(result.leftovers))
        if result.counts.get("topicsBelowThreshold"):
            # By its steps, which estimate sizes, and end before an open transaction.
            self._below[name] = state
        if result.counts.get("topicsLeftToJobs"):
            self._retry_at[name] = self._clock.monotonic() + RETRY_S
            log.info("left to a compaction job", topic=name, why=_why(result))
            size = sum(int(remark.get("bytes", 0)) for remark in result.remarks)
            self.left[name] = DueTopic(name, _why(result), size)

    async def _tell_why_it_waits(self, topic: PersistentTopic, why: str) -> None:
        try:
            await self.compaction.waits(topic.managed_ledger.name, why)
        except MagnetarError as error:
            log.warning("status of a compaction not written", topic=topic.full_name, why=str(error))

    async def _count(self, topic: PersistentTopic, counters: Counters, result: Result) -> None:
        ledger, artifact = topic.managed_ledger, None
        try:
            artifact = await self.compaction.artifacts.live(ledger.name, ledger.created_ms)
        except MagnetarError as error:  # the topics behind this one are compacted all the same
            log.warning("numbers of a compaction not read", topic=topic.full_name, error=str(error))
        if artifact is not None:
            record = artifact.record
            counters.removed += record.messages_removed
            counters.lasted(record.duration_ms)
            counters.entries, counters.size_bytes = record.entries, record.length_bytes
        counters.read_bytes = int(result.counts.get("bytesRead", 0))
        counters.written_bytes = int(result.counts.get("bytesWritten", 0))
        log.info(
            "topic compacted",
            topic=topic.full_name,
            messages_read=result.counts.get("messagesRead", 0),
            messages_kept=result.counts.get("messagesKept", 0),
            bytes_read=counters.read_bytes,
            bytes_written=counters.written_bytes,
            duration_ms=counters.duration_ms,
        )


def _state(topic: PersistentTopic) -> tuple[Position, int]:
    """What has to change until a topic below its threshold is above: the log's end, or that."""
    return topic.managed_ledger.last_visible, int(topic.policies.value(COMPACTION_THRESHOLD) or 0)


async def _readable(is_due: Awaitable[bool], topic: str) -> bool:
    """Whether a topic is due; not if its record cannot be read, which concerns no other topic."""
    try:
        return await is_due
    except (MetadataUnavailable, StoreClosed):
        raise
    except MetadataError as error:
        log.warning("not compacted", topic=topic, error=str(error))
        return False


def _why(result: Result) -> str:
    return "; ".join(str(remark.get("state", "")) for remark in result.remarks)
