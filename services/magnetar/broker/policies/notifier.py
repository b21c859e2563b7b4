"""Notifies open topics when their policies have changed, by `policies_changed()`.

Topics do not register, so those without policies cost nothing. A change of a topic that is open
under exactly that name is delivered at once. After a change of a namespace or a partitioned topic,
all open topics are scanned, TOPICS_PER_TURN at a time. Changes during a scan are collected for the
next scan, which starts at least PAUSE_S later.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from magnetar.core.log import get_logger
from magnetar.core.names import PARTITION_SUFFIX, NamespaceName, TopicName
from magnetar.core.tasks import TaskSet

TOPICS_PER_TURN: Final = 256
PAUSE_S: Final = 0.05

log = get_logger("magnetar.policies")


class NotifiedTopic(Protocol):
    """An open topic, seen from here."""

    @property
    def name(self) -> TopicName:
        """The topic's name."""

    @property
    def full_name(self) -> str:
        """The text of `name`."""

    def policies_changed(self) -> None:
        """Reads the policies again. Exceptions are logged."""


class PolicyNews:
    """Passes changes of policies on to open topics; `changed` is `BrokerPolicies`' `on_change`."""

    def __init__(
        self,
        topics: Callable[[], Iterable[NotifiedTopic]],
        loaded: Callable[[TopicName], NotifiedTopic | None],
        tasks: TaskSet,
    ) -> None:
        self._topics = topics
        self._loaded = loaded
        self._tasks = tasks
        self._namespaces: set[NamespaceName] = set()
        self._parents: set[str] = set()
        self._all = False
        self._running = False

    def changed(self, namespace: NamespaceName, topic: TopicName | None) -> None:
        """Notifies the topic, or schedules a scan for the namespace's or parent's topics."""
        if topic is None:
            self._namespaces.add(namespace)
        elif (loaded := self._loaded(topic)) is not None:
            _notify(loaded)
            return
        else:
            self._parents.add(str(topic))
        self._start()

    def changed_for_all(self) -> None:
        """Schedules a scan of all topics: something changed that concerns every one."""
        self._all = True
        self._start()

    def _start(self) -> None:
        if not self._running:
            self._running = self._tasks.start(self._scan(), "notify of policies") is not None

    async def _scan(self) -> None:
        try:
            while self._namespaces or self._parents or self._all:
                of_all, self._all = self._all, False
                namespaces, self._namespaces = self._namespaces, set()
                parents, self._parents = self._parents, set()
                for count, topic in enumerate(self._topics(), 1):
                    parent, suffix, _ = topic.full_name.rpartition(PARTITION_SUFFIX)
                    of_parent = suffix and parent in parents
                    if of_all or of_parent or topic.name.namespace in namespaces:
                        _notify(topic)
                    if not count % TOPICS_PER_TURN:
                        await asyncio.sleep(0)
                await asyncio.sleep(PAUSE_S)
        finally:
            self._running = False


def _notify(topic: NotifiedTopic) -> None:
    """Notifies a topic; its exception must not stop the scan or the watch."""
    try:
        topic.policies_changed()
    except Exception:
        log.exception("topic failed on a change of policies", topic=topic.full_name)
