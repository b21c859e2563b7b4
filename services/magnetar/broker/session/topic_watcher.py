"""A client's watch on the list of a namespace's topics (PIP-145)."""

from collections.abc import Iterable

from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.session.link import Link
from magnetar.broker.session.topic_pattern import Pattern, matches, matching
from magnetar.broker.topic.registry import TopicRegistry
from magnetar.core.names import NamespaceName, TopicName
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.topics_hash import topics_hash


class TopicListWatcher:
    """Sends one client the topics of a namespace that are created and deleted.

    While the client does not read, changes are merged and leave as one update (`send`). A watcher
    therefore holds at most the names that the client has and those that exist.
    """

    __slots__ = (
        "_closed",
        "_id",
        "_link",
        "_pattern",
        "_started",
        "_topics",
        "_unsent",
        "_watched",
        "namespace",
    )

    def __init__(
        self,
        topics: TopicRegistry,
        link: Link,
        watcher_id: int,
        namespace: NamespaceName,
        pattern: Pattern,
    ) -> None:
        self._watched = topics
        self._link = link
        self._id = watcher_id
        self.namespace = namespace
        self._pattern = pattern
        self._topics: set[str] = set()
        """The list as the client has it."""
        self._unsent: dict[str, bool] = {}
        """Topics whose existence the client does not know yet: whether they exist."""
        self._started = self._closed = False

    def listen(self) -> None:
        """Records changes from now on; read the list for `start` after this call."""
        if not self._closed:
            self._watched.add_listener(self.namespace, self._changed)

    def start(self, names: Iterable[str]) -> list[str]:
        """Takes the first list and returns its matches, with the changes recorded since `listen`.

        Those changes are newer than the list.
        """
        self._topics.update(matching(names, self._pattern))
        for full, exists in self._unsent.items():
            if exists:
                self._topics.add(full)
            else:
                self._topics.discard(full)
        self._unsent.clear()
        self._started = True
        return sorted(self._topics)

    def close(self) -> None:
        """Ends the watch. Idempotent."""
        self._closed = True
        self._watched.remove_listener(self.namespace, self._changed)

    def send(self) -> None:
        """Sends the changes, if the client reads."""
        if not self._unsent or not self._started or not self._link.writable:
            return
        update = pb.CommandWatchTopicUpdate(watcher_id=self._id)
        for full, exists in self._unsent.items():
            if exists:
                self._topics.add(full)
                update.new_topics.append(full)
            else:
                self._topics.discard(full)
                update.deleted_topics.append(full)
        self._unsent.clear()
        update.topics_hash = topics_hash(sorted(self._topics))
        self._link.answer(CommandType.WATCH_TOPIC_UPDATE, update)

    def _changed(self, name: TopicName, exists: bool) -> None:
        if name.namespace != self.namespace or not name.persistent or is_system_topic(name):
            return
        full = str(name)
        if not matches(self._pattern, full):
            return
        if self._started and exists == (full in self._topics):
            self._unsent.pop(full, None)
        else:
            self._unsent[full] = exists
            self.send()
