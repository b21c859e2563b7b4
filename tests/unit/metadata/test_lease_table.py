"""The leases of an in-process store: their deadlines, their clock, and their keys."""

import asyncio
import gc
import weakref

import pytest
from tests.unit.ledger.cluster import virtual
from tests.unit.metadata.test_session import LoopClock

from magnetar.metadata import leases
from magnetar.metadata.leases import LeaseTable
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import EventKind, InvalidOperation, LeaseLost, StoreClosed

TTL_S = 10.0
TICK_S = 0.01


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1_000)

    def monotonic(self) -> float:
        return self.seconds


class Table:
    """A table without stored keys; records the calls to its store."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ended: list[list[str]] = []
        self.closed = False
        self.table = LeaseTable(self.clock, self._ended, self._called, lambda: None)

    async def _ended(self, keys: list[str]) -> None:
        self.ended.append(keys)

    def _called(self) -> None:
        if self.closed:
            raise StoreClosed("closed")


@pytest.fixture
async def table() -> Table:
    return Table()


async def test_a_lease_is_valid_up_to_its_deadline_and_due_from_then_on(table: Table) -> None:
    """Exactly: the holder uses nothing that the store may grant to another process."""
    lease = table.table.grant(TTL_S)
    table.table.attach("/a", lease.id)
    assert lease.deadline == table.clock.monotonic() + TTL_S
    table.clock.seconds = lease.deadline - TICK_S
    assert lease.valid
    assert table.table.take_due() == []
    table.clock.seconds = lease.deadline
    assert not lease.valid
    assert table.table.take_due() == ["/a"]
    assert table.table.take_due() == []
    assert lease.lost


async def test_of_several_leases_only_those_that_are_due_end(table: Table) -> None:
    held = [table.table.grant(TTL_S * factor) for factor in (3, 1, 2, 1)]
    for number, lease in enumerate(held):
        table.table.attach(f"/{number}", lease.id)
    for passed, keys in ((1, ["/1", "/3"]), (2, ["/2"]), (3, ["/0"])):
        table.clock.seconds = 1_000.0 + TTL_S * passed
        assert table.table.take_due() == keys
    assert table.table.take_due() == []


async def test_a_renewal_counts_from_the_renewal(table: Table) -> None:
    lease = table.table.grant(TTL_S)
    table.clock.seconds += TTL_S - TICK_S
    await lease.keep_alive()
    table.clock.seconds += TTL_S - TICK_S
    assert table.table.take_due() == []
    assert lease.valid
    table.clock.seconds += TICK_S
    assert not lease.valid
    table.table.take_due()
    with pytest.raises(LeaseLost):
        await lease.keep_alive()


async def test_a_key_ends_with_the_lease_it_goes_with_now(table: Table) -> None:
    first, second = table.table.grant(TTL_S), table.table.grant(TTL_S)
    for key in ("/b", "/a", "/moved", "/freed"):
        table.table.attach(key, first.id)
    table.table.attach("/moved", second.id)
    table.table.attach("/freed", None)
    assert [table.table.holds(key) for key in ("/a", "/moved", "/freed")] == [True, True, False]
    await first.revoke()
    await first.revoke()
    assert table.ended == [["/a", "/b"]], "once, and in order"
    await table.table.revoke_id(second.id)
    await table.table.revoke_id(second.id)
    assert table.ended == [["/a", "/b"], ["/moved"]]
    assert second.lost


async def test_ids_are_never_given_twice(table: Table) -> None:
    given = []
    for _ in range(3):
        lease = table.table.grant(TTL_S)
        given.append(lease.id)
        await lease.revoke()
    assert given == [1, 2, 3]
    for lease_id in (0, 1, 3, 4):
        with pytest.raises(LeaseLost):
            table.table.require(lease_id)


async def test_there_are_no_more_leases_than_the_bound(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASES_MAX", 2)
    held = [table.table.grant(TTL_S) for _ in range(2)]
    with pytest.raises(InvalidOperation, match="2 leases already"):
        table.table.grant(TTL_S)
    await held[0].revoke()
    table.table.grant(TTL_S)


async def test_no_lease_outlives_its_store(table: Table) -> None:
    held = [table.table.grant(TTL_S) for _ in range(3)]
    table.table.attach("/a", held[0].id)
    table.table.close()
    assert not any(lease.valid for lease in held)
    assert not table.table.holds("/a")
    table.clock.seconds += 2 * TTL_S
    assert table.table.take_due() == []
    table.closed = True
    for call in (held[0].keep_alive(), held[0].revoke(), table.table.revoke_id(held[0].id)):
        with pytest.raises(StoreClosed):
            await call
    assert table.ended == []


# -- the timer: a store that nobody asks anything


def test_a_lease_ends_by_itself_though_nobody_asks_the_store_for_anything() -> None:
    async def scenario() -> None:
        store = MemoryStore(LoopClock())
        held = [await store.grant_lease(TTL_S * factor) for factor in (2, 1)]
        for number, lease in enumerate(held):
            await store.put(f"/{number}", b"", lease_id=lease.id)
        watch = store.watch("/")
        loop = asyncio.get_running_loop()
        began = loop.time()
        for key, after_s in (("/1", TTL_S), ("/0", 2 * TTL_S)):
            event = await anext(watch)
            assert (event.kind, event.record.key) == (EventKind.DELETE, key)
            assert loop.time() - began == pytest.approx(after_s, abs=TICK_S)
        await store.close()

    virtual(scenario())


def test_a_timer_that_comes_early_waits_for_the_clock() -> None:
    """The clock counts: a loop whose time runs ahead must neither end a lease nor forget it."""

    async def scenario() -> None:
        clock = LoopClock()
        store = MemoryStore(clock)
        lease = await store.grant_lease(TTL_S)
        await store.put("/a", b"", lease_id=lease.id)
        watch = store.watch("/")
        clock.jump(-TTL_S)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await anext(watch)).record.key == "/a"
        assert loop.time() - began == pytest.approx(2 * TTL_S, abs=TICK_S)
        await store.close()

    virtual(scenario())


def test_a_renewed_lease_ends_by_itself_once_it_is_renewed_no_more() -> None:
    async def scenario() -> None:
        store = MemoryStore(LoopClock())
        lease = await store.grant_lease(TTL_S)
        await store.put("/a", b"", lease_id=lease.id)
        watch = store.watch("/")
        loop = asyncio.get_running_loop()
        for _ in range(5):
            await asyncio.sleep(TTL_S * 0.75)
            await lease.keep_alive()
        renewed = loop.time()
        assert (await anext(watch)).record.key == "/a"
        assert loop.time() - renewed == pytest.approx(TTL_S, abs=TICK_S)
        await store.close()

    virtual(scenario())


async def test_a_closed_store_is_held_by_no_timer() -> None:
    store = MemoryStore(Clock())
    await store.grant_lease(3_600)
    await store.close()
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None
