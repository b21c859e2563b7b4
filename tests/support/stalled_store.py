"""A metadata store in memory of which the test holds up chosen writes, before they land."""

import asyncio
from collections.abc import Sequence

from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Delete, Operation, Put


class StalledStore(MemoryStore):
    """Writes of keys that begin with `holds` wait until `release`, or fail if `refusing`."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.holds: str | None = None
        self.deletes_only = False
        self.refusing = False
        self.begun = asyncio.Event()
        """Set when a write begins to wait."""
        self._go = asyncio.Event()

    def hold(self, prefix: str, *, deletes_only: bool = False) -> None:
        self.holds, self.deletes_only = prefix, deletes_only
        self.begun.clear()
        self._go.clear()

    def release(self) -> None:
        self.holds = None
        self._go.set()

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        await self._wait([Put(key, value)])
        return await super().put(key, value, expected=expected, lease_id=lease_id)

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        await self._wait([Delete(key)])
        return await super().delete(key, expected=expected)

    async def transact(self, operations: Sequence[Operation]) -> int:
        await self._wait(operations)
        return await super().transact(operations)

    async def _wait(self, operations: Sequence[Operation]) -> None:
        kinds = (Delete,) if self.deletes_only else (Put, Delete)
        for operation in operations:
            held = self.holds is not None and operation.key.startswith(self.holds)
            if held and isinstance(operation, kinds):
                if self.refusing:
                    raise MetadataError("the store refuses this write")
                self.begun.set()
                await self._go.wait()
                return
