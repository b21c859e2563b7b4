"""The bundles of every namespace, followed in the metadata store."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from magnetar.broker.ownership.bundles import Bundle, Ring
from magnetar.core.errors import MetadataError, TopicNotFound
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.following import Following
from magnetar.metadata.store import MetadataStore, Record

NAMESPACES_PREFIX: Final = "/namespaces/"

log = get_logger("magnetar.ownership.rings")


def namespace_key(namespace: NamespaceName) -> str:
    return f"{NAMESPACES_PREFIX}{namespace}"


def policies_of(record: Record) -> dict[str, Any]:
    """The policies that a namespace's record holds."""
    policies: dict[str, Any] = msgspec.json.decode(record.value)
    return policies


class Rings:
    """Rings by namespace. `on_change(namespace)` is called when one changed or went."""

    def __init__(self, store: MetadataStore, on_change: Callable[[NamespaceName], None]) -> None:
        self._store = store
        self._on_change = on_change
        self._rings: dict[NamespaceName, Ring] = {}
        self._listeners: list[Callable[[NamespaceName], None]] = []
        self._following = Following(store, NAMESPACES_PREFIX, self._changed)
        self.run = self._following.run
        self.ready = self._following.ready

    def get(self, namespace: NamespaceName) -> Ring | None:
        """As far as is known here."""
        return self._rings.get(namespace)

    def record(self, namespace: NamespaceName) -> Record | None:
        """The namespace's record, as far as is known here."""
        return self._following.records.get(namespace_key(namespace))

    async def bundle_of(self, topic: TopicName) -> Bundle:
        """The topic's bundle; raises TopicNotFound where its namespace does not exist."""
        ring = self._rings.get(topic.namespace)
        if ring is None:
            # It may have been created a moment ago.
            await self.read(topic.namespace)
            ring = self._rings.get(topic.namespace)
            if ring is None:
                raise TopicNotFound(f"Namespace not found: {topic.namespace}")
        return ring.of_topic(topic)

    async def read(self, namespace: NamespaceName) -> Record | None:
        """The namespace's record as it is now, which is then also known here."""
        record = await self._store.get(namespace_key(namespace))
        if record is not None:
            self._following.seen(record)
        return record

    def seen(self, record: Record) -> None:
        """Takes a record that was just written."""
        self._following.seen(record)

    def listen(self, listener: Callable[[NamespaceName], None]) -> None:
        """`listener(namespace)` is called at each change of its record, bundles or not."""
        self._listeners.append(listener)

    def _changed(self, key: str, record: Record | None) -> None:
        try:
            namespace = NamespaceName.parse(key.removeprefix(NAMESPACES_PREFIX))
            ring = None if record is None else Ring.of(namespace, policies_of(record))
        except (MetadataError, msgspec.MsgspecError, KeyError, ValueError, TypeError) as error:
            log.error("namespace ignored", key=key, error=str(error))
            return
        for listener in self._listeners:
            listener(namespace)
        if ring == self._rings.get(namespace):
            return
        if ring is None:
            self._rings.pop(namespace, None)
        else:
            self._rings[namespace] = ring
        self._on_change(namespace)
