"""Notifies listeners when persistent topics of a namespace are created or deleted.

A broker without a cluster announces its own creations and deletions. In a cluster, other brokers
create and delete topics too: while a namespace has listeners, this broker follows the records of
its managed ledgers in the metadata store instead, and ignores its own announcements. A listener may
be notified of a topic that it already knows.
"""

import asyncio
from collections.abc import Callable

from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX, decode_managed_ledger
from magnetar.metadata.follower import Follower
from magnetar.metadata.store import MetadataStore, Record

OnTopic = Callable[[TopicName, bool], None]

log = get_logger("magnetar.topics")


class TopicNews:
    """Listeners by namespace. With `store`, other brokers create and delete topics too."""

    def __init__(self, tasks: TaskSet, store: MetadataStore | None = None) -> None:
        self._listeners: dict[NamespaceName, list[OnTopic]] = {}
        self._store = store
        self._tasks = tasks
        self._following: dict[NamespaceName, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """How many listeners are registered."""
        return sum(map(len, self._listeners.values()))

    def add(self, namespace: NamespaceName, listener: OnTopic) -> None:
        """Calls `listener(topic, exists)` for each change until `remove`."""
        self._listeners.setdefault(namespace, []).append(listener)
        if self._store is None or namespace in self._following:
            return
        prefix = f"{MANAGED_LEDGERS_PREFIX}{namespace}/persistent/"
        following = Follower(
            self._store,
            prefix,
            lambda key, record: self._changed(namespace, key.removeprefix(prefix), record),
        )
        task = self._tasks.start(following.run(), f"topics of {namespace}")
        if task is not None:
            self._following[namespace] = task

    def remove(self, namespace: NamespaceName, listener: OnTopic) -> None:
        """Removes a listener; does nothing if it was not added."""
        listeners = self._listeners.get(namespace, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners:
            self._listeners.pop(namespace, None)
            if (task := self._following.pop(namespace, None)) is not None:
                task.cancel()

    def announce(self, name: TopicName, *, exists: bool) -> None:
        """Announces that this broker created or deleted the topic."""
        if self._store is None or not name.persistent:
            self._notify(name, exists)

    def _changed(self, namespace: NamespaceName, encoded: str, record: Record | None) -> None:
        try:
            exists = record is not None and not (
                decode_managed_ledger(record.key, record.value).deleted
            )
        except MetadataError as error:
            log.error("topic ignored", error=str(error))
            return
        self._notify(TopicName.from_encoded("persistent", namespace, encoded), exists)

    def _notify(self, name: TopicName, exists: bool) -> None:
        for listener in list(self._listeners.get(name.namespace, ())):
            listener(name, exists)
