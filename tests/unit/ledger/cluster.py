"""A cluster of bookies in memory, with clients whose links to them and to the metadata fail.

Every client has a `Link` of its own to every bookie. Adds travel in order; all else may overtake.
A link can be held (nothing arrives), cut (what is under way is answered BookieUnavailable, and may
still arrive later), or lose single answers. A disk can be wiped (another incarnation) or damaged
(it forgets the newest entries, knows that it did, and keeps its ledgers fenced). `FlakyStore` may
answer a write with MetadataUnavailable, whether it was done or not, or do it later.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import TypeVar

import looptime
from tests.support.memory_bookie import MemoryBookie, MemoryLedger
from tests.unit.ledger.flaky_store import FlakyStore, LoopClock

from magnetar.bookie.api import (
    Bookie,
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    EntryProofs,
    EntryUnknown,
    LedgerEnd,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    OnAdded,
    StoredEntry,
)
from magnetar.ledger.bookies import BookieInfo, BookieLost
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerMetadata, decode, ledger_key
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.memory import MemoryStore

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop whose time passes at once. No thread and no socket wakes it, so it needs no empty
    turns before it moves its clock."""
    return looptime.new_event_loop(noop_cycles=0)


def virtual(coroutine: Coroutine[object, object, T]) -> T:
    """Runs it on a loop whose time passes at once."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(coroutine)


class Disk(MemoryBookie):
    """The entries of a bookie. After damage, it cannot tell which entries it had."""

    def __init__(self, bookie_id: str, incarnation: str = "0") -> None:
        super().__init__(bookie_id, incarnation)
        self.limbo = False
        self.read_only = False

    @property
    def writable(self) -> bool:
        return not self.read_only

    def damage(self, keep: Callable[[int], bool]) -> None:
        """Forgets the entries that are not kept, and every fence; knows that it may have."""
        self.limbo = True
        for ledger in self._ledgers.values():
            ledger.entries = {id_: data for id_, data in ledger.entries.items() if keep(id_)}
            ledger.last_add_confirmed = min(
                ledger.last_add_confirmed, max(ledger.entries, default=-1)
            )
            ledger.fenced = True

    def add_now(
        self, ledger_id: int, first: int, entries: Sequence[bytes], lac: int, *, recovery: bool
    ) -> BookieError | None:
        """Stores the entries at once; returns the answer."""
        if self.read_only:
            return BookieError("read-only")
        if ledger_id in self._deleted:
            return NoSuchLedger("deleted")
        known = ledger_id in self._ledgers
        ledger = self.ledger(ledger_id)
        if self.limbo and not known:
            ledger.fenced = True
        if ledger.fenced and not recovery:
            return LedgerFenced(f"ledger {ledger_id} is fenced")
        for entry_id, data in enumerate(entries, first):
            before = ledger.entries.setdefault(entry_id, data)
            assert before == data, f"entry {entry_id} was {before!r}, now {data!r}"
        ledger.last_add_confirmed = max(ledger.last_add_confirmed, lac)
        return None

    def ledger(self, ledger_id: int) -> MemoryLedger:
        return self._ledgers.setdefault(ledger_id, MemoryLedger())

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        if fence:
            self.ledger(ledger_id).fenced = True
        try:
            found = await super().read_entries(ledger_id, first, last, bytes_max=bytes_max)
        except (NoSuchEntry, NoSuchLedger):
            if self.limbo:
                raise EntryUnknown(f"{self.identity.bookie_id} lost state") from None
            if ledger_id not in self._deleted and fence:
                raise NoSuchEntry(f"{self.identity.bookie_id} never had {first}") from None
            raise
        if self.limbo:
            for index, entry in enumerate(found):
                if entry.entry_id != first + index:
                    return found[:index]
        return found

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        if fence:
            self.ledger(ledger_id).fenced = True
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            raise (EntryUnknown if self.limbo else NoSuchLedger)(f"no ledger {ledger_id}")
        ids = sorted(ledger.entries)
        whole = ids == list(range(len(ids)))
        length = sum(map(len, ledger.entries.values())) if whole and not self.limbo else -1
        return LedgerEnd(ledger.last_add_confirmed, ids[-1] if ids else -1, ledger.fenced, length)

    def ids(self, ledger_id: int) -> set[int]:
        ledger = self._ledgers.get(ledger_id)
        return set() if ledger is None else set(ledger.entries)


class Link:
    """One client's way to one bookie."""

    def __init__(self, disk: Disk, rng: Random) -> None:
        self.disk = disk
        self.held = False
        self.slow_s = 0.0
        self.lose_ratio = 0.0
        self.fail_adds = 0
        self.told: list[tuple[int, int]] = []
        """Ledgers' ends that came this way without an add."""
        self._rng = rng
        self._free_at = 0.0
        self._epoch = 0
        self._pending: list[tuple[OnAdded, asyncio.TimerHandle]] = []
        self._released = asyncio.Event()
        self._released.set()
        self._queue: list[Callable[[], None]] = []

    @property
    def identity(self) -> BookieIdentity:
        return self.disk.identity

    @property
    def writable(self) -> bool:
        return self.disk.writable

    def hold(self) -> None:
        self.held = True
        self._released.clear()

    def release(self) -> None:
        self.held = False
        self._released.set()
        queue, self._queue = self._queue, []
        for act in queue:
            act()

    def deliver(self, count: int) -> None:
        """Lets that many held adds arrive, the oldest first."""
        self.held = False
        arriving, self._queue = self._queue[:count], self._queue[count:]
        for act in arriving:
            act()
        self.held = True

    def refuse(self, count: int) -> None:
        """Fails that many adds."""
        self.fail_adds = count

    def cut(self) -> None:
        """Fails the requests under way as a broken connection does; they may still arrive."""
        self._epoch += 1
        pending, self._pending = self._pending, []
        for on_added, _ in pending:
            on_added(BookieUnavailable(f"connection to {self.identity.bookie_id} lost"))

    def _delay(self) -> float:
        return self.slow_s + self._rng.random() * 0.002

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
        loop = asyncio.get_running_loop()
        assert list(entry_ids) == list(range(entry_ids[0], entry_ids[0] + len(entries)))
        epoch, data = self._epoch, tuple(entries)
        refused = self.fail_adds > 0
        self.fail_adds -= refused
        lost = self._rng.random() < self.lose_ratio

        def arrive() -> None:
            if self.held:
                self._queue.append(arrive)
                return
            if refused:
                error: BookieError | None = BookieError("refused")
            else:
                error = self.disk.add_now(
                    ledger_id, entry_ids[0], data, last_add_confirmed, recovery=recovery
                )
            if lost:
                self.cut()
            elif epoch == self._epoch:
                self._pending.remove(key)
                on_added(error)

        self._free_at = max(self._free_at, loop.time()) + self._delay()
        key = (on_added, loop.call_at(self._free_at, arrive))
        self._pending.append(key)

    async def _travel(self) -> None:
        await asyncio.sleep(self._delay())
        await self._released.wait()
        if self._rng.random() < self.lose_ratio:
            raise BookieUnavailable(f"request to {self.identity.bookie_id} lost")

    async def _back(self) -> None:
        await asyncio.sleep(self._delay())
        await self._released.wait()
        if self._rng.random() < self.lose_ratio:
            raise BookieUnavailable(f"answer of {self.identity.bookie_id} lost")

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        await self._travel()
        try:
            found = await self.disk.read_entries(
                ledger_id, first, last, bytes_max=bytes_max, fence=fence
            )
        finally:
            await self._back()
        return found

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        await self._travel()
        end = await self.disk.ledger_end(ledger_id, fence=fence)
        await self._back()
        return end

    async def note_confirmed(self, confirmed: Sequence[tuple[int, int]]) -> None:
        await self._travel()
        self.told += confirmed
        await self.disk.note_confirmed(confirmed)
        await self._back()

    async def prove_entries(
        self, ledger_id: int, first: int, last: int, *, count_max: int
    ) -> EntryProofs:
        await self._travel()
        return await self.disk.prove_entries(ledger_id, first, last, count_max=count_max)

    async def delete_ledger(self, ledger_id: int) -> None:
        await self._travel()
        await self.disk.delete_ledger(ledger_id)

    async def list_ledgers(self) -> list[int]:
        await self._travel()
        return await self.disk.list_ledgers()

    async def close(self) -> None:
        """Nothing to close."""


class Links:
    """A BookieSet: one client's links to the bookies that are registered."""

    def __init__(self, disks: Iterable[Disk], rng: Random) -> None:
        self._rng = rng
        self.links = {disk.identity: Link(disk, rng) for disk in disks}
        self.away: set[BookieIdentity] = set()
        self.racks: dict[str, str] = {}
        self.groups: Mapping[str, str] = {}
        self.quarantined: set[str] = set()
        self._listeners: list[BookieLost] = []
        self.failures: list[tuple[BookieIdentity, BookieError]] = []

    def get(self, identity: BookieIdentity) -> Bookie | None:
        return self.links.get(identity)

    def living(self) -> Sequence[BookieInfo]:
        return [
            BookieInfo(
                identity,
                rack=self.racks.get(identity.bookie_id, "/default-region/default-rack"),
                writable=link.writable,
                quarantined=identity.bookie_id in self.quarantined,
                group=self.groups.get(identity.bookie_id, "default"),
            )
            for identity, link in sorted(self.links.items())
            if identity not in self.away
        ]

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        self.failures.append((identity, error))

    def add_listener(self, on_lost: BookieLost) -> None:
        self._listeners.append(on_lost)

    def remove_listener(self, on_lost: BookieLost) -> None:
        self._listeners.remove(on_lost)

    def leave(self, identity: BookieIdentity) -> None:
        """Ends its registration."""
        if identity in self.links and identity not in self.away:
            self.away.add(identity)
            for on_lost in list(self._listeners):
                on_lost(identity)

    def come(self, disk: Disk) -> None:
        """It has registered (again)."""
        self.away.discard(disk.identity)
        self.links.setdefault(disk.identity, Link(disk, self._rng))

    def gone(self, identity: BookieIdentity) -> None:
        """Destroys its disks."""
        self.leave(identity)
        link = self.links.pop(identity, None)
        self.away.discard(identity)
        if link is not None:
            link.release()
            link.cut()


class Cluster:
    """The disks, the metadata, and clients."""

    def __init__(self, bookies: int, settings: LedgerSettings, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.settings = settings
        self.disks = {f"b{n}": Disk(f"b{n}") for n in range(bookies)}
        self.store = FlakyStore(self.rng)
        self.sets: list[Links] = []

    def client(self) -> tuple[LedgerClient, Links]:
        """Another client, which knows all bookies that are there now."""
        links = Links(self.disks.values(), self.rng)
        self.sets.append(links)
        client = LedgerClient(
            self.store, links, LoopClock(), self.settings, rng=Random(self.rng.random())
        )
        return client, links

    async def writer(self) -> tuple[LedgerWriter, Links]:
        """A new ledger's, by a new client."""
        client, links = self.client()
        return await client.create({}), links

    async def record(self, ledger_id: int) -> LedgerMetadata:
        """Returns the ledger's record in the metadata store."""
        record = await MemoryStore.get(self.store, ledger_key(ledger_id))
        assert record is not None
        return decode(record.key, record.value)

    def has(self, ledger_id: int, entry_id: int) -> set[str]:
        """Which bookies have the entry."""
        return {name for name, disk in self.disks.items() if entry_id in disk.ids(ledger_id)}

    def wipe(self, bookie_id: str) -> None:
        """An empty disk under the same name: another incarnation."""
        old = self.disks[bookie_id]
        new = Disk(bookie_id, str(int(old.identity.incarnation) + 1))
        self.disks[bookie_id] = new
        for links in self.sets:
            links.gone(old.identity)
            links.come(new)

    def heal(self) -> None:
        """Everything that is still there can be reached."""
        self.store.trouble = 0.0
        self.store.reads_fail = False
        for links in self.sets:
            for link in links.links.values():
                link.slow_s = link.lose_ratio = 0.0
                link.fail_adds = 0
                link.release()
            for disk in self.disks.values():
                disk.read_only = False
                links.come(disk)
