"""What the forms of the metadata store share: the rules for keys and operations, and staging.

Staging is the pure half of a transaction: it holds the operations against the current records and
gives the changes they would make under a revision, or raises BadRevision and leaves no trace.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from magnetar.metadata.store import (
    ABSENT,
    KEY_BYTES_MAX,
    TRANSACTION_OPS_MAX,
    VALUE_BYTES_MAX,
    BadRevision,
    Check,
    Delete,
    EventKind,
    InvalidOperation,
    Operation,
    Put,
    Record,
    WatchEvent,
)


@dataclass(slots=True)
class Change:
    """What one operation does to its key: `after` is None for a delete.

    `was_leased` is set by a store that must undo the key's tie to a former lease.
    """

    key: str
    before: Record | None
    after: Record | None
    lease_id: int | None = None
    was_leased: bool = False

    def event(self, revision: int) -> WatchEvent:
        if self.after is None:
            return WatchEvent(EventKind.DELETE, Record(self.key, b"", revision))
        return WatchEvent(EventKind.PUT, self.after)


def check_key(key: str) -> None:
    """Raises InvalidOperation where `key` is no path within the bounds."""
    if not key.startswith("/") or key.endswith("/") or "//" in key or "\0" in key:
        raise InvalidOperation(f"{key!r} is not a path like /a/b")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidOperation(f"{key!r} cannot be encoded: {error.reason}") from error
    if size > KEY_BYTES_MAX:
        raise InvalidOperation(f"key of {size} bytes exceeds {KEY_BYTES_MAX}: {key[:64]}…")


def check_operations(operations: Sequence[Operation]) -> None:
    """Raises InvalidOperation where a transaction breaks a bound or names a key twice."""
    if len(operations) > TRANSACTION_OPS_MAX:
        raise InvalidOperation(
            f"transaction of {len(operations)} operations exceeds {TRANSACTION_OPS_MAX}"
        )
    for operation in operations:
        check_key(operation.key)
        if operation.expected is not None and operation.expected < ABSENT:
            raise InvalidOperation(f"{operation.key}: no revision is {operation.expected}")
        if isinstance(operation, Put) and len(operation.value) > VALUE_BYTES_MAX:
            raise InvalidOperation(
                f"{operation.key}: value of {len(operation.value)} bytes exceeds {VALUE_BYTES_MAX}"
            )
    if len({operation.key for operation in operations}) != len(operations):
        raise InvalidOperation("a transaction names each key once")


def check_children_prefix(prefix: str) -> None:
    """Raises InvalidOperation where `children` is asked below something that is no folder."""
    if not prefix.startswith("/") or not prefix.endswith("/"):
        raise InvalidOperation(f"{prefix!r} is not a path that ends in /")


def stage(
    operations: Sequence[Operation], current: Callable[[str], Record | None], revision: int
) -> list[Change]:
    """The changes that `operations` make as `revision`; raises BadRevision for the first misfit."""
    changes: list[Change] = []
    for operation in operations:
        before = current(operation.key)
        actual = ABSENT if before is None else before.revision
        if operation.expected is not None and operation.expected != actual:
            raise BadRevision(operation.key, operation.expected, actual)
        match operation:
            case Put(key, value, _, lease_id):
                # bytes(): a caller's bytearray must not change a record after the fact.
                after = Record(key, bytes(value), revision)
                changes.append(Change(key, before, after, lease_id))
            case Delete(key):
                if before is not None:
                    changes.append(Change(key, before, None))
            case Check():
                pass
    return changes


def leases_named(operations: Sequence[Operation]) -> Iterator[int]:
    """The ids of the leases that the operations write under."""
    for operation in operations:
        if isinstance(operation, Put) and operation.lease_id is not None:
            yield operation.lease_id
