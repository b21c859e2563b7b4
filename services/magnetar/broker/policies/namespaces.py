"""The records of all namespaces in memory, where nobody else follows them: in a broker alone.

In a cluster the ownership does (`ownership.rings`), and the policies are read from there.
"""

from collections.abc import Callable
from typing import Protocol

from magnetar.broker.ownership.rings import NAMESPACES_PREFIX, namespace_key
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import NamespaceName
from magnetar.metadata.following import Following
from magnetar.metadata.store import MetadataStore, Record

OnNamespace = Callable[[NamespaceName], None]


class NamespaceRecords(Protocol):
    """Namespaces' records in memory, and who hears of their changes."""

    def record(self, namespace: NamespaceName) -> Record | None: ...

    def seen(self, record: Record) -> None: ...

    def listen(self, listener: OnNamespace) -> None:
        """`listener(namespace)` is called at each change of its record, and where it went."""


class FollowedNamespaces:
    """See the module's text. `run` follows until the store is closed."""

    def __init__(self, store: MetadataStore) -> None:
        self._following = Following(store, NAMESPACES_PREFIX, self._changed)
        self._listeners: list[OnNamespace] = []
        self.run = self._following.run
        self.ready = self._following.ready

    def record(self, namespace: NamespaceName) -> Record | None:
        return self._following.records.get(namespace_key(namespace))

    def seen(self, record: Record) -> None:
        self._following.seen(record)

    def listen(self, listener: OnNamespace) -> None:
        self._listeners.append(listener)

    def _changed(self, key: str, _: Record | None) -> None:
        try:
            namespace = NamespaceName.parse(key.removeprefix(NAMESPACES_PREFIX))
        except PreconditionFailed:
            return  # not a namespace's: nobody can ask for it
        for listener in self._listeners:
            listener(namespace)
