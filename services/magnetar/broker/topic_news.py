"""Tells who wants to know which persistent topics of a namespace come and go.

Where there is one broker it tells of what it does itself. In a cluster topics are made and deleted
by other brokers too: while somebody listens to a namespace, the records of its managed ledgers are
followed in the metadata store, and nothing else is told. A listener may hear of a topic that it
knows already.
"""

import asyncio
from collections.abc import Callable

from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX, decode_managed_ledger
from magnetar.metadata.following import Following
from magnetar.metadata.store import MetadataStore, Record

OnTopic = Callable[[TopicName, bool], None]

log = get_logger("magnetar.topics")


class TopicNews:
    """See the module's text."""

    def __init__(self) -> None:
        self._listeners: dict[NamespaceName, list[OnTopic]] = {}
        self._store: MetadataStore | None = None
        self._tasks: TaskSet | None = None
        self._following: dict[NamespaceName, asyncio.Task[None]] = {}

    def follow(self, store: MetadataStore, tasks: TaskSet) -> None:
        """There are other brokers; call before anybody listens."""
        self._store, self._tasks = store, tasks

    @property
    def listeners_count(self) -> int:
        return sum(map(len, self._listeners.values()))

    def add(self, namespace: NamespaceName, listener: OnTopic) -> None:
        self._listeners.setdefault(namespace, []).append(listener)
        if self._store is None or self._tasks is None or namespace in self._following:
            return
        prefix = f"{MANAGED_LEDGERS_PREFIX}{namespace}/persistent/"
        following = Following(
            self._store,
            prefix,
            lambda key, record: self._changed(namespace, key.removeprefix(prefix), record),
        )
        task = self._tasks.start(following.run(), f"topics of {namespace}")
        if task is not None:
            self._following[namespace] = task

    def remove(self, namespace: NamespaceName, listener: OnTopic) -> None:
        listeners = self._listeners.get(namespace, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners:
            self._listeners.pop(namespace, None)
            if (task := self._following.pop(namespace, None)) is not None:
                task.cancel()

    def tell(self, name: TopicName, *, exists: bool) -> None:
        """This broker made or deleted the topic."""
        if self._store is None or not name.persistent:
            self._tell(name, exists)

    def _changed(self, namespace: NamespaceName, encoded: str, record: Record | None) -> None:
        try:
            exists = record is not None and not (
                decode_managed_ledger(record.key, record.value).deleted
            )
        except MetadataError as error:
            log.error("topic ignored", error=str(error))
            return
        self._tell(TopicName.from_encoded("persistent", namespace, encoded), exists)

    def _tell(self, name: TopicName, exists: bool) -> None:
        for listener in list(self._listeners.get(name.namespace, ())):
            listener(name, exists)
