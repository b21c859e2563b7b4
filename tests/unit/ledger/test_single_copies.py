"""Ledgers on one bookie: how they are ended, closed and read."""

import asyncio
from collections.abc import Callable

import pytest
from tests.unit.ledger.appending import quorum
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import Stage, turns, write

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    LedgerFenced,
    NoSuchEntry,
    StoredEntry,
)
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.ledger.errors import LedgerClosed, ReadTimeout, RecoveryFailed
from magnetar.ledger.metadata import LedgerState
from magnetar.ledger.writer import DRAIN_TIMEOUT_S

SINGLE = (1, 1, 1)


async def test_a_bookie_that_dropped_its_copy_does_not_end_the_ledger_as_empty() -> None:
    """It says that it has no entry at all: newer metadata may have its copy elsewhere."""
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"a")
    assert await stage.bookie.drop_copies([writer.ledger_id]) == [writer.ledger_id]
    with pytest.raises(RecoveryFailed, match="entry 0 cannot be known"):
        await stage.client().open(writer.ledger_id, recover=True)


async def test_what_the_only_copy_does_not_know_of_is_not_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a ledger on one bookie costs one request behind its last entry: none."""
    stage = Stage()
    writer = await stage.client().create({})
    for data in (b"a", b"b"):
        await write(writer, data)
    read, asked = stage.bookie.read_entries, list[int]()

    async def counted(
        ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        asked.append(first)
        return await read(ledger_id, first, last, bytes_max=bytes_max, fence=fence)

    monkeypatch.setattr(stage.bookie, "read_entries", counted)
    reader = await stage.client().open(writer.ledger_id, recover=True)
    assert (reader.last_entry, reader.length_bytes) == (1, 2)
    assert asked == [1]  # entry 0 is known to be confirmed


def test_closing_ends_when_the_last_add_is_answered() -> None:
    async def main() -> None:
        for shape in (SINGLE, (2, 2, 2)):
            cluster = Cluster(2, quorum(*shape, add_timeout_s=1000.0))
            writer, links = await cluster.writer()
            for link in links.links.values():
                link.hold()
            adding = asyncio.ensure_future(write(writer, b"a"))
            await asyncio.sleep(0.1)
            loop = asyncio.get_running_loop()
            closing = asyncio.ensure_future(writer.close())
            await asyncio.sleep(1)
            assert not closing.done()
            begun = loop.time()
            for link in links.links.values():
                link.release()
            assert (await closing).last_entry == await adding == 0
            assert loop.time() - begun < 1
            assert isinstance(writer.error, LedgerClosed)

    virtual(main())


@pytest.mark.parametrize("shape", [SINGLE, (2, 2, 2)])
def test_closing_does_not_wait_for_ever(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(*shape, add_timeout_s=1000.0))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        for link in links.links.values():
            link.hold()
        adding = asyncio.ensure_future(write(writer, b"b"))
        await asyncio.sleep(0)
        begun = asyncio.get_running_loop().time()
        assert (await writer.close()).last_entry == 0
        assert asyncio.get_running_loop().time() - begun == pytest.approx(DRAIN_TIMEOUT_S, abs=1)
        with pytest.raises(PersistenceError, match="not confirmed within 30 s"):
            await adding

    virtual(main())


async def test_a_ledger_is_closed_once() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"a")
    closed = await writer.close()
    revision = await stage.store.revision()
    stage.clock.advance(1000)
    assert await writer.close() == closed
    assert await stage.store.revision() == revision


def test_closing_twice_at_once_is_closing_once() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2, add_timeout_s=1000.0))
        writer, links = await cluster.writer()
        for link in links.links.values():
            link.hold()
        adding = asyncio.ensure_future(write(writer, b"a"))
        await asyncio.sleep(0.1)
        closing = [asyncio.ensure_future(writer.close()) for _ in range(2)]
        await asyncio.sleep(0.1)
        for link in links.links.values():
            link.release()
        first, second = await asyncio.gather(*closing)
        assert first == second == await cluster.record(writer.ledger_id)
        assert await adding == first.last_entry == 0

    virtual(main())


def test_the_only_bookie_that_does_not_answer_a_read_is_named_in_time() -> None:
    async def main() -> None:
        cluster = Cluster(1, quorum(*SINGLE, read_timeout_s=2.0))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        await writer.close()
        reader = await cluster.client()[0].open(writer.ledger_id, recover=False)
        cluster.sets[-1].links[BookieIdentity("b0", "0")].hold()
        begun = asyncio.get_running_loop().time()
        with pytest.raises(ReadTimeout, match="bookie b0 did not return entry 1:0 within 2 s"):
            await reader.read(0, 0, bytes_max=1)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(2.0)
        del cluster.sets[-1].links[BookieIdentity("b0", "0")]
        with pytest.raises(BookieUnavailable, match="not here"):
            await reader.read(0, 0, bytes_max=1)
        assert links

    virtual(main())


def test_a_writer_ends_with_its_only_bookie_and_with_no_other() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(*SINGLE))
        writer, links = await cluster.writer()
        (mine,) = writer.bookies
        (other,) = set(links.links) - {mine}
        links.leave(other)
        assert await write(writer, b"a") == 0
        writer.grow()
        assert not writer.degraded
        links.leave(mine)
        with pytest.raises(BookieUnavailable, match=f"bookie {mine.bookie_id} has left"):
            await write(writer, b"b")
        assert (await writer.close()).last_entry == 0

    virtual(main())


@pytest.mark.parametrize(
    ("error", "blamed"),
    [(BookieUnavailable("gone"), True), (BookieError("?"), True), (LedgerFenced("f"), False)],
)
async def test_a_bookie_is_blamed_for_its_own_failures_only(
    error: BookieError, blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    client = stage.client()
    failures: list[BookieError] = []
    monkeypatch.setattr(
        client._context.bookies, "failed", lambda _identity, error: failures.append(error)
    )
    writer = await client.create({})

    def add_entries(
        *_: object, on_added: Callable[[BookieError | None], None], **__: object
    ) -> None:
        asyncio.get_running_loop().call_soon(on_added, error)

    monkeypatch.setattr(stage.bookie, "add_entries", add_entries)
    with pytest.raises(type(error)):
        await write(writer, b"a")
    assert failures == ([error] if blamed else [])


async def test_what_a_failed_writer_still_hears_changes_nothing() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"a")
    stage.bookie.hold = True
    seen: list[tuple[int, MagnetarError | None]] = []
    writer.append([b"b"], lambda first, error: seen.append((first, error)))
    await turns()
    first, second = BookieError("its owner gives up"), BookieError("later")
    writer.fail(first)
    writer.fail(second)
    stage.bookie.release()
    await turns()
    assert seen == [(-1, first)]
    assert (writer.error, writer.last_add_confirmed, writer.length_bytes) == (first, 0, 1)
    assert writer.left_open
    assert not writer.at_rest
    closed = await writer.close()
    assert (closed.last_entry, closed.length_bytes) == (0, 1)
    assert not writer.left_open


async def test_a_failed_writer_refuses_on_the_loops_next_turn() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    error = BookieError("its owner gives up")
    writer.fail(error)
    seen: list[tuple[int, MagnetarError | None]] = []
    assert writer.append([b"ab", b"c"], lambda first, error: seen.append((first, error))) == 3
    assert seen == []
    await turns()
    assert seen == [(-1, error)]
    assert await stage.bookie.list_ledgers() == []


async def test_a_writer_reads_what_is_confirmed_and_nothing_else() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    for outside in (-1, 0):
        with pytest.raises(NoSuchEntry, match=r"outside 0\.\.-1"):
            await writer.read(outside, 5, bytes_max=100)
    await write(writer, b"a", b"b")
    stage.bookie.hold = True
    writer.append([b"c"], lambda _first, _error: None)
    await turns()
    assert [entry.data for entry in await writer.read(0, 99, bytes_max=100)] == [b"a", b"b"]
    assert [entry.data for entry in await writer.read(1, 1, bytes_max=100)] == [b"b"]
    assert [entry.data for entry in await writer.read(0, 0, bytes_max=100)] == [b"a"]
    for outside in (-1, 2):
        with pytest.raises(NoSuchEntry):
            await writer.read(outside, 5, bytes_max=100)
    stage.bookie.release()
    assert (await writer.close()).state is LedgerState.CLOSED
    assert [entry.data for entry in await writer.read(2, 2, bytes_max=100)] == [b"c"]


async def test_at_rest_is_a_writer_of_which_everything_is_confirmed() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    assert writer.at_rest
    stage.bookie.hold = True
    writer.append([b"a"], lambda _first, _error: None)
    await turns()
    assert not writer.at_rest
    stage.bookie.release()
    assert writer.at_rest
    assert (writer.next_entry, writer.last_add_confirmed) == (1, 0)
    assert not writer.left_open
    await writer.close()
    assert not writer.at_rest
    assert not writer.left_open
