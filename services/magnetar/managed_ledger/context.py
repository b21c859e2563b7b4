"""What all managed ledgers and cursors of a process share.

The one timer for cursors: a cursor that has acks nobody waits for joins `PersistTimer`, and is told
to write them when the timer fires, at most PERSIST_INTERVAL_S later. While no cursor has any, there
is no timer.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from magnetar.core.ids import Position
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.cache import EntryCache
from magnetar.managed_ledger.guarded import Guard, unguarded
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.store import MetadataStore
from magnetar.offload.cold import ColdLedgers

PERSIST_INTERVAL_S: Final = 1.0
REMOVALS_AT_ONCE_MAX: Final = 64
"""Writes that take ledgers off records: a policy's change may concern all topics at once."""


Confirm = Callable[[str], Awaitable[None]]


async def unasked(_name: str) -> None:
    """Where nobody else can change retention."""


TrimLimit = Callable[[str, int], Awaitable[Position | None]]


async def unlimited(_name: str, _created_ms: int) -> Position | None:
    """Where nothing is compacted."""
    return None


ColdFirst = Callable[[str], bool]


def bookies_first(_name: str) -> bool:
    """Where nothing is said of which copy is read."""
    return False


class Persistable(Protocol):
    """Something with changes to write."""

    def persist(self) -> None:
        """Starts writing what changed."""


class PersistTimer:
    """See the module's text."""

    __slots__ = ("_due", "_handle", "_stopped")

    def __init__(self) -> None:
        self._due: set[Persistable] = set()
        self._handle: asyncio.TimerHandle | None = None
        self._stopped = False

    def add(self, item: Persistable) -> None:
        """Has `item.persist()` called at the next firing."""
        self._due.add(item)
        if self._handle is None and not self._stopped:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(PERSIST_INTERVAL_S, self._fire)

    def discard(self, item: Persistable) -> None:
        self._due.discard(item)

    def _fire(self) -> None:
        self._handle = None
        due, self._due = self._due, set()
        for item in due:
            item.persist()

    def stop(self) -> None:
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._due.clear()


@dataclass(frozen=True, slots=True)
class Context:
    """One per factory."""

    store: MetadataStore
    ledgers: LedgerClient
    clock: SteadyClock
    settings: ManagedLedgerSettings
    cache: EntryCache
    tasks: TaskSet
    timer: PersistTimer
    cold: ColdLedgers
    """What was offloaded: asked only where it may be needed."""
    guard: Guard = unguarded
    """What every write of a record carries; see `guarded`."""
    confirm: Confirm = unasked
    """Asked, with the log's name, before ledgers go that retention as it is known does not keep: it
    may have been changed. What it raises keeps them."""
    cold_first: ColdFirst = bookies_first
    """Whether, of a log's offloaded ledgers, the files are read while bookies have them still."""
    trim_limit: TrimLimit = unlimited
    """Asked, with the log's name and when it was created, how far retention may go; None: as far as
    it likes. What it raises keeps ledgers."""
    unanswered: set[str] = field(default_factory=set)
    """Managed ledgers of which a write of the last instance may still land: at most one name for
    each that this process has opened. The next opening keeps such a write out."""
    rng: random.Random = field(default_factory=random.Random)
    """For the spread of repetitions."""
    removals: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(REMOVALS_AT_ONCE_MAX)
    )
