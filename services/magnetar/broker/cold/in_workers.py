"""Compacts and offloads topics in worker processes. Imported by the first of either only."""

import uuid
from typing import Final

from magnetar.broker.cold.compactor import Result
from magnetar.broker.topic.open_topics import OpenTopics
from magnetar.broker.topic.persistent import as_persistent
from magnetar.core.names import TopicName
from magnetar.jobs.compaction.in_worker import compact_topic
from magnetar.jobs.log.log import Log
from magnetar.jobs.offload.in_worker import offload_topic
from magnetar.ledger.context import LedgerContext
from magnetar.offload.stores import StoreSpec
from magnetar.settings.compaction import CompactionSettings

MIB: Final = 1 << 20
UNBOUNDED: Final = -1


class OwnWriter:
    """Knows the ends of the ledgers that this broker writes (`jobs.log.log.Writers`)."""

    def __init__(self, topics: OpenTopics) -> None:
        self._topics = topics

    async def confirmed(self, topic: TopicName, ledger_id: int) -> int:
        """The last entry that may be read; -1 if this broker does not write the ledger."""
        loaded = self._topics.loaded(topic)
        persistent = None if loaded is None else as_persistent(loaded)
        if persistent is None:
            return -1
        position = persistent.managed_ledger.last_confirmed
        return position.entry_id if position.ledger_id == ledger_id else -1


async def offload(
    context: LedgerContext, topics: OpenTopics, topic: TopicName, result: Result
) -> None:
    """Offloads a topic by the steps of a job, with its files written in worker processes."""
    opened = Log(context.store, context.bookies, context, OwnWriter(topics))
    await offload_topic(opened, topic, result, job_id=uuid.uuid4().hex, clock=context.clock)


class InWorkers:
    """Compacts a topic by the steps of a job, with its passes in a worker process."""

    def __init__(
        self,
        context: LedgerContext,
        topics: OpenTopics,
        settings: CompactionSettings,
        store_otherwise: StoreSpec | None,
        *,
        has_jobs: bool,
    ) -> None:
        """`store_otherwise` is where artifacts go if no policy names a store."""
        self._context = context
        self._topics = topics
        self._index_bytes = settings.compaction_index_mb * MIB
        self._disk_bytes = settings.compaction_index_disk_mb * MIB
        self._store_otherwise = store_otherwise
        most = settings.compaction_topic_size_mb_max
        self._has_jobs = has_jobs
        self._bytes_max = most * MIB if has_jobs and most != UNBOUNDED else UNBOUNDED

    async def __call__(self, topic: TopicName, result: Result) -> None:
        context = self._context
        opened = Log(context.store, context.bookies, context, OwnWriter(self._topics))
        await compact_topic(
            opened,
            topic,
            result,
            job_id=uuid.uuid4().hex,
            clock=context.clock,
            index_bytes=self._index_bytes,
            disk_bytes=self._disk_bytes,
            bytes_max=self._bytes_max,
            leaves_topics=self._has_jobs,
            store_otherwise=self._store_otherwise,
        )
