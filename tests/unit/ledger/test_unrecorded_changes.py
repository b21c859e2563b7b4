"""A change of an ensemble that no record has yet: who counts, and what the closing record says."""

import asyncio
from functools import partial

import pytest
from tests.unit.ledger.appending import appended, later, quorum
from tests.unit.ledger.cluster import Cluster, Links, virtual
from tests.unit.ledger.stage import write

from magnetar.bookie.api import BookieError, LedgerFenced
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.ledger.metadata import LedgerMetadata, ledger_key
from magnetar.ledger.quorum import write_set
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.memory import MemoryStore


async def changing(cluster: Cluster) -> tuple[LedgerWriter, Links]:
    """A writer with two entries whose first bookie has left while the metadata is away."""
    writer, links = await cluster.writer()
    await appended(writer, 2)
    await asyncio.sleep(0.1)
    cluster.store.trouble, cluster.store.outcome = 1.0, 0
    links.leave(writer.bookies[0])
    await asyncio.sleep(0.1)
    return writer, links


def check_copies(cluster: Cluster, closed: LedgerMetadata) -> None:
    """An ack quorum of the bookies that the record names for an entry has it."""
    for entry_id in range(closed.last_entry + 1):
        copies = {one.bookie_id for one in write_set(closed, entry_id)}
        has = cluster.has(closed.ledger_id, entry_id)
        assert len(copies & has) >= closed.ack_quorum, (entry_id, copies, has)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_what_is_appended_before_the_record_says_so_waits_for_both_ensembles(count: int) -> None:
    """In stripes of two, over two bookies of four: no stripe has a quorum in both."""

    async def main() -> None:
        cluster = Cluster(5, quorum(4, 2, 2, metadata_timeout_s=60.0))
        writer, _ = await changing(cluster)
        size = len(writer.bookies)
        adding = [later(writer, *[b"x"] * count) for _ in range(2 * size // count or 1)]
        await asyncio.sleep(1)
        for entry_id in range(2, writer.next_entry):
            assert len(cluster.has(writer.ledger_id, entry_id)) >= 2
        assert not all(one.done() for one in adding)
        cluster.store.trouble = 0.0
        assert await asyncio.gather(*adding) == [2 + count * n for n in range(len(adding))]
        closed = await writer.close()
        check_copies(cluster, closed)

    virtual(main())


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_entries_are_confirmed_by_their_own_write_set_while_the_next_ensemble_is_unrecorded(
    count: int,
) -> None:
    """A group that crosses the stripes of the recorded ensemble has several write sets there."""

    async def main() -> None:
        cluster = Cluster(4, quorum(4, 3, 2, metadata_timeout_s=60.0))
        writer, links = await changing(cluster)
        assert len(writer.bookies) == 3
        links.leave(writer.bookies[-1])
        adding = [later(writer, *[b"x"] * count) for _ in range(16 // count)]
        await asyncio.sleep(1)
        recorded = writer.metadata
        assert len(recorded.ensembles[-1].bookies) == 4
        for entry_id in range(writer.last_add_confirmed + 1):
            copies = {one.bookie_id for one in write_set(recorded, entry_id)}
            has = cluster.has(writer.ledger_id, entry_id)
            assert len(copies & has) >= 2, (entry_id, copies, has)
        cluster.store.trouble = 0.0
        await asyncio.gather(*adding)
        check_copies(cluster, await writer.close())

    virtual(main())


@pytest.mark.parametrize("landed", [0, 1])
def test_the_closing_record_has_what_was_not_recorded_before(landed: int) -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2, metadata_timeout_s=1.0))
        writer, links = await changing(cluster)
        cluster.store.outcome = landed
        for number in range(3):
            assert await write(writer, b"x") == 2 + number
        await asyncio.sleep(0.1)
        writer.fail(BookieError("its owner gives up"))
        await asyncio.sleep(5)  # the change ends without an answer
        cluster.store.trouble = 0.0
        closed = await writer.close()
        assert closed.last_entry == 4
        gone = links.away
        for entry_id in range(2, 5):
            copies = set(write_set(closed, entry_id))
            assert not copies & gone
            names = {one.bookie_id for one in copies}
            assert names <= cluster.has(writer.ledger_id, entry_id)
        assert set(closed.ensembles[0].bookies) & gone
        reader = await cluster.client()[0].open(writer.ledger_id, recover=True)
        assert reader.last_entry == 4

    virtual(main())


async def changed_twice(cluster: Cluster) -> tuple[LedgerWriter, Links]:
    """A writer whose first bookie has left, and then its second, and no record says either.

    Three entries are confirmed in between, by the two that are in the first two ensembles.
    """
    writer, links = await changing(cluster)
    for number in range(3):
        assert await write(writer, b"x") == 2 + number
    second = writer.bookies[1]
    links.leave(second)
    while second in writer.bookies:  # noqa: ASYNC110 - time is virtual
        await asyncio.sleep(0.1)
    assert len((await cluster.record(writer.ledger_id)).ensembles) == 1
    return writer, links


def test_an_entry_has_a_quorum_in_every_ensemble_that_may_be_on_record() -> None:
    """Of the three that may stand there one bookie is in all: nothing is confirmed by two."""

    async def main() -> None:
        cluster = Cluster(6, quorum(3, 3, 2, metadata_timeout_s=1.0, add_timeout_s=1000.0))
        writer, _ = await changed_twice(cluster)
        adding = later(writer, b"x")
        await asyncio.sleep(0.1)
        assert len(cluster.has(writer.ledger_id, 5)) == 3
        assert not adding.done()
        cluster.store.trouble = 0.0
        assert await adding == 5
        check_copies(cluster, await writer.close())

    virtual(main())


def test_a_second_change_begins_where_the_first_did() -> None:
    """Else the record names bookies that left before they had the entries in between."""

    async def main() -> None:
        cluster = Cluster(6, quorum(3, 3, 2, metadata_timeout_s=1.0, add_timeout_s=1000.0))
        writer, links = await changed_twice(cluster)
        cluster.store.trouble = 0.0
        assert await write(writer, b"x") == 5
        closed = await writer.close()
        assert [one.first_entry for one in closed.ensembles] == [0, 2]
        for entry_id in range(2, 6):
            copies = {one.bookie_id for one in write_set(closed, entry_id)}
            assert copies <= cluster.has(writer.ledger_id, entry_id)
            assert not copies & {one.bookie_id for one in links.away}

    virtual(main())


def test_a_bookie_that_fails_while_entries_are_copied_to_it_is_replaced_too() -> None:
    async def main() -> None:
        cluster = Cluster(6, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        first, second, third = writer.bookies
        links.links[third].hold()
        await appended(writer, 4)  # by the first and second
        spares = [one for one in links.links if one not in writer.bookies]
        for spare in spares:
            links.links[spare].hold()
        links.leave(first)
        links.leave(third)
        await asyncio.sleep(0.2)
        copying = [one for one in writer.bookies if one != second]
        links.leave(copying[0])
        for spare in spares:
            links.links[spare].release()
        await asyncio.sleep(1)
        record = await cluster.record(writer.ledger_id)
        assert record.ensembles[-1].bookies == tuple(writer.bookies)
        assert copying[0] not in writer.bookies
        assert await write(writer, b"x") == 4
        check_copies(cluster, await writer.close())

    virtual(main())


def test_a_bug_in_a_change_fails_the_writer_and_nothing_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        monkeypatch.setattr("magnetar.ledger.ensemble_change.choose_more", bug)
        adding = later(writer, b"b")
        await asyncio.sleep(0)
        links.leave(writer.bookies[0])
        with pytest.raises(PersistenceError, match="RuntimeError\\('a bug'\\)"):
            await adding
        closed = await writer.close()
        assert closed.last_entry == 0

    virtual(main())


def test_a_process_that_stops_changes_no_ensembles() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        client, links = cluster.client()
        writer = await client.create({})
        await write(writer, b"a")
        links.links[writer.bookies[0]].refuse(1)
        await client.close()
        with pytest.raises(PersistenceError, match="the process is stopping"):
            await write(writer, b"b")

    virtual(main())


def test_a_ledger_that_was_deleted_is_another_owners() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        await MemoryStore.delete(cluster.store, ledger_key(writer.ledger_id))
        adding = later(writer, b"b")
        await asyncio.sleep(0)
        links.leave(writer.bookies[0])
        with pytest.raises(LedgerFenced, match="ended by another owner"):
            await adding
        for _ in range(2):
            with pytest.raises(LedgerFenced):
                await writer.close()
        assert not writer.left_open

    virtual(main())


def test_a_closing_of_which_the_record_was_deleted_says_so() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        await MemoryStore.delete(cluster.store, ledger_key(writer.ledger_id))
        for _ in range(2):
            with pytest.raises(LedgerFenced):
                await writer.close()

    virtual(main())


def test_bookies_that_stay_are_not_sent_what_they_have() -> None:
    async def main() -> None:
        cluster = Cluster(5, quorum(3, 3, 2, add_timeout_s=100.0))
        writer, links = await cluster.writer()
        first, second, third = writer.bookies
        sent: list[tuple[str, int]] = []
        for link in links.links.values():
            add = link.add_entries

            def noted(ledger_id, ids, entries, *, name=link.identity.bookie_id, add=add, **more):
                sent.extend((name, entry_id) for entry_id in ids)
                add(ledger_id, ids, entries, **more)

            link.add_entries = noted  # type: ignore[assignment,method-assign]
        links.links[third].hold()
        adding = [later(writer, b"%d" % number) for number in range(4)]
        await asyncio.gather(*adding)
        links.leave(third)
        await asyncio.sleep(0.5)
        assert len(sent) == len(set(sent))
        assert {name for name, _ in sent} >= {first.bookie_id, second.bookie_id}
        assert await write(writer, b"x") == 4
        await asyncio.sleep(0.1)
        for entry_id in range(5):
            assert len(cluster.has(writer.ledger_id, entry_id)) == 3

    virtual(main())


def test_an_add_that_fails_is_answered_with_the_first_error_and_in_order() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2, add_timeout_s=100.0))
        writer, links = await cluster.writer()
        for link in links.links.values():
            link.hold()
        seen: list[tuple[int, MagnetarError | None]] = []

        def answered(number: int, _first: int, error: MagnetarError | None) -> None:
            seen.append((number, error))

        for number in range(3):
            writer.append([b"x"], partial(answered, number))
        first, second = BookieError("first"), BookieError("second")
        writer.fail(first)
        writer.fail(second)
        assert seen == [(0, first), (1, first), (2, first)]
        assert writer.error is first
        for link in links.links.values():
            link.release()
        await asyncio.sleep(0.1)
        assert len(seen) == 3
        assert (writer.last_add_confirmed, writer.length_bytes) == (-1, 0)
        assert (await writer.close()).last_entry == -1

    virtual(main())
