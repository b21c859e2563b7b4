"""A metadata store in memory, for tests and simulations.

It keeps the whole contract of `metadata.store` (one contract suite runs over all implementations).
Every method yields to the event loop first, as a remote store does, so that callers cannot rely on
calls that do not yield.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Sequence

from magnetar.core.clock import Clock, SystemClock
from magnetar.metadata.leases import LeaseTable
from magnetar.metadata.operations import (
    Change,
    check_children_prefix,
    check_key,
    check_operations,
    leases_named,
    stage,
)
from magnetar.metadata.store import (
    Delete,
    Lease,
    Operation,
    Put,
    Record,
    StoreClosed,
    Watch,
)
from magnetar.metadata.watches import WatchHub


class MemoryStore:
    """A `MetadataStore` in memory; its content is lost with the process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._records: dict[str, Record] = {}
        self._keys: list[str] = []
        self._revision = 0
        self._hub = WatchHub()
        self._leases = LeaseTable(
            clock or SystemClock(),
            on_end=self._end_leases,
            on_call=self._check_open,
            on_due=self._expire,
        )
        self._closed = False

    async def get(self, key: str) -> Record | None:
        await self._turn()
        check_key(key)
        return self._records.get(key)

    async def list(self, prefix: str) -> list[Record]:
        await self._turn()
        return [self._records[key] for key in self._below(prefix)]

    async def children(self, prefix: str) -> Sequence[str]:
        await self._turn()
        check_children_prefix(prefix)
        skip = len(prefix)
        return sorted({key[skip:].partition("/")[0] for key in self._below(prefix)})

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        await self._turn()
        self._apply([Put(key, value, expected, lease_id)])
        return self._revision

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        await self._turn()
        return bool(self._apply([Delete(key, expected)]))

    async def transact(self, operations: Sequence[Operation]) -> int:
        await self._turn()
        self._apply(operations)
        return self._revision

    async def revision(self) -> int:
        await self._turn()
        return self._revision

    async def grant_lease(self, ttl_s: float) -> Lease:
        await self._turn()
        return self._leases.grant(ttl_s)

    async def revoke_lease(self, lease_id: int) -> None:
        await self._turn()
        await self._leases.revoke_id(lease_id)

    def watch(self, prefix: str, *, from_revision: int | None = None) -> Watch:
        self._check_open()
        return self._hub.watch(prefix, from_revision)

    async def close(self) -> None:
        self._closed = True
        self._hub.close()
        self._leases.close()

    async def _turn(self) -> None:
        self._check_open()
        await asyncio.sleep(0)
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the metadata store is closed")
        self._expire()

    def _below(self, prefix: str) -> Sequence[str]:
        """Returns the keys that start with `prefix`, in order."""
        first = last = bisect_left(self._keys, prefix)
        while last < len(self._keys) and self._keys[last].startswith(prefix):
            last += 1
        return self._keys[first:last]

    def _apply(self, operations: Sequence[Operation]) -> Sequence[Change]:
        check_operations(operations)
        for lease_id in leases_named(operations):
            self._leases.require(lease_id)
        changes = stage(operations, self._records.get, self._revision + 1)
        self._commit(changes)
        return changes

    def _commit(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self._revision += 1
        for change in changes:
            if change.after is None:
                del self._records[change.key]
                del self._keys[bisect_left(self._keys, change.key)]
            else:
                if change.before is None:
                    insort(self._keys, change.key)
                self._records[change.key] = change.after
            self._leases.attach(change.key, change.lease_id)
        self._hub.publish(self._revision, [change.event(self._revision) for change in changes])

    def _expire(self) -> None:
        if keys := self._leases.take_due():
            self._drop(keys)

    async def _end_leases(self, keys: Sequence[str]) -> None:
        self._drop(keys)

    def _drop(self, keys: Sequence[str]) -> None:
        deletes = [Delete(key) for key in keys]
        self._commit(stage(deletes, self._records.get, self._revision + 1))
