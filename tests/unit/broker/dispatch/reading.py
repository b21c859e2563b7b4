"""A log whose reads the test controls: their ends, their failures, and the cached entries."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from magnetar.broker.dispatch.replay import PositionPair
from magnetar.core.ids import Position
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger

LEDGER = 1
TURNS = 8


def at(entry_id: int) -> Position:
    return Position(LEDGER, entry_id)


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Read:
    """One read that is under way until the test answers it."""

    def __init__(self, start: Position, entries_max: int, bytes_max: int) -> None:
        self.start, self.entries_max, self.bytes_max = start, entries_max, bytes_max
        self.answer: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()

    @property
    def asked(self) -> tuple[int, int]:
        """The first entry, and how many at most."""
        return self.start.entry_id, self.entries_max


class HandLog:
    """A log with entries 0 to `last` of one ledger, whose reads the test ends."""

    def __init__(self, last: int, *, entry_bytes: int = 1) -> None:
        self.last = last
        self.horizon: Position | None = None
        self.entry_bytes = entry_bytes
        self.cached = False
        self.listeners: list[Callable[[], None]] = []
        self.reads: list[Read] = []
        self.began = asyncio.Event()
        """Set by each read that begins."""

    @property
    def last_confirmed(self) -> Position:
        return at(self.last)

    def entry(self, entry_id: int) -> Entry:
        return Entry(LEDGER, entry_id, bytes(self.entry_bytes))

    def add_append_listener(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def remove_append_listener(self, listener: Callable[[], None]) -> None:
        self.listeners.remove(listener)

    def append(self, count: int = 1) -> None:
        self.last += count
        for listener in list(self.listeners):
            listener()

    def next_position(self, position: Position) -> Position:
        return Position(position.ledger_id, position.entry_id + 1)

    def read_cached(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry] | None:
        return self._some(start, entries_max) if self.cached else None

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        read = Read(start, entries_max, bytes_max)
        self.reads.append(read)
        self.began.set()
        return await read.answer

    async def next_read(self) -> float:
        """Waits for a read that has not begun yet; after how many seconds it does."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self.began.clear()
        await self.began.wait()
        return loop.time() - begun

    def _some(self, start: Position, entries_max: int) -> list[Entry]:
        end = min(start.entry_id + entries_max, self.last + 1)
        return [self.entry(entry_id) for entry_id in range(start.entry_id, end)]

    # -- the test's side

    async def answer(self, error: Exception | None = None, *, entries: int | None = None) -> Read:
        """Ends the oldest pending read, with the requested entries or fewer."""
        await turns()
        read = self.reads.pop(0)
        if error is not None:
            read.answer.set_exception(error)
        else:
            count = read.entries_max if entries is None else entries
            read.answer.set_result(self._some(read.start, count))
        await turns()
        return read

    async def asked(self) -> list[tuple[int, int]]:
        """The reads under way: the first entry of each, and how many at most."""
        await turns()
        self.reads = [each for each in self.reads if not each.answer.done()]
        return [each.asked for each in self.reads]


class Mark:
    """The cursor of a reader."""

    name = "s"

    def __init__(self) -> None:
        self.read_position = at(0)
        self.acked: set[PositionPair] = set()

    def ack(self, ledger_id: int, entry_id: int) -> None:
        self.acked.add((ledger_id, entry_id))

    def is_done(self, ledger_id: int, entry_id: int) -> bool:
        return (ledger_id, entry_id) in self.acked


def as_ledger(log: HandLog) -> ManagedLedger:
    return cast("ManagedLedger", log)


def as_cursor(mark: Mark) -> Cursor:
    return cast("Cursor", mark)


def ids(entries: Any) -> list[int]:
    return [each.entry_id for each in entries]
