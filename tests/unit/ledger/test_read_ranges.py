"""Ranges of reads: requests to bookies, and answers that have no more entries than requested."""

import asyncio
import gc
from typing import Any

import pytest
from tests.unit.ledger.cluster import Cluster, Links, virtual
from tests.unit.ledger.stage import write
from tests.unit.ledger.test_reading import quorum

from magnetar.bookie.api import BookieError, BookieUnavailable, NoSuchEntry
from magnetar.ledger.copies_reader import STRIPES_AT_ONCE_MAX
from magnetar.ledger.reader import LedgerReader

COUNT = 40
SIZE = 10
DATA = [b"%010d" % number for number in range(COUNT)]
ALL_BYTES = 1 << 20
SHAPES = [(2, 2, 2), (3, 2, 2), (2, 1, 1), (1, 1, 1)]


async def written(shape: tuple[int, int, int], **changes: Any) -> tuple[LedgerReader, Links]:
    """A closed ledger of DATA in stripes of two, whose reader knows how large entries are."""
    cluster = Cluster(3, quorum(*shape, **changes))
    writer, _ = await cluster.writer()
    await write(writer, *DATA)
    await writer.close()
    client, links = cluster.client()
    reader = await client.open(writer.ledger_id, recover=False)
    for _ in range(40):
        await reader.read(0, 0, bytes_max=1)
    return reader, links


def watched(links: Links) -> list[tuple[int, int]]:
    """Records the ranges of requests to bookies from now on."""
    asked: list[tuple[int, int]] = []
    for link in links.links.values():

        async def read(ledger_id, first, last, *, bytes_max, fence=False, read=link.read_entries):
            assert not fence
            asked.append((first, last))
            return await read(ledger_id, first, last, bytes_max=bytes_max)

        link.read_entries = read  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("shape", SHAPES)
def test_a_read_returns_nothing_outside_its_range(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        reader, links = await written(shape)
        asked = watched(links)
        at_once = 2 * STRIPES_AT_ONCE_MAX if shape[0] > shape[1] else COUNT
        for first, last in ((0, 0), (0, 1), (1, 2), (3, 8), (0, 15), (1, 39), (5, 99), (39, 39)):
            asked.clear()
            found = await reader.read(first, last, bytes_max=ALL_BYTES)
            count = min(last, COUNT - 1) - first + 1
            assert [one.entry_id for one in found] == list(range(first, first + len(found)))
            assert [one.data for one in found] == DATA[first : first + len(found)]
            assert min(count, at_once - first % 2) == len(found)
            assert all(begin <= end <= last for begin, end in asked)
            assert len({begin for begin, _ in asked}) <= STRIPES_AT_ONCE_MAX

    virtual(main())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_read_returns_as_many_as_fit_and_at_least_one(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        reader, links = await written(shape)
        for first in (0, 1):
            for count in (1, 2, 3, 5, 8):
                exact = await reader.read(first, COUNT - 1, bytes_max=count * SIZE)
                assert len(exact) == count
                less = await reader.read(first, COUNT - 1, bytes_max=count * SIZE - 1)
                assert len(less) == max(count - 1, 1)
        asked = watched(links)
        await reader.read(0, COUNT - 1, bytes_max=3 * SIZE)
        assert max(end for _, end in asked) <= 5 or shape[0] == shape[1]

    virtual(main())


@pytest.mark.parametrize("outside", [-1, COUNT, COUNT + 5])
def test_outside_the_ledger_there_is_no_entry(outside: int) -> None:
    async def main() -> None:
        reader, links = await written((2, 2, 2))
        asked = watched(links)
        with pytest.raises(NoSuchEntry, match=r"outside 0\.\.39"):
            await reader.read(outside, outside + 3, bytes_max=1)
        assert asked == []

    virtual(main())


def test_a_stripe_that_cannot_be_read_ends_what_is_returned() -> None:
    async def main() -> None:
        reader, links = await written((2, 1, 1))
        second = reader.metadata.ensembles[0].bookies[1]
        links.links.pop(second)
        assert [one.data for one in await reader.read(0, 9, bytes_max=ALL_BYTES)] == DATA[:2]
        with pytest.raises(BookieUnavailable, match=second.bookie_id):
            await reader.read(2, 9, bytes_max=ALL_BYTES)

    virtual(main())


def test_a_stripe_that_is_returned_in_part_ends_what_is_returned() -> None:
    async def main() -> None:
        reader, links = await written((2, 1, 1))
        first = links.links[reader.metadata.ensembles[0].bookies[0]]
        read = first.read_entries

        async def shorter(ledger_id: int, first: int, last: int, **more: Any) -> Any:
            return (await read(ledger_id, first, last, **more))[:1]

        first.read_entries = shorter  # type: ignore[method-assign]
        assert [one.data for one in await reader.read(0, 9, bytes_max=ALL_BYTES)] == DATA[:1]
        assert [one.data for one in await reader.read(2, 9, bytes_max=ALL_BYTES)] == DATA[2:5]

    virtual(main())


def test_where_nothing_has_moved_the_first_failure_is_raised() -> None:
    async def main() -> None:
        for store_away in (False, True):
            reader, links = await written((2, 2, 2))
            links.links.clear()
            if store_away:
                reader._context.store.reads_fail = True  # type: ignore[attr-defined]
            with pytest.raises(BookieUnavailable, match="not here"):
                await reader.read(0, 0, bytes_max=1)

    virtual(main())


def test_a_writer_whose_record_cannot_be_read_raises_what_its_bookies_said() -> None:
    async def main() -> None:
        for deleted in (False, True):
            cluster = Cluster(2, quorum(2, 2, 2, metadata_timeout_s=1.0))
            client, links = cluster.client()
            writer = await client.create({})
            await write(writer, b"a")
            if deleted:
                await cluster.client()[0].delete(writer.ledger_id)
            else:
                cluster.store.reads_fail = True
            links.links.clear()
            with pytest.raises(BookieUnavailable, match="not here"):
                await writer.read(0, 0, bytes_max=1)

    virtual(main())


def test_copies_that_fail_after_another_has_answered_fail_for_no_caller() -> None:
    async def main() -> None:
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unhandled.append(what))
        reader, links = await written((2, 2, 2), speculative_read_delay_s=0.1)
        (ensemble,) = reader.metadata.ensembles
        copies = [links.links[one] for one in ensemble.bookies]
        asked = [0, 0]

        def failing(number: int, delay_s: float) -> Any:
            read = copies[number].read_entries

            async def later(ledger_id: int, first: int, last: int, **more: Any) -> Any:
                asked[number] += 1
                try:
                    await asyncio.sleep(delay_s)
                except asyncio.CancelledError:
                    raise BookieError("the connection was closed") from None
                return await read(ledger_id, first, last, **more)

            return later

        for number, delay_s in enumerate((0.5, 0.5)):
            copies[number].read_entries = failing(number, delay_s)  # type: ignore[method-assign]
        await reader.read(0, 0, bytes_max=1)
        await asyncio.sleep(1)
        gc.collect()
        await asyncio.sleep(0)
        assert asked == [1, 1]
        assert unhandled == []

    virtual(main())


def test_a_copy_that_fails_has_the_next_one_asked_at_once_and_is_asked_last_then() -> None:
    async def main() -> None:
        reader, links = await written((3, 3, 2), speculative_read_delay_s=5.0)
        (ensemble,) = reader.metadata.ensembles
        turn = reader.ledger_id % 3
        failing = links.links[ensemble.bookies[turn]]
        asked = 0

        async def fails(*_: object, **__: object) -> Any:
            nonlocal asked
            asked += 1
            raise BookieUnavailable("gone")

        failing.read_entries = fails  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(3):
            assert len(await reader.read(0, 4, bytes_max=ALL_BYTES)) == 5
        assert loop.time() - begun < 0.1
        assert asked == 1
        assert [identity for identity, _ in links.failures] == [failing.identity]

    virtual(main())


def test_a_copy_that_is_certainly_not_there_does_not_blame_its_bookie() -> None:
    async def main() -> None:
        reader, links = await written((2, 2, 2))
        (ensemble,) = reader.metadata.ensembles
        disk = links.links[ensemble.bookies[reader.ledger_id % 2]].disk
        disk.ledger(reader.ledger_id).entries.clear()
        assert len(await reader.read(0, 4, bytes_max=ALL_BYTES)) == 5
        await disk.delete_ledger(reader.ledger_id)
        assert len(await reader.read(0, 4, bytes_max=ALL_BYTES)) == 5
        assert links.failures == []

    virtual(main())


def test_entries_of_one_ensemble_are_read_at_a_time_where_one_bookie_has_them_all() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, *DATA[:5])
        links.leave(writer.bookies[0])
        await write(writer, *DATA[5:])
        await writer.close()
        client, links = cluster.client()
        reader = await client.open(writer.ledger_id, recover=False)
        asked = watched(links)
        assert [one.data for one in await reader.read(1, 9, bytes_max=ALL_BYTES)] == DATA[1:5]
        assert [one.data for one in await reader.read(5, 9, bytes_max=ALL_BYTES)] == DATA[5:10]
        assert asked == [(1, 4), (5, 9)]

    virtual(main())


def test_a_bug_is_no_bookies_failure() -> None:
    async def main() -> None:
        reader, links = await written((2, 2, 2))

        async def bug(*_: object, **__: object) -> Any:
            raise RuntimeError("a bug")

        for link in links.links.values():
            link.read_entries = bug  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="a bug"):
            await reader.read(0, 0, bytes_max=1)
        assert links.failures == []

    virtual(main())


def test_a_slow_copy_is_waited_for_where_the_others_have_failed() -> None:
    async def main() -> None:
        reader, links = await written((2, 2, 2), speculative_read_delay_s=0.1)
        (ensemble,) = reader.metadata.ensembles
        turn = reader.ledger_id % 2
        slow, failing = (links.links[ensemble.bookies[n % 2]] for n in (turn, turn + 1))
        slow.slow_s = 0.4

        async def fails(*_: object, **__: object) -> Any:
            raise BookieUnavailable("gone")

        failing.read_entries = fails  # type: ignore[method-assign]
        (entry, *_) = await reader.read(0, 0, bytes_max=1)
        assert entry.data == DATA[0]

    virtual(main())
