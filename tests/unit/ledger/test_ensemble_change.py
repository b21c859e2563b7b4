"""Writers over several bookies: who must have an entry, and what happens when bookies fail."""

import asyncio

import pytest
from tests.unit.ledger.appending import appended, later, link, names, quorum
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import write

from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.core.errors import MagnetarError
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.metadata import LedgerState


def test_the_settings_are_checked() -> None:
    for shape in ((1, 2, 1), (2, 1, 2), (2, 2, 0), (101, 2, 2)):
        with pytest.raises(ValueError, match="each must be at least the next"):
            quorum(*shape)
    with pytest.raises(ValueError, match="stripe_entries"):
        quorum(2, 2, 2, stripe_entries=0)
    with pytest.raises(ValueError, match="add_timeout_s"):
        quorum(2, 2, 2, add_timeout_s=0)


def test_an_entry_is_confirmed_by_the_ack_quorum_and_sent_to_its_write_set() -> None:
    async def main() -> None:
        cluster = Cluster(5, quorum(5, 3, 2))
        writer, links = await cluster.writer()
        link(links, writer, 2).hold()
        await write(writer, *(b"%d" % number for number in range(20)))
        link(links, writer, 2).release()
        await asyncio.sleep(0.1)
        record = await cluster.record(writer.ledger_id)
        for entry_id in range(20):
            first = entry_id // 2 % 5
            wanted = {record.ensembles[0].bookies[(first + k) % 5].bookie_id for k in range(3)}
            assert cluster.has(writer.ledger_id, entry_id) == wanted

    virtual(main())


def test_nothing_is_confirmed_with_less_than_the_ack_quorum() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2, add_timeout_s=100.0))
        writer, links = await cluster.writer()
        link(links, writer, 1).hold()
        adding = later(writer, b"a")
        await asyncio.sleep(20)
        assert not adding.done()
        link(links, writer, 1).release()
        assert await adding == 0

    virtual(main())


@pytest.mark.parametrize("fault", ["refuse", "cut", "hang", "leave"])
def test_a_bookie_that_fails_is_replaced_and_nobody_notices(fault: str) -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 2, 2))
        writer, links = await cluster.writer()
        await appended(writer, 5)
        lost = writer.bookies[0]
        if fault == "hang":
            links.links[lost].hold()
        elif fault == "refuse":
            links.links[lost].refuse(1)
        adding = [later(writer, b"x%d" % number, b"y") for number in range(8)]
        await asyncio.sleep(0)
        if fault == "cut":
            links.links[lost].cut()
        elif fault == "leave":
            links.leave(lost)
        first = await asyncio.gather(*adding)
        assert first[:8] == [5 + 2 * number for number in range(8)]
        record = await cluster.record(writer.ledger_id)
        assert len(record.ensembles) == 2
        assert lost not in record.ensembles[1].bookies
        assert len(record.ensembles[1].bookies) == 3
        assert not writer.degraded
        closed = await writer.close()
        assert closed.last_entry == writer.next_entry - 1
        for entry_id in range(closed.last_entry + 1):
            assert len(cluster.has(writer.ledger_id, entry_id)) >= 2

    virtual(main())


def test_several_failures_are_one_change() -> None:
    async def main() -> None:
        cluster = Cluster(6, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        await asyncio.sleep(0.1)
        adding = later(writer, b"b")
        await asyncio.sleep(0)
        for slot in (0, 1, 2):
            link(links, writer, slot).cut()
        assert await adding == 1
        record = await cluster.record(writer.ledger_id)
        assert [one.first_entry for one in record.ensembles] == [0, 1]
        assert set(record.ensembles[0].bookies).isdisjoint(record.ensembles[1].bookies)

    virtual(main())


def test_an_idle_ledger_does_not_stay_short_of_copies() -> None:
    """apache/pulsar#26074: the owner restores the copies, so nobody must close the ledger."""

    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        lost = writer.bookies[1]
        links.leave(lost)
        await asyncio.sleep(0.5)
        record = await cluster.record(writer.ledger_id)
        assert record.state is LedgerState.OPEN
        assert [one.first_entry for one in record.ensembles] == [0, 1]
        assert lost not in record.ensembles[1].bookies
        assert await write(writer, b"b") == 1

    virtual(main())


def test_an_ensemble_that_lost_a_bookie_before_it_had_an_entry_is_replaced_whole() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        links.leave(writer.bookies[0])
        await asyncio.sleep(0.5)
        record = await cluster.record(writer.ledger_id)
        assert [one.first_entry for one in record.ensembles] == [0]
        assert record.ensembles[0].bookies == tuple(writer.bookies)

    virtual(main())


def test_without_a_spare_writes_continue_over_the_ack_quorum_until_a_bookie_comes() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2, regrow_interval_s=1.0, avoid_s=2.0))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        gone = writer.bookies[0]
        links.leave(gone)
        await write(writer, b"b")
        assert writer.degraded
        assert len(writer.bookies) == 2
        await asyncio.sleep(5)
        links.come(cluster.disks[gone.bookie_id])
        await asyncio.sleep(5)
        assert not writer.degraded
        assert await write(writer, b"c") == 2
        record = await cluster.record(writer.ledger_id)
        assert [(one.first_entry, len(one.bookies)) for one in record.ensembles] == [
            (0, 3),
            (1, 2),
            (2, 3),
        ]
        await asyncio.sleep(0.1)
        assert len(cluster.has(writer.ledger_id, 2)) == 3

    virtual(main())


def test_a_striped_ledger_gets_narrower_where_there_is_no_spare() -> None:
    """Pulsar's 3/2/2 on three bookies stalls when one of them is lost."""

    async def main() -> None:
        cluster = Cluster(3, quorum(3, 2, 2))
        writer, links = await cluster.writer()
        await appended(writer, 7)
        links.leave(writer.bookies[1])
        await appended(writer, 7)
        assert len(writer.bookies) == 2
        assert not writer.degraded
        closed = await writer.close()
        assert closed.last_entry == 13

    virtual(main())


def test_below_the_ack_quorum_the_writer_fails_and_says_who_is_missing() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        adding = later(writer, b"b")
        await asyncio.sleep(0)
        lost = writer.bookies[0]
        links.links[lost].cut()
        with pytest.raises(NotEnoughBookies, match=rf"{lost.bookie_id} \(connection .* lost\)"):
            await adding
        assert (await writer.close()).last_entry == 0

    virtual(main())


def test_a_new_ledger_takes_what_bookies_there_are() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        client, links = cluster.client()
        links.leave(BookieIdentity("b1", "0"))
        writer = await client.create({})
        assert names(writer.bookies) != ["b1"]
        assert writer.degraded
        assert (writer.metadata.write_quorum, len(writer.bookies)) == (3, 2)
        links.leave(BookieIdentity("b0", "0"))
        with pytest.raises(NotEnoughBookies, match="2 bookies are needed"):
            await client.create({})

    virtual(main())


def test_a_straggler_is_replaced_and_what_it_missed_is_copied() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        slow = writer.bookies[2]
        links.links[slow].hold()
        await appended(writer, 10)  # confirmed by the two others
        await asyncio.sleep(3)
        record = await cluster.record(writer.ledger_id)
        assert slow not in record.ensembles[-1].bookies
        assert record.ensembles[-1].first_entry == 0
        for entry_id in range(10):
            copies = cluster.has(writer.ledger_id, entry_id)
            assert copies == {one.bookie_id for one in writer.bookies}

    virtual(main())


def test_bytes_for_late_copies_are_bounded() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2, late_bytes_max=1000, add_timeout_s=1000.0))
        client, links = cluster.client()
        writer = await client.create({})
        slow = writer.bookies[0]
        links.links[slow].hold()
        for _ in range(30):
            await write(writer, b"x" * 100)
            assert client.late_bytes <= 1200
        await asyncio.sleep(1)
        assert slow not in writer.bookies
        assert client.late_bytes == 0

    virtual(main())


@pytest.mark.parametrize("lacking", [1, 3])
def test_a_closing_record_names_nobody_who_lacks_entries(lacking: int) -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2, add_timeout_s=1000.0))
        writer, links = await cluster.writer()
        await appended(writer, 3)
        await asyncio.sleep(0.1)
        slow = writer.bookies[1]
        links.links[slow].hold()
        await appended(writer, lacking)
        writer.fail(BookieError("its owner gives up"))
        closed = await writer.close()
        assert closed.last_entry == 2 + lacking
        assert [(one.first_entry, len(one.bookies)) for one in closed.ensembles] == [(0, 3), (3, 2)]
        assert slow not in closed.ensembles[1].bookies

    virtual(main())


def test_a_group_over_several_stripes_completes_once_and_moves_as_one() -> None:
    """Its first stripes had all their copies; the new ensemble has them on other bookies."""

    async def main() -> None:
        cluster = Cluster(4, quorum(4, 2, 2))
        writer, links = await cluster.writer()
        calls: list[tuple[int, MagnetarError | None]] = []
        slow = link(links, writer, 3)
        slow.hold()
        group = [b"%d" % number for number in range(8)]
        writer.append(group, lambda first, error: calls.append((first, error)))
        await asyncio.sleep(0.1)  # stripes 0 and 1 are done, 2 and 3 are not
        assert calls == []
        links.leave(writer.bookies[1])
        await asyncio.sleep(0.1)
        slow.release()
        await asyncio.sleep(1)
        assert calls == [(0, None)]
        (ensemble,) = (await cluster.record(writer.ledger_id)).ensembles
        assert len(ensemble.bookies) == 3
        for entry_id in range(8):
            first = entry_id // 2 % 3
            wanted = {ensemble.bookies[(first + k) % 3].bookie_id for k in range(2)}
            assert wanted <= cluster.has(writer.ledger_id, entry_id)

    virtual(main())


def test_confirmed_entries_are_copied_before_the_record_names_who_has_them() -> None:
    async def main() -> None:
        cluster = Cluster(5, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        ensemble = writer.bookies
        spares = [one for one in links.links if one not in ensemble]
        links.links[ensemble[2]].hold()
        await appended(writer, 5)  # by the two others
        for spare in spares:
            links.links[spare].hold()
        links.leave(ensemble[0])
        links.leave(ensemble[2])
        await asyncio.sleep(0.5)
        assert (await cluster.record(writer.ledger_id)).ensembles[0].bookies == ensemble
        for spare in spares:
            links.links[spare].release()
        await asyncio.sleep(0.5)
        (now,) = (await cluster.record(writer.ledger_id)).ensembles
        assert set(now.bookies) == {ensemble[1], *spares}
        assert await write(writer, b"more") == 5

    virtual(main())


@pytest.mark.parametrize("entries", [1, 3])
def test_no_confirmed_entry_is_short_of_its_ack_quorum_when_the_record_changes(
    entries: int,
) -> None:
    """The first and the last entry of the new ensemble count as much as those between them."""

    async def main() -> None:
        cluster = Cluster(5, quorum(3, 3, 2, add_timeout_s=1000.0))
        writer, links = await cluster.writer()
        ensemble = writer.bookies
        spares = [links.links[one] for one in links.links if one not in ensemble]
        links.links[ensemble[2]].hold()
        await appended(writer, entries)
        for spare in spares:
            spare.hold()
        links.leave(ensemble[0])
        links.leave(ensemble[2])
        for arrived in range(entries):
            await asyncio.sleep(0.5)
            stored = [cluster.has(writer.ledger_id, entry_id) for entry_id in range(entries)]
            copies = [len(at - {ensemble[0].bookie_id}) for at in stored]
            assert copies == [2] * arrived + [1] * (entries - arrived)
            assert (await cluster.record(writer.ledger_id)).ensembles[0].bookies == ensemble
            spares[0].deliver(1)
        await asyncio.sleep(0.5)
        (now,) = (await cluster.record(writer.ledger_id)).ensembles
        assert set(now.bookies) == {ensemble[1], *(spare.identity for spare in spares)}

    virtual(main())
