"""The bundles of every namespace, kept up to date by a watch of the metadata store."""

from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.ownership.bundles import Bundle, Ring
from magnetar.core.errors import MetadataError, TopicNotFound
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.follower import Follower
from magnetar.metadata.records import decode_document
from magnetar.metadata.store import MetadataStore, Record
from magnetar.policies.admission import ANTI_AFFINITY

NAMESPACES_PREFIX: Final = "/namespaces/"

log = get_logger("magnetar.ownership.rings")


def namespace_key(namespace: NamespaceName) -> str:
    """Returns the key of a namespace's policies."""
    return f"{NAMESPACES_PREFIX}{namespace}"


def policies_of(record: Record) -> dict[str, Any]:
    """Returns the policies in a namespace's record; raises MetadataError if it is damaged."""
    return decode_document(record.key, record.value)


class Rings:
    """Follows the rings of all namespaces; `on_change(namespace)` is called when a ring changes."""

    def __init__(self, store: MetadataStore, on_change: Callable[[NamespaceName], None]) -> None:
        self._store = store
        self._on_change = on_change
        self._rings: dict[NamespaceName, Ring] = {}
        self._groups: dict[NamespaceName, str] = {}
        self._listeners: list[Callable[[NamespaceName], None]] = []
        self._following = Follower(store, NAMESPACES_PREFIX, self._changed)
        self.run = self._following.run
        self.ready = self._following.ready

    def get(self, namespace: NamespaceName) -> Ring | None:
        """Returns the ring as last seen by this broker."""
        return self._rings.get(namespace)

    def group(self, namespace: NamespaceName) -> str:
        """Returns the namespace's anti-affinity group, empty if it has none."""
        return self._groups.get(namespace, "")

    def record(self, namespace: NamespaceName) -> Record | None:
        """Returns the namespace's record as last seen by this broker."""
        return self._following.records.get(namespace_key(namespace))

    async def bundle_of(self, topic: TopicName) -> Bundle:
        """Returns the topic's bundle; raises TopicNotFound if its namespace does not exist."""
        ring = self._rings.get(topic.namespace)
        if ring is None:
            # The watch may be behind a namespace that was just created.
            await self.read(topic.namespace)
            ring = self._rings.get(topic.namespace)
            if ring is None:
                raise TopicNotFound(f"Namespace not found: {topic.namespace}")
        return ring.of_topic(topic)

    async def read(self, namespace: NamespaceName) -> Record | None:
        """Reads the namespace's record from the store, and notes it as the newest."""
        record = await self._store.get(namespace_key(namespace))
        if record is not None:
            self._following.seen(record)
        return record

    def seen(self, record: Record) -> None:
        """Notes a record that this broker has just written."""
        self._following.seen(record)

    def listen(self, listener: Callable[[NamespaceName], None]) -> None:
        """`listener(namespace)` is called on every change of the record, bundles or not."""
        self._listeners.append(listener)

    def _changed(self, key: str, record: Record | None) -> None:
        try:
            namespace = NamespaceName.parse(key.removeprefix(NAMESPACES_PREFIX))
            policies = None if record is None else policies_of(record)
            ring = None if policies is None else Ring.of(namespace, policies)
        except (MetadataError, KeyError, ValueError, TypeError) as error:
            log.error("namespace ignored", key=key, error=str(error))
            return
        group = (policies or {}).get(ANTI_AFFINITY.document)
        if isinstance(group, str) and group:
            self._groups[namespace] = group
        else:
            self._groups.pop(namespace, None)
        for listener in self._listeners:
            listener(namespace)
        if ring == self._rings.get(namespace):
            return
        if ring is None:
            self._rings.pop(namespace, None)
        else:
            self._rings[namespace] = ring
        self._on_change(namespace)
