"""The records of all namespaces in memory, for a broker without a cluster.

In a cluster, the ownership follows the same records (`ownership.rings`), and policies use those.
"""

from collections.abc import Callable
from typing import Protocol

from magnetar.broker.ownership.rings import NAMESPACES_PREFIX, namespace_key
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import NamespaceName
from magnetar.metadata.follower import Follower
from magnetar.metadata.store import MetadataStore, Record

OnNamespace = Callable[[NamespaceName], None]


class NamespaceRecords(Protocol):
    """The namespaces' records in memory, with notifications of their changes."""

    def record(self, namespace: NamespaceName) -> Record | None:
        """Returns the namespace's record as last seen by this broker."""

    def seen(self, record: Record) -> None:
        """Notes a record that this broker has just read or written."""

    def listen(self, listener: OnNamespace) -> None:
        """`listener(namespace)` is called on every change of its record, also when deleted."""


class FollowedNamespaces:
    """`NamespaceRecords` by a watch of its own; `run` follows until the store is closed."""

    def __init__(self, store: MetadataStore) -> None:
        self._following = Follower(store, NAMESPACES_PREFIX, self._changed)
        self._listeners: list[OnNamespace] = []
        self.run = self._following.run
        self.ready = self._following.ready

    def record(self, namespace: NamespaceName) -> Record | None:
        """Returns the namespace's record as last seen."""
        return self._following.records.get(namespace_key(namespace))

    def seen(self, record: Record) -> None:
        """Notes a record that this broker has just read or written."""
        self._following.seen(record)

    def listen(self, listener: OnNamespace) -> None:
        """`listener(namespace)` is called on every change of its record, also when deleted."""
        self._listeners.append(listener)

    def _changed(self, key: str, _: Record | None) -> None:
        try:
            namespace = NamespaceName.parse(key.removeprefix(NAMESPACES_PREFIX))
        except PreconditionFailed:
            return  # not a namespace's key, so no listener can ask for it
        for listener in self._listeners:
            listener(namespace)
