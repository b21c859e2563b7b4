"""Opens the managed ledgers of a process, each once, and owns their shared parts.

Opening, deleting and closing one name exclude each other; different names are independent. `close`
closes all open managed ledgers, CLOSED_AT_ONCE_MAX at a time, then stops the background tasks.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, NotFound
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.cache import EntryCache
from magnetar.managed_ledger.claim import Guard, unguarded
from magnetar.managed_ledger.context import (
    ColdFirst,
    Confirm,
    Context,
    Forget,
    PersistTimer,
    TrimLimit,
    bookies_first,
    nothing_else,
    unasked,
    unlimited,
)
from magnetar.managed_ledger.errors import ManagedLedgerClosed
from magnetar.managed_ledger.lifecycle import delete_managed_ledger, open_managed_ledger
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.outline import Outline, outline
from magnetar.managed_ledger.record import (
    MANAGED_LEDGERS_PREFIX,
    CursorRecord,
    ManagedLedgerRecord,
    cursor_name,
    cursors_prefix,
    decode_cursor,
    decode_managed_ledger,
    is_aborted_key,
    managed_ledger_key,
)
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, BadRevision, Check, MetadataStore, Put
from magnetar.offload.cold import ColdLedgers

CLOSED_AT_ONCE_MAX: Final = 64

log = get_logger("magnetar.managed_ledger")


@dataclass(frozen=True, slots=True)
class ManagedLedgerInfo:
    """The records of a managed ledger and of its cursors."""

    name: str
    revision: int
    record: ManagedLedgerRecord
    cursors: dict[str, CursorRecord]


class _NameLock:
    """A lock of one name; removed when unused."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class ManagedLedgerFactory:
    """Opens, declares and deletes managed ledgers."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        clock: Clock,
        settings: ManagedLedgerSettings | None = None,
        *,
        cold: ColdLedgers | None = None,
        guard: Guard = unguarded,
        confirm: Confirm = unasked,
        trim_limit: TrimLimit = unlimited,
        cold_first: ColdFirst = bookies_first,
        forget: Forget = nothing_else,
        rng: random.Random | None = None,
    ) -> None:
        """`guard` binds every write to a claim; `confirm` confirms retention before each trim.

        `trim_limit` limits how far retention trims; `cold_first` chooses the copy that is read
        first. `forget` deletes what others keep of a deleted one. The factory closes `cold`.
        """
        settings = settings or ManagedLedgerSettings()
        self.cache = EntryCache(settings.cache_bytes_max)
        self._store = store
        self._tasks = TaskSet("managed_ledger")
        self._timer = PersistTimer()
        self.cold = cold or ColdLedgers(store, settings.cold_cache_bytes_max, clock)
        self._context = Context(
            store,
            ledgers,
            SteadyClock.of(clock),
            settings,
            self.cache,
            self._tasks,
            self._timer,
            self.cold,
            guard=guard,
            confirm=confirm,
            cold_first=cold_first,
            trim_limit=trim_limit,
            forget=forget,
            rng=rng or random.Random(),
        )
        self._open: dict[str, ManagedLedger] = {}
        self._locks: dict[str, _NameLock] = {}
        self._closed = False

    @property
    def client(self) -> LedgerClient:
        """The client of the ledgers, for diagnosis."""
        return self._context.ledgers

    @property
    def opened(self) -> dict[str, ManagedLedger]:
        """The open managed ledgers, by name."""
        return dict(self._open)

    async def open(
        self, name: str, *, create: bool = True, checks: Sequence[Check] = ()
    ) -> ManagedLedger:
        """Returns this process's one instance; concurrent callers get the same.

        Raises NotFound if it does not exist and `create` is false. It is created only while
        `checks` hold: raises BadRevision of one that does not.
        """
        async with self._locked(name):
            self._check_open()
            managed_ledger = self._open.get(name)
            if managed_ledger is not None and not await managed_ledger.tenure.holds():
                # Claimed again: read what another owner wrote in between.
                managed_ledger.abandon()
                await managed_ledger.tenure.settled()
                managed_ledger = None
            if managed_ledger is None:
                managed_ledger = await open_managed_ledger(
                    name, self._context, create=create, checks=checks, on_closed=self._forget
                )
                self._open[name] = managed_ledger
            return managed_ledger

    def _forget(self, managed_ledger: ManagedLedger) -> None:
        if self._open.get(managed_ledger.name) is managed_ledger:
            del self._open[managed_ledger.name]

    async def declare(self, name: str, checks: Sequence[Check] = ()) -> None:
        """Creates the record if it does not exist, without opening it: its owner will open it.

        Uses no guard: an empty record, created only if absent, conflicts with no owner. `checks` as
        for `open`.
        """
        now_ms = self._context.clock.now_ms()
        record = ManagedLedgerRecord(created_ms=now_ms, modified_ms=now_ms)
        key = managed_ledger_key(name)
        try:
            await self._store.transact([Put(key, encode(record), ABSENT), *checks])
        except BadRevision as error:
            if error.key != key:
                raise

    async def exists(self, name: str, *, half_deleted: bool = False) -> bool:
        """Whether it can be opened without creating it.

        With `half_deleted`, also true if a deletion was interrupted: `delete` finishes it.
        """
        key = managed_ledger_key(name)
        stored = await self._store.get(key)
        if stored is None:
            return False
        return half_deleted or not decode_managed_ledger(key, stored.value).deleted

    async def names(self, prefix: str, *, half_deleted: bool = False) -> list[str]:
        """Returns the names with this prefix, in order; `half_deleted` as for `exists`."""
        skip = len(MANAGED_LEDGERS_PREFIX)
        return [
            stored.key[skip:]
            for stored in await self._store.list(managed_ledger_key(prefix))
            if half_deleted or not decode_managed_ledger(stored.key, stored.value).deleted
        ]

    async def info(self, name: str) -> ManagedLedgerInfo:
        """Returns the records of it and its cursors, without opening it. Raises NotFound."""
        key = managed_ledger_key(name)
        stored = await self._store.get(key)
        if stored is None:
            raise NotFound(f"managed ledger {name} does not exist")
        record = decode_managed_ledger(key, stored.value)
        if record.deleted:
            raise NotFound(f"managed ledger {name} does not exist")
        cursors = {
            cursor_name(cursor.key): decode_cursor(cursor.key, cursor.value)
            for cursor in await self._store.list(cursors_prefix(name))
            if not is_aborted_key(cursor.key)
        }
        return ManagedLedgerInfo(name, stored.revision, record, cursors)

    async def outline(self, name: str) -> Outline:
        """Returns its ledgers and cursors by the records, without opening it. Raises NotFound."""
        info = await self.info(name)
        return await outline(info.record, info.cursors, self._context.ledgers)

    async def delete(self, name: str, checks: Sequence[Check] = ()) -> None:
        """Deletes it with its cursors and entries. Raises NotFound.

        Raises BadRevision, and deletes nothing, if one of `checks` does not hold at the start.
        """
        async with self._locked(name):
            managed_ledger = self._open.get(name)
            if managed_ledger is not None:
                managed_ledger.abandon()
                await managed_ledger.tenure.settled()
            await delete_managed_ledger(name, self._context, checks)

    async def close(self) -> None:
        """Closes all open managed ledgers; none can be opened afterwards. Idempotent."""
        self._closed = True
        while self._open:
            batch = list(self._open.values())[:CLOSED_AT_ONCE_MAX]
            for name, error in zip(
                [managed_ledger.name for managed_ledger in batch],
                await asyncio.gather(*map(self._close, batch)),
                strict=True,
            ):
                if error is not None:
                    log.warning("managed ledger not closed", name=name, error=str(error))
        self._timer.stop()
        await self._tasks.stop()
        await self.cold.close()

    async def _close(self, managed_ledger: ManagedLedger) -> MagnetarError | None:
        try:
            await managed_ledger.close()
        except MagnetarError as error:
            return error
        return None

    async def abandon(self) -> None:
        """Stops at once without writing, as if the process had been killed."""
        self._closed = True
        self._timer.stop()
        await self._tasks.stop()
        await self.cold.close()
        for managed_ledger in list(self._open.values()):
            managed_ledger.abandon()

    def _check_open(self) -> None:
        if self._closed:
            raise ManagedLedgerClosed("the broker is stopping")

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncIterator[None]:
        entry = self._locks.setdefault(name, _NameLock())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[name]
