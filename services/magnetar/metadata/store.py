"""The metadata store: a small, ordered, versioned key-value store with leases and watches.

Keys are slash-separated paths (`/tenants/public`). Values are small (VALUE_BYTES_MAX), and no key
is per message. Every write gets a new revision from a store-wide counter that only grows, also
across restarts. A record carries the revision of its last write, and compare-and-swap uses that
revision. A write returns once it is durable. The terms are etcd's (v3 API); the contract suite in
`tests/contract` runs over every implementation.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, runtime_checkable

from magnetar.core.errors import MetadataError, ServerError

KEY_BYTES_MAX: Final = 4096
VALUE_BYTES_MAX: Final = 1 << 20
TRANSACTION_OPS_MAX: Final = 128

ABSENT: Final = 0
"""The expected revision of a key that must not exist."""


@dataclass(frozen=True, slots=True)
class Record:
    """A key with its value and the revision of its last write (1 or more)."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Writes `value`; with `expected`, only over that revision (ABSENT: create).

    With `lease_id`, the key is deleted when the lease ends.
    """

    key: str
    value: bytes
    expected: int | None = None
    lease_id: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes the key; with `expected`, only that revision of it."""

    key: str
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Makes the transaction fail unless the key has this revision; writes nothing."""

    key: str
    expected: int


Operation = Put | Delete | Check


class EventKind(Enum):
    """The kind of a change."""

    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change. The record of a delete has the key, no value, and the deleting revision."""

    kind: EventKind
    record: Record


class BadRevision(MetadataError):
    """Compare-and-swap failed: the key is not at the expected revision. Nothing was written."""

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(f"{key} is at revision {actual}, not {expected}", http_status=409)
        self.key, self.expected, self.actual = key, expected, actual


class InvalidOperation(MetadataError):
    """The request breaks a rule or a bound of this module. Nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, http_status=400)


class Compacted(MetadataError):
    """The store no longer keeps the revisions of a watch: list again, and watch from there."""


class LeaseLost(MetadataError):
    """The lease expired or was revoked; its keys may have another owner."""


class StoreClosed(MetadataError):
    """The store is closed."""


class MetadataUnavailable(MetadataError):
    """The store did not answer in time. A write may or may not have happened.

    Clients treat it as temporary and retry.
    """

    code = ServerError.SERVICE_NOT_READY

    def __init__(self, message: str) -> None:
        super().__init__(message, http_status=503)


class Lease(Protocol):
    """Keeps the keys written under it alive while its holder renews it."""

    @property
    def id(self) -> int: ...

    @property
    def ttl_s(self) -> float:
        """The granted time to live; a store that counts in seconds rounds it up."""

    @property
    def deadline(self) -> float:
        """When the lease expires unless renewed, by the holder's own monotonic clock."""

    @property
    def valid(self) -> bool:
        """Whether the holder may act on the lease: not known to be lost, and before `deadline`."""

    async def keep_alive(self) -> None:
        """Renews the lease once; raises LeaseLost if it has ended."""

    async def revoke(self) -> None:
        """Ends the lease at once and deletes its keys; no effect on a lost lease."""


class Watch(Protocol):
    """An async iterator of changes. It ends when closed or when no reference is left."""

    def __aiter__(self) -> AsyncIterator[WatchEvent]: ...

    async def __anext__(self) -> WatchEvent: ...

    def close(self) -> None:
        """Ends the watch: drops its queued events; `anext` stops. Idempotent."""


@runtime_checkable
class ImmediateReads(Protocol):
    """A store of this process, which answers a read without a wait."""

    def get_at_once(self, key: str) -> Record | None:
        """Returns what `MetadataStore.get` returns."""


class MetadataStore(Protocol):
    """The metadata store. Every method raises StoreClosed after `close`.

    A key is a path: it starts with `/`, has no empty segment, and has at most KEY_BYTES_MAX bytes
    of UTF-8. A key or operation outside the bounds raises InvalidOperation. A write with a lease
    raises LeaseLost if the lease has ended; a write without one detaches the key from its lease.
    After a cancelled write, it is unknown whether it happened.
    """

    async def get(self, key: str) -> Record | None: ...

    async def list(self, prefix: str) -> list[Record]:
        """Returns all records whose key starts with `prefix`, in key order, of one revision."""

    async def children(self, prefix: str) -> Sequence[str]:
        """Returns the distinct next path segments below `prefix` (which ends in `/`), in order."""

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        """Writes and returns the new revision; raises BadRevision."""

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """Returns whether the key existed; raises BadRevision."""

    async def transact(self, operations: Sequence[Operation]) -> int:
        """Applies all operations under one new revision, or none (BadRevision). Keys are distinct.

        Returns the revision; if nothing changes (checks, deletes of absent keys), the newest one.
        """

    async def revision(self) -> int:
        """Returns the newest revision of the store."""

    async def grant_lease(self, ttl_s: float) -> Lease: ...

    async def revoke_lease(self, lease_id: int) -> None:
        """Ends the lease of a process that is known to be gone, and deletes its keys.

        Its holder notices at its next renewal or write. No effect on a lost lease.
        """

    def watch(self, prefix: str, *, from_revision: int | None = None) -> Watch:
        """Watches the keys that start with `prefix`: each change once, in order.

        `from_revision` is inclusive and may lie in the future. None means from now: all changes
        after the call (not after the first `anext`); in a shared store also earlier ones that this
        process has not seen. `anext` raises Compacted if the store no longer keeps the requested
        revisions or the watcher is too slow, and StoreClosed after `close`.
        """

    async def close(self) -> None:
        """Finishes the writes in flight, ends watches and leases. Idempotent."""
