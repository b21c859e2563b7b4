"""Offloads topics of a standalone, whose log no job can reach: on request, and by policy.

One topic at a time, in a worker process, with the steps and fences of a job
(`magnetar.jobs.offload`). In a cluster, jobs offload. What an offload needs is imported by the
first one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.broker.cold.compactor import TOPICS_PER_TURN, Result
from magnetar.broker.cold.offload import Offloading
from magnetar.broker.topic.open_topics import OpenTopics
from magnetar.broker.topic.persistent import PersistentTopic, as_persistent
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName
from magnetar.core.tasks import TaskSet
from magnetar.ledger.context import LedgerContext
from magnetar.metadata.store import MetadataStore
from magnetar.offload.records import JOBS_PREFIX

log = get_logger("magnetar.offload")

CHECK_INTERVAL_S: Final = 60.0
RETRY_S: Final = 600.0

Offload = Callable[[TopicName, Result], Awaitable[None]]
"""Offloads one topic, if ledgers are due."""


class Offloader:
    """The queue of topics to offload, and the check that fills it."""

    def __init__(
        self,
        offloading: Offloading,
        store: MetadataStore,
        topics: OpenTopics,
        clock: Clock,
        offload: Offload,
    ) -> None:
        self._offloading = offloading
        self._store = store
        self._topics = topics
        self._clock = clock
        self._offload = offload
        self._tasks = TaskSet("offload")
        self._queue: dict[str, None] = {}
        self._running = False
        self._retry_at: dict[str, float] = {}

    @classmethod
    def alone(
        cls, offloading: Offloading, context: LedgerContext, topics: OpenTopics
    ) -> "Offloader":
        """The offloader of a standalone."""

        async def offload(topic: TopicName, result: Result) -> None:
            # Imported here: a standalone that offloads nothing does not need it.
            from magnetar.broker.cold import in_workers

            await in_workers.offload(context, topics, topic, result)

        return cls(offloading, context.store, topics, context.clock, offload)

    async def forget_jobs(self) -> None:
        """Ends the offloads on record, when the standalone starts: their process is dead."""
        for stored in await self._store.list(JOBS_PREFIX):
            await self._store.delete(stored.key)

    async def stop(self) -> None:
        """Cancels the offload in progress; the next one deletes what it leaves."""
        self._queue.clear()
        await self._tasks.stop()

    def requested(self, topic: str) -> None:
        """Offloads this topic, if it is loaded."""
        self._retry_at.pop(topic, None)
        self._add(topic)

    def _add(self, topic: str) -> None:
        if topic not in self._topics:
            return
        self._queue[topic] = None
        if not self._running:
            self._running = True
            self._tasks.start(self._work(), "queue")

    async def check(self) -> None:
        """Adds the topics that are offloaded, and have a closed ledger."""
        now = self._clock.monotonic()
        self._retry_at = {name: at for name, at in self._retry_at.items() if at > now}
        for number, loaded in enumerate(self._topics, 1):
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            topic = as_persistent(loaded)
            if topic is None or not topic.serving or topic.full_name in self._retry_at:
                continue
            if any(info.closed_ms for info in topic.managed_ledger.ledgers) and (
                self._offloading.plan(topic.name).store is not None
            ):
                self._add(topic.full_name)

    async def _work(self) -> None:
        try:
            while self._queue:
                topic = next(iter(self._queue))
                del self._queue[topic]
                loaded = self._topics.get(topic)
                if loaded is not None and (persistent := as_persistent(loaded)) is not None:
                    await self._run(persistent)
        finally:
            self._running = False

    async def _run(self, topic: PersistentTopic) -> None:
        result, name = Result(), topic.full_name
        try:
            await self._offload(topic.name, result)
        except (MagnetarError, OSError, TimeoutError) as error:
            result.failure(str(error) or type(error).__name__)
        except ModuleNotFoundError as error:
            result.failure(f"{error}: install magnetar[offload]")
        except Exception as error:  # the topics behind this one are offloaded all the same
            log.exception("offload ended by an error of the program", topic=name)
            result.failure(f"{type(error).__name__}: {error}")
        if result.errors:
            self._retry_at[name] = self._clock.monotonic() + RETRY_S
            log.warning(
                "not all ledgers were offloaded: the bookie keeps them",
                topic=name,
                error="; ".join(result.errors),
                again_in_s=RETRY_S,
            )
        if result.leftovers:
            log.warning("files of earlier offloads are left", why="; ".join(result.leftovers))
        if result.counts.get("ledgersOffloaded") or result.counts.get("ledgersReleased"):
            log.info(
                "topic offloaded",
                topic=name,
                ledgers=result.counts.get("ledgersOffloaded", 0),
                bytes=result.counts.get("bytesOffloaded", 0),
                released=result.counts.get("ledgersReleased", 0),
            )
