"""Counts of the operations on the stored index of one topic since it was opened, for metrics."""

from collections.abc import Iterator
from enum import StrEnum


class Operation(StrEnum):
    """What happens to a run; the names are those of Pulsar's label `type`."""

    CREATE = "create"
    """A run is written and closed."""
    LOAD = "load"
    """The head or a page of a run is read."""
    DELETE = "delete"
    """The ledgers of runs that no snapshot names are deleted."""


class Operations:
    """The operations of one topic: how many began, and how many failed."""

    __slots__ = ("_begun", "_failed", "_succeeded")

    def __init__(self) -> None:
        self._begun: dict[Operation, int] = {}
        self._failed: dict[Operation, int] = {}
        self._succeeded: dict[Operation, int] = {}

    def begun(self, operation: Operation) -> None:
        self._begun[operation] = self._begun.get(operation, 0) + 1

    def failed(self, operation: Operation) -> None:
        self._failed[operation] = self._failed.get(operation, 0) + 1

    def succeeded(self, operation: Operation) -> None:
        self._succeeded[operation] = self._succeeded.get(operation, 0) + 1

    def counts(self) -> Iterator[tuple[str, str, int]]:
        """Yields state, type and count, as Pulsar labels them, without those that never were."""
        for state, counts in (
            ("all", self._begun),
            ("succeed", self._succeeded),
            ("failed", self._failed),
        ):
            for operation, count in counts.items():
                yield state, operation.value, count
