"""The writer's quorums and bounds: acks that count, and bookies that are replaced."""

import asyncio
from itertools import pairwise

import pytest
from tests.unit.ledger.appending import appended, later, link, quorum
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import write

from magnetar.bookie.api import BookieError, BookieIdentity, LedgerFenced
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.ledger.replicated_writer import TICKS


def test_a_bookie_that_has_left_does_not_count_even_if_it_acked_before() -> None:
    """The record may name the new ensemble at any moment; a recovery would not ask that bookie."""

    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2, add_timeout_s=100.0))
        writer, links = await cluster.writer()
        gone, second, third = writer.bookies
        links.links[second].hold()
        links.links[third].hold()
        adding = later(writer, b"a")
        await asyncio.sleep(0.1)
        assert cluster.has(writer.ledger_id, 0) == {gone.bookie_id}
        cluster.store.trouble, cluster.store.outcome = 1.0, 0
        links.leave(gone)
        await asyncio.sleep(0.1)
        links.links[second].release()
        await asyncio.sleep(0.5)
        assert len(cluster.has(writer.ledger_id, 0)) == 3
        assert not adding.done()
        links.links[third].release()
        assert await adding == 0

    virtual(main())


def test_a_bookie_that_joins_gets_the_entries_of_its_ensemble_and_no_others() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2, add_timeout_s=100.0))
        writer, links = await cluster.writer()
        slow, leaving = writer.bookies[1], writer.bookies[0]
        links.links[slow].hold()
        await appended(writer, 2)  # confirmed; the slow one lacks them
        links.leave(leaving)
        assert await write(writer, b"x") == 2
        links.links[slow].release()
        await asyncio.sleep(1)
        record = await cluster.record(writer.ledger_id)
        assert [one.first_entry for one in record.ensembles] == [0, 2]
        for entry_id, ensemble in ((0, 0), (1, 0), (2, 1)):
            expected = {one.bookie_id for one in record.ensembles[ensemble].bookies}
            assert cluster.has(writer.ledger_id, entry_id) == expected

    virtual(main())


def test_groups_on_other_bookies_wait_for_those_before_them() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(4, 2, 2, add_timeout_s=100.0))
        writer, links = await cluster.writer()
        seen: list[int] = []
        link(links, writer, 0).hold()
        for _ in range(3):  # on slots 0 1, 1 2, 2 3
            writer.append([b"a", b"b"], lambda first, _error: seen.append(first))
        await asyncio.sleep(0.5)
        assert seen == []
        assert (writer.last_add_confirmed, writer.length_bytes) == (-1, 0)
        assert not writer.at_rest
        link(links, writer, 0).release()
        await asyncio.sleep(0.5)
        assert seen == [0, 2, 4]
        assert (writer.last_add_confirmed, writer.length_bytes) == (5, 6)
        assert writer.at_rest

    virtual(main())


def test_bytes_that_are_confirmed_at_once_and_too_many_cost_one_bookie_only() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2, late_bytes_max=1000, add_timeout_s=1000.0))
        client, links = cluster.client()
        writer = await client.create({})
        slow, other = writer.bookies[0], writer.bookies[1]
        links.links[slow].hold()
        links.links[other].hold()
        adding = [later(writer, b"x" * 400) for _ in range(6)]
        await asyncio.sleep(0.1)
        assert client.late_bytes == 0
        links.links[other].release()
        assert await asyncio.gather(*adding) == list(range(6))
        await asyncio.sleep(1)
        assert writer.error is None
        assert slow not in writer.bookies
        assert other in writer.bookies
        assert client.late_bytes == 0
        assert [error for _, error in links.failures if "too far behind" in str(error)]

    virtual(main())


@pytest.mark.parametrize(("bound", "replaced"), [(1000, False), (999, True)])
def test_late_bytes_up_to_the_bound_cost_nobody(bound: int, replaced: bool) -> None:
    async def main() -> None:
        settings = quorum(3, 3, 2, late_bytes_max=bound, add_timeout_s=1000.0)
        cluster = Cluster(4, settings)
        client, links = cluster.client()
        writer = await client.create({})
        slow = writer.bookies[0]
        links.links[slow].hold()
        for _ in range(10):
            await write(writer, b"x" * 100)
        assert client.late_bytes == 1000
        await asyncio.sleep(1)
        assert (slow not in writer.bookies) is replaced
        links.links[slow].release()
        await asyncio.sleep(1)
        assert client.late_bytes == 0

    virtual(main())


def test_bytes_that_wait_for_the_record_are_bounded_too() -> None:
    """No bookie is behind; the metadata store is away: memory would grow for as long."""

    async def main() -> None:
        settings = quorum(3, 3, 2, late_bytes_max=1000, metadata_timeout_s=1000.0)
        cluster = Cluster(4, settings)
        client, links = cluster.client()
        writer = await client.create({})
        cluster.store.trouble, cluster.store.outcome = 1.0, 0
        links.leave(writer.bookies[0])
        await asyncio.sleep(0.1)
        for _ in range(10):
            await write(writer, b"x" * 100)
        assert writer.error is None
        for _ in range(5):  # the slowest is done without first
            writer.append([b"x"], lambda _first, _error: None)
            await asyncio.sleep(0.1)
        assert isinstance(writer.error, PersistenceError)
        assert "could not be recorded in time" in str(writer.error)
        assert client.late_bytes == 0

    virtual(main())


def test_a_bookie_is_done_without_once_an_add_is_overdue_and_not_before() -> None:
    async def main() -> None:
        timeout_s = 4.0
        cluster = Cluster(3, quorum(2, 2, 2, add_timeout_s=timeout_s))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        hung = writer.bookies[0]
        links.links[hung].hold()
        adding = later(writer, b"b")
        await asyncio.sleep(0)
        begun = asyncio.get_running_loop().time()
        assert await adding == 1
        took = asyncio.get_running_loop().time() - begun
        assert timeout_s <= took <= timeout_s * (1 + 2 / TICKS)
        assert hung not in writer.bookies
        assert [identity for identity, _ in links.failures] == [hung]

    virtual(main())


def test_a_bookie_that_is_slow_but_answers_stays() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2, add_timeout_s=4.0))
        writer, links = await cluster.writer()
        before = tuple(writer.bookies)
        for identity in before:
            links.links[identity].slow_s = 3.0
        adding = [later(writer, b"%d" % number) for number in range(12)]
        assert await asyncio.gather(*adding) == list(range(12))
        assert tuple(writer.bookies) == before
        await asyncio.sleep(60)
        assert tuple(writer.bookies) == before

    virtual(main())


def test_a_degraded_ledger_is_left_alone_while_no_bookie_comes() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2, regrow_interval_s=1.0, avoid_s=0.5))
        writer, links = await cluster.writer()
        links.leave(writer.bookies[0])
        await write(writer, b"a")
        await asyncio.sleep(5)
        assert writer.degraded
        revision = writer.revision
        assert (await cluster.record(writer.ledger_id)).ensembles[-1].bookies == writer.bookies
        await asyncio.sleep(60)
        assert writer.revision == revision
        assert writer.at_rest

    virtual(main())


def test_a_bookie_that_failed_is_avoided_for_the_named_time() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2, regrow_interval_s=0.1, avoid_s=20.0))
        writer, links = await cluster.writer()
        failed = writer.bookies[0]
        await asyncio.sleep(0.1)
        links.links[failed].refuse(1)
        await write(writer, b"a")
        await asyncio.sleep(0.5)
        await asyncio.sleep(18.5)
        assert writer.degraded
        await asyncio.sleep(2)
        assert not writer.degraded
        assert set(writer.bookies) == set(links.links)

    virtual(main())


def test_a_writer_that_has_failed_does_not_grow() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        links.leave(writer.bookies[0])
        await write(writer, b"a")
        writer.fail(BookieError("its owner gives up"))
        closed = await writer.close()
        for identity in list(links.links):
            links.leave(identity)
        writer.grow()
        await asyncio.sleep(1)
        assert await cluster.record(writer.ledger_id) == closed

    virtual(main())


@pytest.mark.parametrize(("shape", "counts"), [((3, 2, 2), True), ((3, 3, 2), False)])
def test_a_striped_ledgers_length_is_put_on_record_now_and_then(
    shape: tuple[int, int, int], counts: bool
) -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(*shape, count_entries=10))
        writer, _ = await cluster.writer()
        seen: list[tuple[int, int]] = []
        for _ in range(25):
            await write(writer, b"abc")
            await asyncio.sleep(0.1)
            record = await cluster.record(writer.ledger_id)
            seen.append((record.counted_entries, record.counted_bytes))
        if counts:
            assert seen == [(0, 0)] * 9 + [(10, 30)] * 10 + [(20, 60)] * 6
        else:
            assert seen == [(0, 0)] * 25
        assert writer.error is None

    virtual(main())


def test_a_ledger_with_several_ensembles_is_counted_from_its_second_one_on() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2, count_entries=5))
        writer, links = await cluster.writer()
        await appended(writer, 8)
        links.leave(writer.bookies[0])
        await asyncio.sleep(0.1)
        record = await cluster.record(writer.ledger_id)
        assert (record.counted_entries, record.counted_bytes) == (8, 8)
        await appended(writer, 5)
        await asyncio.sleep(0.1)
        record = await cluster.record(writer.ledger_id)
        assert (record.counted_entries, record.counted_bytes) == (13, 13)

    virtual(main())


def test_a_count_that_the_store_does_not_take_disturbs_nobody() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 2, 2, count_entries=5, metadata_timeout_s=1.0))
        writer, _ = await cluster.writer()
        cluster.store.trouble, cluster.store.outcome = 1.0, 0
        for number in range(12):
            assert await write(writer, b"x") == number
            await asyncio.sleep(1)
        cluster.store.trouble = 0.0
        await asyncio.sleep(30)
        for _ in range(5):
            await write(writer, b"x")
            await asyncio.sleep(1)
        assert (await cluster.record(writer.ledger_id)).counted_entries >= 15
        assert (await writer.close()).last_entry == 16

    virtual(main())


def test_a_closing_record_keeps_everyone_where_nobody_lacks_what_is_confirmed() -> None:
    """The slow bookie lacks only unconfirmed entries."""

    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2, add_timeout_s=1000.0))
        writer, links = await cluster.writer()
        await appended(writer, 3)
        await asyncio.sleep(0.1)
        for identity in writer.bookies[1:]:
            links.links[identity].hold()
        adding = later(writer, b"unconfirmed")
        await asyncio.sleep(0.1)
        writer.fail(BookieError("its owner gives up"))
        closed = await writer.close()
        assert closed.last_entry == 2
        assert [len(one.bookies) for one in closed.ensembles] == [3]
        assert isinstance(adding.exception(), BookieError)

    virtual(main())


def test_a_fenced_writer_says_so_at_once_and_replaces_nobody() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        before = tuple(writer.bookies)
        await cluster.disks[before[1].bookie_id].ledger_end(writer.ledger_id, fence=True)
        with pytest.raises(LedgerFenced):
            await asyncio.gather(*(later(writer, b"b") for _ in range(3)))
        assert links.failures == []
        assert tuple(writer.bookies) == before
        assert not writer.left_open
        with pytest.raises(LedgerFenced):
            await writer.close()

    virtual(main())


def test_a_bookie_that_fails_and_leaves_is_blamed_and_replaced_once() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        lost = writer.bookies[0]
        adding = later(writer, b"b")
        await asyncio.sleep(0)
        links.links[lost].cut()
        links.leave(lost)
        assert await adding == 1
        await asyncio.sleep(0.5)
        assert [identity for identity, _ in links.failures] == [lost]
        assert len((await cluster.record(writer.ledger_id)).ensembles) == 2

    virtual(main())


def test_a_bookie_that_is_not_of_the_ledger_may_leave() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        revision, before = writer.revision, tuple(writer.bookies)
        for identity in set(links.links) - set(before):
            links.leave(identity)
        links.leave(BookieIdentity(before[0].bookie_id, "another life"))
        await asyncio.sleep(1)
        assert (writer.revision, tuple(writer.bookies)) == (revision, before)

    virtual(main())


def test_every_add_tells_how_far_the_ledger_was_confirmed() -> None:
    """One entry behind at most: what a recovery need not look for again."""

    async def main() -> None:
        cluster = Cluster(4, quorum(4, 2, 2))
        writer, links = await cluster.writer()
        told: list[tuple[int, int]] = []
        for one in links.links.values():
            add = one.add_entries

            def noted(ledger_id, ids, entries, *, last_add_confirmed, add=add, **more) -> None:
                told.append((ids[0], last_add_confirmed))
                add(ledger_id, ids, entries, last_add_confirmed=last_add_confirmed, **more)

            one.add_entries = noted  # type: ignore[assignment,method-assign]
        for _ in range(4):
            await write(writer, b"a", b"b", b"c")
        firsts = sorted(set(told))
        assert all(lac == first // 3 * 3 - 1 for first, lac in firsts)
        assert {first // 3 for first, _ in firsts} == {0, 1, 2, 3}
        assert all(before < after for before, after in pairwise(firsts))

    virtual(main())


def test_a_group_over_stripes_fails_once() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 1, 1))
        writer, _ = await cluster.writer()
        calls: list[tuple[int, MagnetarError | None]] = []
        error = BookieError("its owner gives up")
        size = writer.append([b"ab"] * 7, lambda first, error: calls.append((first, error)))
        assert size == 14
        assert writer.next_entry == 7
        writer.fail(error)
        assert calls == [(-1, error)]
        await asyncio.sleep(1)
        assert calls == [(-1, error)]
        assert writer.last_add_confirmed == -1

    virtual(main())


@pytest.mark.parametrize("copies", [1, 2])
def test_a_bookies_former_life_that_ends_concerns_no_writer_of_its_next(copies: int) -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(copies, copies, copies))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        before = tuple(writer.bookies)
        for identity in before:
            writer.bookie_lost(BookieIdentity(identity.bookie_id, "former"))
        await asyncio.sleep(1)
        assert writer.error is None
        assert tuple(writer.bookies) == before
        assert await write(writer, b"b") == 1

    virtual(main())
