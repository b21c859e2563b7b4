"""Changes of an ensemble: one at a time, and none that nothing asks for."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.ledger.appending import appended, later, quorum
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import write

from magnetar.core.errors import PersistenceError
from magnetar.ledger.ensemble_change import SWAPS_MAX
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import Operation, Put


class Swaps:
    """Counts the writes of records, each of which takes `delay_s`."""

    def __init__(self, cluster: Cluster, delay_s: float) -> None:
        self.count = self.running = self.at_once = 0
        transact = cluster.store.transact

        async def slowly(operations: Sequence[Operation]) -> int:
            self.count += 1
            self.running += 1
            self.at_once = max(self.at_once, self.running)
            try:
                await asyncio.sleep(delay_s)
                return await transact(operations)
            finally:
                self.running -= 1

        cluster.store.transact = slowly  # type: ignore[method-assign]


def test_bookies_that_fail_during_a_change_are_replaced_after_it() -> None:
    async def main() -> None:
        cluster = Cluster(7, quorum(3, 3, 2, metadata_timeout_s=20.0))
        writer, links = await cluster.writer()
        await appended(writer, 2)
        swaps = Swaps(cluster, 1.0)
        first, second, third = writer.bookies
        links.leave(first)
        await asyncio.sleep(0.5)
        assert swaps.running == 1
        links.leave(second)
        await asyncio.sleep(0.1)
        links.leave(third)
        await asyncio.sleep(10)
        assert swaps.at_once == 1
        assert swaps.count == 2
        record = await cluster.record(writer.ledger_id)
        assert record.ensembles[-1].bookies == tuple(writer.bookies)
        assert {first, second, third}.isdisjoint(writer.bookies)
        assert len(writer.bookies) == 3
        assert await write(writer, b"x") == 2

    virtual(main())


def test_changes_that_nothing_waits_for_are_few_at_a_time_and_the_others_are_not_held_up() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2, changes_at_once_max=2, metadata_timeout_s=100.0))
        client, links = cluster.client()
        writers = [await client.create({}) for _ in range(12)]
        for writer in writers:
            await write(writer, b"a")
        lost = writers[0].bookies[0]
        idle = [writer for writer in writers[1:] if lost in writer.bookies]
        assert len(idle) >= 4
        swaps = Swaps(cluster, 1.0)
        links.leave(lost)
        await asyncio.sleep(0.1)
        assert swaps.running == 2
        await asyncio.sleep(60)
        assert swaps.at_once == 2
        for writer in writers:
            assert lost not in writer.bookies
            assert (await cluster.record(writer.ledger_id)).ensembles[-1].bookies == writer.bookies

    virtual(main())


def test_a_change_that_an_add_waits_for_does_not_wait_for_those_of_idle_ledgers() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2, changes_at_once_max=1, metadata_timeout_s=100.0))
        client, links = cluster.client()
        writers = [await client.create({}) for _ in range(12)]
        for writer in writers:
            await write(writer, b"a")
        lost = writers[0].bookies[0]
        concerned = [writer for writer in writers if lost in writer.bookies]
        swaps = Swaps(cluster, 1.0)
        adding = later(concerned[-1], b"b")
        await asyncio.sleep(0)
        links.leave(lost)
        await asyncio.sleep(2.5)
        assert adding.done()
        assert await adding == 1
        assert swaps.at_once == 2
        await asyncio.sleep(60)

    virtual(main())


def test_a_record_that_others_change_all_the_time_fails_the_writer() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2, metadata_timeout_s=100.0))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        transact, count = cluster.store.transact, 0

        async def contended(operations: Sequence[Operation]) -> int:
            nonlocal count
            count += 1
            record = await cluster.record(writer.ledger_id)
            key = ledger_key(writer.ledger_id)
            await MemoryStore.transact(cluster.store, [Put(key, encode(record))])
            return await transact(operations)

        cluster.store.transact = contended  # type: ignore[method-assign]
        links.leave(writer.bookies[0])
        await asyncio.sleep(1)
        assert isinstance(writer.error, PersistenceError)
        assert f"changed {SWAPS_MAX} times" in str(writer.error)
        assert count == SWAPS_MAX

    virtual(main())


def test_two_bookies_lost_leave_too_few_and_a_third_saves_the_ledger() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 3))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        (spare,) = set(links.links) - set(writer.bookies)
        links.leave(writer.bookies[0])
        assert await write(writer, b"b") == 1
        assert spare in writer.bookies
        links.leave(spare)
        with pytest.raises(NotEnoughBookies, match="3 bookies are needed"):
            await write(writer, b"c")
        assert (await writer.close()).last_entry == 1

    virtual(main())


def test_a_bookie_that_is_registered_and_cannot_be_reached_is_not_taken() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        first, second = sorted(set(links.links) - set(writer.bookies))
        get = links.get
        links.get = lambda one: None if one == first else get(one)  # type: ignore[assignment,method-assign]
        for _ in range(2):
            links.leave(writer.bookies[0])
            links.come(cluster.disks[first.bookie_id])
            await asyncio.sleep(0.2)
            assert first not in writer.bookies
            if second in writer.bookies:
                break
        assert second in writer.bookies

    virtual(main())


def test_a_closing_writer_does_not_leave_its_change_behind() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2, metadata_timeout_s=100.0))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        before = tuple(writer.bookies)
        swaps = Swaps(cluster, 1.0)
        links.leave(before[0])
        await asyncio.sleep(0.1)
        assert not writer.at_rest
        begun = asyncio.get_running_loop().time()
        closed = await writer.close()
        assert asyncio.get_running_loop().time() - begun < 5  # no longer than the change takes
        assert closed.last_entry == 0
        assert swaps.at_once == 1
        assert await cluster.record(writer.ledger_id) == closed
        await asyncio.sleep(60)
        assert await cluster.record(writer.ledger_id) == closed

    virtual(main())
