"""Tells the topics that are served here when their policies have changed: `policies_changed()`.

Topics register nowhere, so that those without policies cost nothing. One that is known by its own
name is told at once. For a namespace, or a partitioned topic, the topics that are open are gone
through, some a turn; what changes meanwhile is gathered for the next time through, which begins
PAUSE_S after the last at the earliest.
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


class TellableTopic(Protocol):
    """What is told."""

    @property
    def name(self) -> TopicName: ...

    @property
    def full_name(self) -> str: ...

    def policies_changed(self) -> None:
        """Its policies may have changed. What it raises is logged."""


class PolicyNews:
    """See the module's text. `changed` is `BrokerPolicies.on_change`."""

    def __init__(
        self,
        topics: Callable[[], Iterable[TellableTopic]],
        loaded: Callable[[TopicName], TellableTopic | None],
        tasks: TaskSet,
    ) -> None:
        self._topics = topics
        self._loaded = loaded
        self._tasks = tasks
        self._namespaces: set[NamespaceName] = set()
        self._parents: set[str] = set()
        self._running = False

    def changed(self, namespace: NamespaceName, topic: TopicName | None) -> None:
        if topic is None:
            self._namespaces.add(namespace)
        elif (loaded := self._loaded(topic)) is not None:
            _tell(loaded)
            return
        else:
            self._parents.add(str(topic))
        if not self._running:
            self._running = self._tasks.start(self._tell(), "tell of policies") is not None

    async def _tell(self) -> None:
        try:
            while self._namespaces or self._parents:
                namespaces, self._namespaces = self._namespaces, set()
                parents, self._parents = self._parents, set()
                for count, topic in enumerate(self._topics(), 1):
                    parent, found, _ = topic.full_name.rpartition(PARTITION_SUFFIX)
                    if (found and parent in parents) or topic.name.namespace in namespaces:
                        _tell(topic)
                    if not count % TOPICS_PER_TURN:
                        await asyncio.sleep(0)
                await asyncio.sleep(PAUSE_S)
        finally:
            self._running = False


def _tell(topic: TellableTopic) -> None:
    """A mistake in one topic must not keep the others, and the watch, from going on."""
    try:
        topic.policies_changed()
    except Exception:
        log.exception("change of policies not taken", topic=topic.full_name)
