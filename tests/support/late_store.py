"""A metadata store whose writes land at once, and are answered when the test says so."""

import asyncio
from collections.abc import Sequence

from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Operation


class LateStore(MemoryStore):
    """While `answering` is clear, writers wait; `landed` is set when one begins to."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.answering = asyncio.Event()
        self.answering.set()
        self.landed = asyncio.Event()

    def hold(self) -> None:
        self.landed.clear()
        self.answering.clear()

    async def _answer(self) -> None:
        if not self.answering.is_set():
            self.landed.set()
        await self.answering.wait()

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        revision = await super().put(key, value, expected=expected, lease_id=lease_id)
        await self._answer()
        return revision

    async def transact(self, operations: Sequence[Operation]) -> int:
        revision = await super().transact(operations)
        await self._answer()
        return revision
