"""A metadata store that may answer a write with MetadataUnavailable, and a clock of the loop."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from random import Random

from magnetar.core.errors import MetadataError
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataUnavailable, Operation, Put, Record


class LoopClock:
    """The loop's own time."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + 1_700_000_000_000

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class FlakyStore(MemoryStore):
    """A store whose writes may be answered MetadataUnavailable: done, not done, or done later."""

    def __init__(self, rng: Random) -> None:
        super().__init__(LoopClock())
        self.trouble = 0.0
        self.reads_fail = False
        self.outcome: int | None = None
        """Of every write in trouble: 0 not done, 1 done, 2 done later; None: any."""
        self._rng = rng

    async def _answered(self, write: Callable[[], object]) -> bool:
        """Whether the caller hears what becomes of it."""
        if self._rng.random() >= self.trouble:
            return True
        match self._rng.randrange(3) if self.outcome is None else self.outcome:
            case 0:
                pass
            case 1:
                self._quietly(write)
            case _:
                loop = asyncio.get_running_loop()
                loop.call_later(self._rng.random() * 5, self._quietly, write)
        await asyncio.sleep(0.01)
        return False

    def _quietly(self, write: Callable[[], object]) -> None:
        with contextlib.suppress(MetadataError):
            write()  # nobody is there to be told

    async def get(self, key: str) -> Record | None:
        if self.reads_fail or self._rng.random() < self.trouble / 2:
            await asyncio.sleep(0.01)
            raise MetadataUnavailable("no answer")
        return await super().get(key)

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        return await self.transact([Put(key, value, expected, lease_id)])

    async def transact(self, operations: Sequence[Operation]) -> int:
        operations = list(operations)
        if not await self._answered(lambda: self._apply(operations)):
            raise MetadataUnavailable("no answer")
        return await super().transact(operations)
