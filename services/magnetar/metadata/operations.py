"""Rules for keys and operations, and the staging of transactions, for all metadata stores.

Staging is the pure half of a transaction: it compares the operations with the current records and
returns their changes under a revision, or raises BadRevision without side effects.
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
    """The effect of one operation on its key; `after` is None for a delete.

    A store sets `was_leased` if it must detach the key from a former lease.
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
    """Raises InvalidOperation unless `key` is a path within the bounds."""
    if not key.startswith("/") or key.endswith("/") or "//" in key or "\0" in key:
        raise InvalidOperation(f"{key!r} is not a path like /a/b")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidOperation(f"{key!r} cannot be encoded: {error.reason}") from error
    if size > KEY_BYTES_MAX:
        raise InvalidOperation(f"key of {size} bytes exceeds {KEY_BYTES_MAX}: {key[:64]}…")


def check_operations(operations: Sequence[Operation]) -> None:
    """Raises InvalidOperation if a transaction exceeds a bound or names a key twice."""
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
    """Raises InvalidOperation unless `prefix` is a path that ends in a slash."""
    if not prefix.startswith("/") or not prefix.endswith("/"):
        raise InvalidOperation(f"{prefix!r} is not a path that ends in /")


def stage(
    operations: Sequence[Operation], current: Callable[[str], Record | None], revision: int
) -> list[Change]:
    """Returns the changes of `operations` at `revision`. Raises BadRevision on a conflict."""
    changes: list[Change] = []
    for operation in operations:
        before = current(operation.key)
        actual = ABSENT if before is None else before.revision
        if operation.expected is not None and operation.expected != actual:
            raise BadRevision(operation.key, operation.expected, actual)
        match operation:
            case Put(key, value, _, lease_id):
                # A copy: the caller may change its bytearray later.
                after = Record(key, bytes(value), revision)
                changes.append(Change(key, before, after, lease_id))
            case Delete(key):
                if before is not None:
                    changes.append(Change(key, before, None))
            case Check():
                pass
    return changes


def leases_named(operations: Sequence[Operation]) -> Iterator[int]:
    """Yields the lease ids of the operations."""
    for operation in operations:
        if isinstance(operation, Put) and operation.lease_id is not None:
            yield operation.lease_id
