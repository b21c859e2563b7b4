"""A metadata store that holds back, or does not answer, the writes that a test chooses."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Delete, MetadataUnavailable, Operation, Put, Record

T = TypeVar("T")
Chosen = Callable[[Operation], bool]


class Held:
    """A write that waits: `reached` is set when it comes, and `go` lets it through."""

    def __init__(self, chosen: Chosen, *, lands: bool) -> None:
        self.chosen = chosen
        self.lands = lands
        self.reached = asyncio.Event()
        self.go = asyncio.Event()


class HeldStore(MemoryStore):
    """While `away`, it answers nothing."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.away = False
        self._held: list[Held] = []
        self._lost: list[Held] = []

    def hold(self, chosen: Chosen, *, lands: bool = True) -> Held:
        """The next write with a chosen operation waits; then it lands, or is not answered."""
        self._held.append(held := Held(chosen, lands=lands))
        return held

    def lose(self, chosen: Chosen, *, lands: bool) -> Held:
        """The store goes away with the next write of a chosen operation, which landed or not."""
        self._lost.append(held := Held(chosen, lands=lands))
        return held

    async def get(self, key: str) -> Record | None:
        self._answer()
        return await super().get(key)

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        write = super().put
        return await self._write(
            [Put(key, value, expected)],
            lambda: write(key, value, expected=expected, lease_id=lease_id),
        )

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        write = super().delete
        return await self._write([Delete(key, expected)], lambda: write(key, expected=expected))

    async def transact(self, operations: Sequence[Operation]) -> int:
        write = super().transact
        return await self._write(operations, lambda: write(operations))

    async def _write(self, operations: Sequence[Operation], doing: Callable[[], Awaitable[T]]) -> T:
        self._answer()
        if (held := _taken(self._held, operations)) is not None:
            held.reached.set()
            await held.go.wait()
            if not held.lands:
                raise MetadataUnavailable("no answer came")
        if (lost := _taken(self._lost, operations)) is not None:
            self.away = True
            if lost.lands:
                await doing()
            lost.reached.set()
            raise MetadataUnavailable("no answer came")
        return await doing()

    def _answer(self) -> None:
        if self.away:
            raise MetadataUnavailable("the store is away")


def _taken(waiting: list[Held], operations: Sequence[Operation]) -> Held | None:
    for held in waiting:
        if any(held.chosen(operation) for operation in operations):
            waiting.remove(held)
            return held
    return None


def puts(start: str) -> Chosen:
    """Writes of a key that begins so."""
    return lambda operation: isinstance(operation, Put) and operation.key.startswith(start)


def deletes(start: str) -> Chosen:
    """Deletions of a key that begins so."""
    return lambda operation: isinstance(operation, Delete) and operation.key.startswith(start)
