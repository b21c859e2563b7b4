"""Ensemble changes and the ledger's record: answers that are lost, others that write it too."""

import asyncio

import pytest
from tests.unit.ledger.appending import later, link, quorum
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import write

from magnetar.bookie.api import BookieError, BookieIdentity, LedgerFenced
from magnetar.core.errors import MagnetarError
from magnetar.ledger.metadata import LedgerState, ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode


def test_an_ack_of_a_bookie_that_is_not_on_record_does_not_count() -> None:
    """Until the record is written, only those count that are in the old and the new ensemble."""

    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        cluster.store.trouble = 1.0
        adding = later(writer, b"b")
        await asyncio.sleep(0)
        link(links, writer, 0).cut()
        await asyncio.sleep(1)
        assert len(cluster.has(writer.ledger_id, 1)) >= 2
        assert not adding.done()
        cluster.store.trouble = 0.0
        assert await adding == 1

    virtual(main())


@pytest.mark.parametrize("outcome", [0, 1, 2])
def test_a_change_of_an_idle_ledger_that_nobody_answered_is_not_taken_for_granted(
    outcome: int,
) -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2, metadata_timeout_s=10.0))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        cluster.store.trouble, cluster.store.outcome = 1.0, outcome
        links.leave(writer.bookies[0])
        await asyncio.sleep(11)
        adding = later(writer, b"b")
        await asyncio.sleep(1)
        assert not adding.done() or adding.exception() is not None
        cluster.store.trouble = 0.0
        assert await adding == 1
        reader = await cluster.client()[0].open(writer.ledger_id, recover=True)
        assert reader.last_entry == 1
        copies = {one.bookie_id for one in reader.metadata.ensembles[-1].bookies}
        assert cluster.has(writer.ledger_id, 1) >= copies

    virtual(main())


def test_what_needs_no_record_is_confirmed_while_the_metadata_is_away() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        cluster.store.trouble = 1.0
        link(links, writer, 0).cut()
        links.leave(writer.bookies[0])
        for number in range(60):
            assert await write(writer, b"%d" % number) == number + 1
            await asyncio.sleep(0.5)
        cluster.store.trouble = 0.0
        await asyncio.sleep(10)
        closed = await writer.close()
        assert closed.last_entry == 60
        for entry_id in range(61):
            assert len(cluster.has(writer.ledger_id, entry_id)) >= 3

    virtual(main())


def test_what_needs_the_record_fails_after_the_named_time() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        cluster.store.trouble = 1.0
        adding = later(writer, b"a")
        await asyncio.sleep(0)
        link(links, writer, 0).cut()
        with pytest.raises(MagnetarError, match="is not known"):
            await adding
        cluster.store.trouble = 0.0
        await asyncio.sleep(10)  # requests under way may still take effect
        assert (await writer.close()).last_entry == -1

    virtual(main())


@pytest.mark.parametrize("closing", [False, True])
def test_older_ensembles_may_be_changed_by_autorecovery_meanwhile(closing: bool) -> None:
    async def main() -> None:
        cluster = Cluster(5, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        links.leave(writer.bookies[0])
        await write(writer, b"b")
        await asyncio.sleep(0.1)
        record = await cluster.record(writer.ledger_id)
        other = (BookieIdentity("z", "0"), record.ensembles[0].bookies[1])
        moved = record.with_ensembles((type(record.ensembles[0])(0, other), *record.ensembles[1:]))
        await MemoryStore.put(cluster.store, ledger_key(writer.ledger_id), encode(moved))
        if not closing:
            links.leave(writer.bookies[1])
            await write(writer, b"c")
            ensembles = (await cluster.record(writer.ledger_id)).ensembles
            assert [one.first_entry for one in ensembles] == [0, 1, 2]
            assert ensembles[0].bookies == other
        closed = await writer.close()
        assert closed.ensembles[0].bookies == other

    virtual(main())


def test_a_ledger_that_is_being_ended_is_not_changed_any_more() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        record = await cluster.record(writer.ledger_id)
        key = ledger_key(writer.ledger_id)
        await MemoryStore.put(cluster.store, key, encode(record.in_recovery()))
        adding = later(writer, b"b")
        await asyncio.sleep(0)
        link(links, writer, 0).cut()
        with pytest.raises(LedgerFenced):
            await adding
        for _ in range(2):
            with pytest.raises(LedgerFenced):
                await writer.close()
        assert (await cluster.record(writer.ledger_id)).state is LedgerState.IN_RECOVERY

    virtual(main())


def test_a_writer_that_was_fenced_never_writes_over_the_end_another_found() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        later_add = later(writer, b"b")
        await asyncio.sleep(0.1)
        for held in links.links.values():
            held.hold()
        await (await cluster.client()[0].open(writer.ledger_id, recover=True)).read(
            0, 0, bytes_max=9
        )
        ended = await cluster.record(writer.ledger_id)
        assert ended.last_entry == 1
        writer.last_add_confirmed = 0  # as if it had not heard of it
        writer.fail(BookieError("its owner gives up"))
        for _ in range(3):
            with pytest.raises(LedgerFenced):
                await writer.close()
        assert await cluster.record(writer.ledger_id) == ended
        assert await later_add == 1

    virtual(main())
