"""The metadata store: a small, ordered, versioned key-value store with leases and watches.

Keys are slash-separated paths (`/tenants/public`); values are small (VALUE_BYTES_MAX) and never
per message. Every write gets a new revision from one store-wide counter that only grows, also over
restarts; a record carries the revision that last wrote it, and compare-and-swap is by that
revision. A write has returned only once it is durable. The words are etcd's (v3 API); the
contract suite in `tests/contract` runs over every form.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from magnetar.core.errors import MetadataError, ServerError

KEY_BYTES_MAX: Final = 4096
VALUE_BYTES_MAX: Final = 1 << 20
TRANSACTION_OPS_MAX: Final = 128

ABSENT: Final = 0
"""As an expected revision: the key must not exist."""


@dataclass(frozen=True, slots=True)
class Record:
    """One key with its value and the revision that last wrote it (1 or more)."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write `value`; where `expected` is given, only over that revision (ABSENT: create).

    With `lease_id`, the key goes when the lease does.
    """

    key: str
    value: bytes
    expected: int | None = None
    lease_id: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the key; where `expected` is given, only that revision of it."""

    key: str
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Write nothing, but hold the transaction to this revision of the key."""

    key: str
    expected: int


Operation = Put | Delete | Check


class EventKind(Enum):
    """What a watch saw."""

    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change. For a delete the record has the key, no value, and the deleting revision."""

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
    """A watch asked for revisions that are no longer kept: list again and watch from there."""


class LeaseLost(MetadataError):
    """The lease has expired or was revoked; what it covered may have another owner."""


class StoreClosed(MetadataError):
    """The store was closed under the caller."""


class MetadataUnavailable(MetadataError):
    """The store did not answer in time. A write may or may not have happened: read to know.

    To clients it is a passing state: they try again.
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
        """As granted: a store that counts in seconds rounds up what was asked."""

    @property
    def deadline(self) -> float:
        """When it runs out unless renewed, by the holder's own monotonic clock."""

    @property
    def valid(self) -> bool:
        """Whether the holder may still act on it: not known to be lost, and before `deadline`."""

    async def keep_alive(self) -> None:
        """Renews once; raises LeaseLost where it is gone."""

    async def revoke(self) -> None:
        """Ends it at once and deletes its keys. Revoking a lost lease is no error."""


class Watch(Protocol):
    """An open watch: an async iterator. It ends when closed, or when nobody refers to it."""

    def __aiter__(self) -> AsyncIterator[WatchEvent]: ...

    async def __anext__(self) -> WatchEvent: ...

    def close(self) -> None:
        """Ends the watch: what it still holds is dropped, and `anext` ends. Idempotent."""


class MetadataStore(Protocol):
    """See the module's text. Every method raises StoreClosed after `close`.

    A key is a path: it starts with `/`, has no empty segment, and is text of at most
    KEY_BYTES_MAX; a breach of this or of another bound raises InvalidOperation. A write that names
    a lease raises LeaseLost where the lease is gone; one that names none frees the key of its
    lease. Cancelling a write leaves it open whether it happened.
    """

    async def get(self, key: str) -> Record | None: ...

    async def list(self, prefix: str) -> list[Record]:
        """All records whose key starts with `prefix`, in key order, from one revision."""

    async def children(self, prefix: str) -> Sequence[str]:
        """Distinct next path segments below `prefix` (which ends in `/`), in order."""

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        """Writes and returns the new revision; raises BadRevision."""

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """Whether the key was there; raises BadRevision."""

    async def transact(self, operations: Sequence[Operation]) -> int:
        """All operations under one new revision, or none (BadRevision). Keys are distinct.

        Where nothing changes (checks, deletes of absent keys), that is the newest revision.
        """

    async def revision(self) -> int:
        """The newest revision of the store."""

    async def grant_lease(self, ttl_s: float) -> Lease: ...

    async def revoke_lease(self, lease_id: int) -> None:
        """Ends the lease of somebody who is known to be gone, and deletes its keys.

        Its holder hears of it at its next renewal or write. One that is lost is no error.
        """

    def watch(self, prefix: str, *, from_revision: int | None = None) -> Watch:
        """Changes to keys that start with `prefix`, in order, each once, from a revision on.

        `from_revision` is inclusive and may lie in the future. None means from now: changes made
        after the call, not after the first `anext`; of a store that others share also earlier ones
        that this process has not heard of. `anext` raises Compacted where the past asked
        for is gone, or where the watcher was too slow to keep up, and StoreClosed at the end.
        """

    async def close(self) -> None:
        """Finishes the writes under way, ends watches and leases. Idempotent."""
