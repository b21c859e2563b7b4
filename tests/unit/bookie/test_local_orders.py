"""Requests to a bookie in unusual orders, the memory that they free, and what it reports."""

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie import local as local_module
from magnetar.bookie.api import BookieReadOnly, LedgerFenced, NoSuchLedger
from magnetar.bookie.local import LocalBookie

from .conftest import SMALL, Opener, add, open_sim, read_all
from .test_local_promises import BY_HAND, Rig, answer

NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    await made.open()
    yield made
    made.disk.fault = None
    await made.bookie.close()


async def test_a_deletion_that_follows_the_first_add_deletes_its_ledger(rig: Rig) -> None:
    rig.bookie._journal.hold()
    adding = asyncio.ensure_future(add(rig.bookie, 1, range(3)))
    await asyncio.sleep(0)
    deleting = asyncio.ensure_future(rig.bookie.delete_ledger(1))
    await asyncio.sleep(0)
    rig.bookie._journal.release()
    assert await adding is None
    await deleting
    for clean in (None, False, True):
        if clean is not None:
            await rig.again(clean=clean)
        assert await rig.bookie.list_ledgers() == []
        with pytest.raises(NoSuchLedger):
            await rig.bookie.ledger_end(1)


async def test_a_deleted_ledger_frees_its_memory_at_once(rig: Rig) -> None:
    for ledger_id in (1, 2):
        await add(rig.bookie, ledger_id, range(20))
    await rig.bookie.flush()
    for ledger_id in (1, 2):
        assert await read_all(rig.bookie, ledger_id) == list(range(20))
        await add(rig.bookie, ledger_id, range(20, 30))
    before = rig.bookie.stats()
    await rig.bookie.delete_ledger(1)
    after = rig.bookie.stats()
    assert (after.write_cache_entries, after.write_cache_bytes) == (
        10,
        before.write_cache_bytes / 2,
    )
    assert after.read_cache_bytes == before.read_cache_bytes / 2 > 0
    assert await read_all(rig.bookie, 2) == list(range(30))


async def test_entries_of_a_flush_that_fails_count_as_cached(rig: Rig) -> None:
    await add(rig.bookie, 1, range(20))
    rig.disk.fault = lambda _, path: NO_ROOM if path.suffix == ".log" else None
    with pytest.raises(OSError, match="No space"):
        await rig.bookie.flush()
    await rig.bookie.ledger_end(1)
    stats = rig.bookie.stats()
    assert stats.write_cache_entries == 20
    assert stats.write_cache_bytes > 20 * 100


async def test_the_writer_of_a_fenced_ledger_learns_that_also_from_a_full_disk(rig: Rig) -> None:
    """On a read-only bookie a writer replaces the bookie; by a fence it must stop."""
    await rig.bookie.ledger_end(1, fence=True)
    await add(rig.bookie, 3, range(3))
    await rig.bookie.delete_ledger(3)
    rig.bookie._guard.mark_full("test")
    assert isinstance(await answer(rig.bookie, 1, 0), LedgerFenced)
    assert isinstance(await answer(rig.bookie, 3, 0), NoSuchLedger)
    assert isinstance(await answer(rig.bookie, 2, 0), BookieReadOnly)
    assert isinstance(await answer(rig.bookie, 1, 0, recovery=True), BookieReadOnly)


async def test_refused_adds_are_no_commits(rig: Rig) -> None:
    await add(rig.bookie, 1, range(3))
    commits = rig.bookie.stats().journal_commits
    rig.bookie._journal.release(BookieReadOnly("no room in the write cache"))
    assert isinstance(await answer(rig.bookie, 1, 3), BookieReadOnly)
    assert rig.bookie.stats().journal_commits == commits == 1
    assert rig.bookie.pending_bytes == 0
    rig.bookie._journal.release()
    assert await answer(rig.bookie, 1, 3) is None
    assert rig.bookie.stats().journal_commits == 2


async def test_a_fence_that_completes_after_the_drop_restores_no_copy() -> None:
    rig = Rig()
    rig.bookie = await open_sim(rig.disk, rig.index, replace(BY_HAND, journal_commit_bytes_max=1))
    await add(rig.bookie, 1, range(3))
    await rig.bookie.flush()
    journal, stage = rig.bookie._journal, rig.bookie._stage
    committed = stage.committed
    journal.hold()
    dropping = asyncio.ensure_future(rig.bookie.drop_copies([1]))
    await asyncio.sleep(0)
    fencing = asyncio.ensure_future(rig.bookie.ledger_end(1, fence=True))
    await asyncio.sleep(0)
    assert journal.pending_count == 2

    def hold_after_the_first(*position: object) -> None:
        committed(*position)  # type: ignore[arg-type]
        journal.hold()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "committed", hold_after_the_first)
        journal.release()
        assert await dropping == [1]
        assert not fencing.done()
    journal.release()
    assert (await fencing).fenced
    assert await rig.bookie.list_emptied() == [1]
    assert await rig.bookie.drop_copies([1]) == [], "there is nothing to drop any more"
    await rig.bookie.close()


async def test_a_bookie_opens_after_an_attempt_without_room_for_its_journal(
    open_bookie: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt before it releases the lock and the index."""
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    await bookie.close()

    def no_room(*_: object) -> object:
        raise NO_ROOM

    with monkeypatch.context() as failing:
        failing.setattr(local_module, "_journal_writer", no_room)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                await open_bookie()
    bookie = await open_bookie()
    assert await read_all(bookie, 1) == [0, 1, 2]


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_periodic_work_ends_with_the_bookie(tmp_path: Path, end: str) -> None:
    before = asyncio.all_tasks()
    bookie = await LocalBookie.open(tmp_path, "b1", settings=SMALL)
    await add(bookie, 1, range(3))
    (housekeeping,) = asyncio.all_tasks() - before
    await (bookie.close() if end == "close" else bookie.abort())
    assert housekeeping.done()


async def test_a_refused_add_keeps_its_reason_if_the_journal_fails_before_it(rig: Rig) -> None:
    await rig.bookie.ledger_end(1, fence=True)
    rig.bookie._journal.hold()
    answers = [asyncio.ensure_future(answer(rig.bookie, ledger_id, 0)) for ledger_id in (2, 1)]
    await asyncio.sleep(0)
    broken = OSError(errno.EIO, "Input/output error")
    rig.disk.fault = lambda _, path: broken if path.suffix == ".journal" else None
    rig.bookie._journal.release()
    first, second = await asyncio.gather(*answers)
    assert isinstance(first, BookieReadOnly)
    assert isinstance(second, LedgerFenced)


async def test_an_aborted_bookie_commits_nothing_more(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    bookie._journal.hold()
    answers: list[object] = []
    bookie.add_entries(2, range(1), [b"x"], last_add_confirmed=-1, on_added=answers.append)
    await bookie.abort()
    for _ in range(3):
        await asyncio.sleep(0)
    assert answers == []
    bookie = await open_bookie()
    assert await bookie.list_ledgers() == [1]
