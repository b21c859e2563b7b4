"""The ledger client: what opening an open ledger waits for, what a deletion needs, its end."""

import asyncio

import pytest
from tests.unit.ledger.appending import quorum
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import write

from magnetar.bookie.api import (
    BookieError,
    BookieUnavailable,
    LedgerEnd,
    NoSuchLedger,
    NotPermitted,
)
from magnetar.ledger.metadata import LedgerState
from magnetar.metadata.store import MetadataUnavailable


def answering(end: LedgerEnd | BookieError, delay_s: float):
    async def ledger_end(_ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        assert not fence
        await asyncio.sleep(delay_s)
        if isinstance(end, BookieError):
            raise end
        return end

    return ledger_end


def known(last: int) -> LedgerEnd:
    return LedgerEnd(last, last, fenced=False)


NONE = NoSuchLedger("no ledger here")
GONE = BookieUnavailable("gone")


@pytest.mark.parametrize(
    ("answers", "expected", "at_most_s"),
    [
        # Each: what the three bookies say, and after how long.
        ([(known(1), 0.0), (known(3), 0.1), (known(2), 0.2)], 3, 0.3),
        ([(known(3), 0.0), (known(2), 0.0), (known(9), 5.0)], 3, 0.3),  # it does not wait
        ([(known(1), 0.5), (GONE, 0.0), (GONE, 0.0)], 1, 0.6),
        ([(GONE, 0.0), (known(1), 0.0), (GONE, 0.1)], 1, 0.3),
        ([(NONE, 0.0), (NONE, 0.0), (NONE, 0.0)], -1, 0.1),
        ([(NONE, 0.0), (known(4), 0.2), (NONE, 0.0)], 4, 0.3),
        ([(NONE, 0.0), (known(4), 5.0), (NONE, 0.0)], -1, 0.3),
        ([(NONE, 0.0), (GONE, 0.0), (GONE, 0.0)], -1, 0.3),
        ([(GONE, 0.0), (GONE, 0.0), (GONE, 0.1)], None, 0.2),
        ([(known(5), 90.0), (known(5), 90.0), (known(5), 90.0)], None, 3.1),
    ],
)
def test_an_open_ledger_is_known_as_far_as_those_say_that_answer_at_once(
    answers: list[tuple[LedgerEnd | BookieError, float]], expected: int | None, at_most_s: float
) -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2, speculative_read_delay_s=0.25))
        writer, _ = await cluster.writer()
        client, links = cluster.client()
        for identity, (end, delay_s) in zip(writer.bookies, answers, strict=True):
            links.links[identity].ledger_end = answering(end, delay_s)  # type: ignore[method-assign]
        begun = asyncio.get_running_loop().time()
        if expected is None:
            with pytest.raises(BookieUnavailable):
                await client.open(writer.ledger_id, recover=False)
        else:
            reader = await client.open(writer.ledger_id, recover=False)
            assert (reader.last_entry, reader.closed) == (expected, False)
        assert asyncio.get_running_loop().time() - begun <= at_most_s

    virtual(main())


def test_everything_below_the_last_ensemble_is_confirmed_whatever_its_bookies_say() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        for number in range(5):
            await write(writer, b"%d" % number)
        for identity in tuple(writer.bookies):
            links.leave(identity)
        await asyncio.sleep(1)
        client, reach = cluster.client()
        for link in reach.links.values():
            link.ledger_end = answering(NONE, 0.0)  # type: ignore[method-assign]
        assert (await client.open(writer.ledger_id, recover=False)).last_entry == 4

    virtual(main())


def test_a_bookie_that_refuses_a_deletion_keeps_the_record() -> None:
    """Otherwise no record would show the copies that are left there."""

    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        client, links = cluster.client()
        writer = await client.create({})
        await write(writer, b"a")
        await asyncio.sleep(0.1)

        async def refuses(_ledger_id: int) -> None:
            raise BookieError("its disk fails")

        refusing = links.links[writer.bookies[1]]
        delete, refusing.delete_ledger = refusing.delete_ledger, refuses  # type: ignore[assignment,method-assign]
        with pytest.raises(BookieError, match="its disk fails"):
            await client.delete(writer.ledger_id)
        assert await cluster.record(writer.ledger_id)
        refusing.delete_ledger = delete  # type: ignore[method-assign]
        await client.delete(writer.ledger_id)
        assert cluster.has(writer.ledger_id, 0) == set()
        assert await cluster.store.list("/ledgers/") == []

    virtual(main())


def test_a_process_that_may_only_read_leaves_the_copies_to_the_bookies() -> None:
    """A bookie deletes a ledger without a record: Spark jobs release offloaded ledgers this way."""

    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        client, links = cluster.client()
        writer = await client.create({})
        await write(writer, b"a")
        await asyncio.sleep(0.1)

        async def refuses(ledger_id: int) -> None:
            raise NotPermitted(f"ledger {ledger_id}: the client may only read")

        for bookie in writer.bookies:
            links.links[bookie].delete_ledger = refuses  # type: ignore[method-assign]
        await client.delete(writer.ledger_id)
        assert await cluster.store.list("/ledgers/") == []

    virtual(main())


def test_a_deletion_tells_the_bookies_of_every_ensemble() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        client, links = cluster.client()
        writer = await client.create({})
        await write(writer, b"a")
        links.leave(writer.bookies[0])
        await write(writer, b"b")
        await asyncio.sleep(0.1)
        await client.delete(writer.ledger_id)
        for entry_id in (0, 1):
            assert cluster.has(writer.ledger_id, entry_id) == set()

    virtual(main())


def test_a_client_may_be_closed_twice_and_hears_of_nobody_then() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2))
        client, links = cluster.client()
        writer = await client.create({})
        before = tuple(writer.bookies)
        await client.close()
        await client.close()
        links.leave(before[0])
        await asyncio.sleep(60)
        assert tuple(writer.bookies) == before
        with pytest.raises(MetadataUnavailable):
            await client.create({})

    virtual(main())


def test_writers_that_failed_are_shown_no_more_and_their_ledgers_are_ended_in_time() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2, regrow_interval_s=5.0, changes_at_once_max=2))
        client, _ = cluster.client()
        writers = [await client.create({}) for _ in range(7)]
        for writer in writers:
            await write(writer, b"a")
        assert set(client.writers) == set(writers)
        close, running, at_once = type(writers[0])._quiesce, 0, 0

        async def slowly(writer) -> None:
            nonlocal running, at_once
            running += 1
            at_once = max(at_once, running)
            await asyncio.sleep(0.5)
            await close(writer)
            running -= 1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(writers[0]), "_quiesce", slowly)
            for writer in writers[1:]:
                writer.fail(BookieError("the lease is lost"))
            assert client.writers == [writers[0]]
            await asyncio.sleep(12)
        assert at_once == 2
        for writer in writers[1:]:
            assert (await cluster.record(writer.ledger_id)).state is LedgerState.CLOSED
        assert (await cluster.record(writers[0].ledger_id)).state is LedgerState.OPEN
        assert await write(writers[0], b"b") == 1

    virtual(main())


def test_a_failed_ledger_that_cannot_be_ended_now_is_ended_later() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2, regrow_interval_s=1.0, metadata_timeout_s=1.0))
        client, _ = cluster.client()
        writer, other = [await client.create({}) for _ in range(2)]
        cluster.store.trouble, cluster.store.outcome = 1.0, 0
        writer.fail(BookieError("the lease is lost"))
        await asyncio.sleep(10)
        assert (await cluster.record(writer.ledger_id)).state is LedgerState.OPEN
        cluster.store.trouble = 0.0
        other.fail(BookieError("the lease is lost"))
        await asyncio.sleep(10)
        for one in (writer, other):
            assert (await cluster.record(one.ledger_id)).state is LedgerState.CLOSED

    virtual(main())


def test_a_bookie_that_left_while_its_ledger_was_created_is_replaced() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2))
        client, links = cluster.client()
        transact = cluster.store.transact

        async def leaving(operations):
            revision = await transact(operations)
            cluster.store.transact = transact  # type: ignore[method-assign]
            record = await cluster.record(1)
            links.gone(record.ensembles[0].bookies[0])
            return revision

        cluster.store.transact = leaving  # type: ignore[method-assign]
        writer = await client.create({})
        await asyncio.sleep(0.1)
        assert set(writer.bookies) <= set(links.links)
        assert len(writer.bookies) == 2
        assert await write(writer, b"a") == 0

    virtual(main())
