"""The parts that all managed ledgers and cursors of a process share.

A cursor with acks that no receipt waits for joins `PersistTimer`, which has it write them at most
PERSIST_INTERVAL_S later. There is one timer for all cursors, and none while no cursor has such
acks.
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
from magnetar.managed_ledger.claim import Guard, unguarded
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.store import ABSENT, Check, MetadataStore
from magnetar.offload.cold import ColdLedgers

PERSIST_INTERVAL_S: Final = 1.0
REMOVALS_AT_ONCE_MAX: Final = 64
"""Concurrent trims of records: a change of a policy may affect all topics at once."""


Confirm = Callable[[str], Awaitable[None]]


async def unasked(_name: str) -> None:
    """Confirms at once, for a process that is the only one to change retention."""


Checks = tuple[Check, ...]
"""What else must hold when a record is written."""

TrimLimit = Callable[[str, int], Awaitable[Position | None]]


async def unlimited(_name: str, _created_ms: int) -> Position | None:
    """Sets no limit, for a process without compaction."""
    return None


Forget = Callable[[str, Check], Awaitable[None]]


async def nothing_else(_name: str, _marked: Check) -> None:
    """Deletes nothing, for a process that keeps nothing else of a managed ledger."""


ColdFirst = Callable[[str], bool]


def bookies_first(_name: str) -> bool:
    """Prefers the bookies' copy."""
    return False


class Persistable(Protocol):
    """An object with changes to write."""

    def persist(self) -> None:
        """Starts writing the changes."""


class PersistTimer:
    """Has cursors write their acks at most PERSIST_INTERVAL_S later."""

    __slots__ = ("_due", "_handle", "_stopped")

    def __init__(self) -> None:
        self._due: set[Persistable] = set()
        self._handle: asyncio.TimerHandle | None = None
        self._stopped = False

    def add(self, item: Persistable) -> None:
        """Calls `item.persist()` when the timer next fires."""
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
        self._due.clear()


@dataclass(frozen=True, slots=True)
class Context:
    """The shared parts of one factory."""

    store: MetadataStore
    ledgers: LedgerClient
    clock: SteadyClock
    settings: ManagedLedgerSettings
    cache: EntryCache
    tasks: TaskSet
    timer: PersistTimer
    cold: ColdLedgers
    """The offloaded ledgers; used only if the bookies may not have a ledger."""
    guard: Guard = unguarded
    """Returns the claim that every write of a record carries; see `tenure`."""
    confirm: Confirm = unasked
    """Called with the managed ledger's name before retention deletes ledgers.

    Refreshes the retention, which may have changed. If it raises, the ledgers stay.
    """
    cold_first: ColdFirst = bookies_first
    """Whether reads prefer a ledger's offloaded file while bookies still have the ledger."""
    trim_limit: TrimLimit = unlimited
    """Called with the managed ledger's name and creation time: how far retention may trim.

    None means no limit. If it raises, the ledgers stay.
    """
    forget: Forget = nothing_else
    """Deletes what others keep of a managed ledger that is being deleted, before its record.

    Called with its name and a check that holds until its record is deleted; may be called again.
    """
    unanswered: set[str] = field(default_factory=set)
    """Managed ledgers with a write of a former instance that may still land.

    At most one name per managed ledger that this process has opened. The next opening keeps such a
    write out.
    """
    rng: random.Random = field(default_factory=random.Random)
    """The source of the jitter of retries."""
    removals: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(REMOVALS_AT_ONCE_MAX)
    )

    async def checked_trim_limit(
        self, name: str, created_ms: int
    ) -> tuple[Position | None, Checks]:
        """Returns the limit of a trim, and what must still hold when the ledgers are removed.

        A topic without compaction has no limit, but its first artifact may become live before the
        ledgers are removed. It would then miss the values after its horizon for ever.
        """
        if self.trim_limit is unlimited:
            return None, ()
        # Imported here: most processes that have managed ledgers trim none.
        from magnetar.compaction.records import compaction_key

        key = compaction_key(name)
        artifact = await self.store.get(key)
        limit = await self.trim_limit(name, created_ms)
        if limit is not None:
            return limit, ()
        return None, (Check(key, ABSENT if artifact is None else artifact.revision),)
