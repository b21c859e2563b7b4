"""What the tests of ledgers and managed ledgers stand on: a clock, and a bookie that can fail.

`Stage` is what survives a crash: the metadata store and the bookie. Whatever runs on it is thrown
away and built again.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tests.support.held_bookie import HeldBookie

from magnetar.bookie.api import Bookie, BookieError, OnAdded
from magnetar.core.errors import MagnetarError
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryStore

NAME = "public/default/persistent/topic"


class ManualClock:
    """A clock that only moves on request."""

    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000

    def advance(self, ms: int) -> None:
        self.time_ms += ms


class FaultyBookie(HeldBookie):
    """A bookie whose adds can be held back, refused, or stored without saying so."""

    def __init__(self) -> None:
        super().__init__()
        self.read_only = False
        self.refuse: Callable[[int, Sequence[int]], bool] = lambda _ledger, _ids: False

    @property
    def writable(self) -> bool:
        return not self.read_only

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        last_add_confirmed: int,
        on_added: OnAdded,
        recovery: bool = False,
    ) -> None:
        if self.refuse(ledger_id, entry_ids):
            if self.hold:
                self.answer(on_added, BookieError("refused"))
            else:
                asyncio.get_running_loop().call_soon(on_added, BookieError("refused"))
            return
        super().add_entries(
            ledger_id,
            entry_ids,
            entries,
            last_add_confirmed=last_add_confirmed,
            on_added=on_added,
            recovery=recovery,
        )


class Appends:
    """Collects what `append` calls back with, in order."""

    def __init__(self) -> None:
        self.results: list[tuple[int, int, MagnetarError | None]] = []
        self._more = asyncio.Event()

    def __call__(self, ledger_id: int, first: int, error: MagnetarError | None) -> None:
        self.results.append((ledger_id, first, error))
        self._more.set()

    def labelled(self, label: int) -> Callable[[int, int, MagnetarError | None], None]:
        """Returns a callback with a label in place of the ledger id."""
        return lambda _ledger_id, first, error: self(label, first, error)

    async def wait(self, count: int) -> list[tuple[int, int, MagnetarError | None]]:
        while len(self.results) < count:
            self._more.clear()
            await self._more.wait()
        return self.results


AnyBookie = TypeVar("AnyBookie", bound=Bookie)


class StageOn(Generic[AnyBookie]):
    """What survives a crash, with a bookie of any kind."""

    def __init__(self, bookie: AnyBookie) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.bookie = bookie

    def client(self) -> LedgerClient:
        return LedgerClient(self.store, LocalBookies([self.bookie]), self.clock, SINGLE)

    def factory(
        self, settings: ManagedLedgerSettings | None = None, **hooks: Any
    ) -> ManagedLedgerFactory:
        """`hooks` are the factory's: `guard`, `confirm`, `trim_limit`, `cold_first`."""
        return ManagedLedgerFactory(self.store, self.client(), self.clock, settings, **hooks)


class Stage(StageOn[FaultyBookie]):
    """A writer's stage, with a bookie that fails on request."""

    def __init__(self) -> None:
        super().__init__(FaultyBookie())


async def write(writer: LedgerWriter, *entries: bytes) -> int:
    """Appends a group and waits; its first entry id. Raises what the writer says."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_appended(first: int, error: MagnetarError | None) -> None:
        if error is None:
            done.set_result(first)
        else:
            done.set_exception(error)

    writer.append(list(entries), on_appended)
    return await done


async def publish(ledger: ManagedLedger, *entries: bytes) -> tuple[int, int]:
    """Appends a group and waits; (ledger id, first entry id). Raises what the ledger says."""
    appends = Appends()
    ledger.append(list(entries), appends)
    ((ledger_id, first, error),) = await appends.wait(1)
    if error is not None:
        raise error
    return ledger_id, first


async def turns(count: int = 10) -> None:
    """Gives the loop some turns."""
    for _ in range(count):
        await asyncio.sleep(0)
