"""The ledgers' states: no fence or delete is evicted before the index has it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.memory_bookie import MemoryBookie
from tests.support.memory_index import MemoryIndexStore
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import ID_END, BookieError, LedgerFenced, NoSuchLedger
from magnetar.bookie.index import ledgers as ledgers_module
from magnetar.bookie.index.index import Index
from magnetar.bookie.index.ledgers import Ledgers
from magnetar.bookie.local import LocalBookie

from .conftest import DATA, SMALL, add, entry, open_sim, read_all

BY_HAND = replace(SMALL, tick_s=1000.0)


@pytest.fixture
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits the states in memory to four, so that all evictable ones are evicted."""
    monkeypatch.setattr(ledgers_module, "STATES_KEPT_MAX", 4)


async def busy(disk: SimDisk, index: SimIndexStore) -> LocalBookie:
    """A bookie with ledgers 1 and 2 in the index, entries of 1 that came again, and others."""
    bookie = await open_sim(disk, index, BY_HAND)
    for ledger_id in (1, 2):
        await add(bookie, ledger_id, range(3))
    await bookie.flush()
    await add(bookie, 1, range(3))
    for ledger_id in (10, 11, 12, 13):
        await add(bookie, ledger_id, range(3))
    return bookie


@pytest.mark.usefixtures("few_states")
async def test_a_fence_holds_while_it_is_flushed_and_after() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await busy(disk, index)
    assert (await bookie.ledger_end(2, fence=True)).fenced
    flushing = asyncio.ensure_future(bookie.flush())
    await asyncio.sleep(0)
    for ledger_id in range(20, 30):
        with pytest.raises(NoSuchLedger):
            await bookie.ledger_end(ledger_id)
    answer: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    bookie.add_entries(
        2, range(3, 4), [entry(2, 3)], last_add_confirmed=-1, on_added=answer.set_result
    )
    await flushing
    assert isinstance(await answer, LedgerFenced)
    await bookie.flush()
    await bookie.close()
    bookie = await open_sim(disk, index, BY_HAND)
    assert (await bookie.ledger_end(2)).fenced
    await bookie.close()


@pytest.mark.usefixtures("few_states")
async def test_a_delete_holds_while_it_is_flushed_and_after() -> None:
    disk = SimDisk()
    bookie = await busy(disk, SimIndexStore(disk, DATA / "index"))
    await bookie.delete_ledger(2)
    flushing = asyncio.ensure_future(bookie.flush())
    await asyncio.sleep(0)
    for ledger_id in range(20, 30):
        with pytest.raises(NoSuchLedger):
            await bookie.ledger_end(ledger_id)
    assert isinstance(await add(bookie, 2, range(3, 4)), NoSuchLedger)
    await flushing
    assert isinstance(await add(bookie, 2, range(3, 4)), NoSuchLedger)
    await bookie.close()


@pytest.mark.usefixtures("few_states")
async def test_state_of_rewritten_entries_is_kept_until_its_flush() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    await add(bookie, 1, range(3))
    await bookie.flush()
    answer: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    bookie.add_entries(1, range(1), [entry(1, 0)], last_add_confirmed=2, on_added=answer.set_result)
    assert await answer is None
    for ledger_id in range(20, 30):
        with pytest.raises(NoSuchLedger):
            await bookie.ledger_end(ledger_id)
    assert (await bookie.ledger_end(1)).last_add_confirmed == 2
    await bookie.close()


def test_new_ledgers_rarely_trigger_a_walk_over_busy_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledgers_module, "STATES_KEPT_MAX", 100)
    ledgers = Ledgers(Index(MemoryIndexStore()))
    walks = 0
    states = ledgers._states
    for ledger_id in range(2000):
        ledgers.get(ledger_id).added(0, 0, 10, -1)
        if ledgers._states is not states:
            walks += 1
            states = ledgers._states
    assert 0 < walks < 10
    assert len(states) == 2000


async def test_short_lived_ledgers_leave_no_state_in_memory() -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), BY_HAND)
    for ledger_id in range(1, 101):
        await add(bookie, ledger_id, range(3))
        if ledger_id % 10:
            await bookie.delete_ledger(ledger_id)
    await bookie.flush()
    assert sorted(bookie._ledgers._states) == list(range(10, 101, 10))
    for deleted in (1, 99):
        assert isinstance(await add(bookie, deleted, range(3, 4)), NoSuchLedger)
    await bookie.close()


async def test_a_ledger_deleted_during_a_flush_stays_deleted() -> None:
    """The flush writes the ledger as it was before; only the next one writes the deletion."""
    disk = SimDisk()
    ledgers = Ledgers(Index(SimIndexStore(disk, DATA / "index")))
    state = ledgers.get(1)
    state.added(0, 2, 30, -1)
    taken = ledgers.take([1])
    state.deleted_ms = 5
    ledgers.dirty[1] = state
    ledgers.flushed(taken)
    assert ledgers.get(1) is state
    ledgers.flushed(ledgers.take([]))
    assert ledgers.get(1) is not state


def test_failed_take_leaves_all_states_dirty() -> None:
    class Unreadable(MemoryIndexStore):
        def get(self, key: bytes) -> bytes | None:
            if key.startswith(b"l"):
                raise OSError(5, "Input/output error")
            return super().get(key)

    ledgers = Ledgers(Index(MemoryIndexStore()))
    ledgers.dirty[1] = ledgers.get(1)
    ledgers._index = Index(Unreadable())
    with pytest.raises(OSError, match="Input/output"):
        ledgers.take([2])
    assert list(ledgers.dirty) == [1]
    assert not ledgers.flushing
    assert list(ledgers.take([1])) == [1]
    assert ledgers.flushing


@pytest.mark.parametrize("state", ["fenced", "deleted", "copy dropped"])
async def test_failed_index_read_neither_lifts_a_fence_nor_undoes_a_deletion(
    state: str,
) -> None:
    class FailsOnce(SimIndexStore):
        fails = False

        def get(self, key: bytes) -> bytes | None:
            if self.fails and key.startswith(b"l"):
                self.fails = False
                raise OSError(5, "Input/output error")
            return super().get(key)

    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    await add(bookie, 1, range(3))
    if state == "fenced":
        assert (await bookie.ledger_end(1, fence=True)).fenced
    elif state == "deleted":
        await bookie.delete_ledger(1)
    else:
        assert await bookie.drop_copies([1]) == [1]
    await bookie.flush()
    await bookie.close()
    index = FailsOnce(disk, DATA / "index", index.synced)
    bookie = await open_sim(disk, index, BY_HAND)
    index.fails = True
    assert type(await add(bookie, 1, range(3, 4))) is BookieError
    refused = NoSuchLedger if state == "deleted" else LedgerFenced
    for _ in range(2):
        assert isinstance(await add(bookie, 1, range(3, 4)), refused)
    await bookie.close()


async def test_a_repeated_delete_waits_until_the_first_is_durable() -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), BY_HAND)
    await add(bookie, 1, range(3))
    bookie._journal.hold()
    first = asyncio.ensure_future(bookie.delete_ledger(1))
    second = asyncio.ensure_future(bookie.delete_ledger(1))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    # Until then it is readable and refuses adds.
    assert await read_all(bookie, 1) == [0, 1, 2]
    refused = asyncio.ensure_future(add(bookie, 1, range(3, 4)))
    with pytest.raises(NoSuchLedger):
        await bookie.ledger_end(1, fence=True)
    first.cancel()
    bookie._journal.release()
    await second
    assert isinstance(await refused, NoSuchLedger)
    with pytest.raises(NoSuchLedger):
        await bookie.ledger_end(1)
    await bookie.delete_ledger(1)
    await bookie.close()


async def test_a_delete_that_fails_leaves_the_ledger_on_disk_and_in_memory() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    await add(bookie, 1, range(3))
    bookie._journal.hold()
    deleting = asyncio.ensure_future(bookie.delete_ledger(1))
    await asyncio.sleep(0)
    # A flush between the request and its failure must not write the delete into the index.
    await bookie.flush()
    broken = OSError(5, "Input/output error")
    disk.fault = lambda _, path: broken if path.suffix == ".journal" else None
    bookie._journal.release()
    with pytest.raises(BookieError, match="journal failed"):
        await deleting
    disk.fault = None
    assert await read_all(bookie, 1) == [0, 1, 2]
    await bookie.close()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced), BY_HAND)
    assert await read_all(bookie, 1) == [0, 1, 2]
    await bookie.close()


@pytest.mark.parametrize(("ledger_id", "confirmed"), [(-1, -1), (ID_END, -1), (1, -2), (1, ID_END)])
async def test_invalid_ledger_ids_are_not_journalled(ledger_id: int, confirmed: int) -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), BY_HAND)
    await add(bookie, 1, range(3))
    with pytest.raises(ValueError, match=r"ledger id|last add confirmed"):
        bookie.add_entries(
            ledger_id, range(1), [b"a"], last_add_confirmed=confirmed, on_added=lambda _: None
        )
    with pytest.raises(ValueError, match="last add confirmed"):
        await bookie.note_confirmed([(1, 2), (ledger_id, confirmed)])
    assert (await bookie.ledger_end(1)).last_add_confirmed == -1
    assert bookie.pending_bytes == 0
    await bookie.close()


@pytest.mark.parametrize("ids", [(ID_END,), range(ID_END - 1, ID_END + 1), (0, ID_END)])
async def test_invalid_entry_ids_are_not_journalled(ids: Sequence[int]) -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), BY_HAND)
    for subject in (bookie, MemoryBookie()):
        with pytest.raises(ValueError, match="ids"):
            subject.add_entries(
                1, ids, [b"a"] * len(ids), last_add_confirmed=-1, on_added=lambda _: None
            )
    assert bookie.pending_bytes == 0
    await bookie.flush()
    await bookie.close()
