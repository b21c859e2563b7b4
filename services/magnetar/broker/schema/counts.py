"""Counts of the schema registry's operations by namespace, for /metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.names import TopicName

NAMESPACES_COUNTED_MAX: Final = 4_096
"""Beyond it, the namespace that was counted first starts again from zero."""
GET, PUT, DELETE = OPERATIONS = ("get", "put", "del")


class NamespaceCounts:
    """The operations of one namespace since the broker's start."""

    __slots__ = ("compatible", "failed", "incompatible", "seconds", "succeeded")

    def __init__(self) -> None:
        self.succeeded = dict.fromkeys(OPERATIONS, 0)
        self.failed = dict.fromkeys(OPERATIONS, 0)
        self.seconds = dict.fromkeys(OPERATIONS, 0.0)
        self.compatible = self.incompatible = 0


class SchemaCounts:
    """The operations of all namespaces that had any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.by_namespace: dict[str, NamespaceCounts] = {}

    def of(self, topic: TopicName) -> NamespaceCounts:
        """Returns the counts of the topic's namespace."""
        namespace = f"{topic.tenant}/{topic.namespace_local}"
        counts = self.by_namespace.get(namespace)
        if counts is None:
            if len(self.by_namespace) >= NAMESPACES_COUNTED_MAX:
                del self.by_namespace[next(iter(self.by_namespace))]
            counts = self.by_namespace[namespace] = NamespaceCounts()
        return counts

    @contextmanager
    def counted(self, topic: TopicName, operation: str) -> Iterator[None]:
        """Counts an operation, which fails if it raises."""
        began_s = self._clock.monotonic()
        counts = self.of(topic)
        try:
            yield
        except Exception:
            counts.failed[operation] += 1
            raise
        counts.succeeded[operation] += 1
        counts.seconds[operation] += self._clock.monotonic() - began_s
