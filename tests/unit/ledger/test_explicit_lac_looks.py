"""Checks for idle ledgers: their number before bookies are notified, their bound, their retries."""

import asyncio

import pytest
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import write
from tests.unit.ledger.test_explicit_lac import IDLE_S, INTERVAL_S, quorum, times_told

from magnetar.bookie.api import BookieError
from magnetar.ledger.settings import LedgerSettings


def test_a_bookie_that_refuses_is_asked_at_ever_longer_intervals() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        loop = asyncio.get_running_loop()
        begun, asked = loop.time(), list[int]()

        async def refuses(_confirmed: object) -> None:
            asked.append(round((loop.time() - begun) / INTERVAL_S))
            raise BookieError("no such request")

        links.links[writer.bookies[0]].note_confirmed = refuses  # type: ignore[assignment,method-assign]
        await write(writer, b"x")
        await asyncio.sleep(40 * INTERVAL_S)
        assert asked == [2, 4, 8, 16]
        assert not writer.lac_watched
        await write(writer, b"y")  # more entries were added: the count begins again
        assert writer.lac_watched
        await asyncio.sleep(40 * INTERVAL_S)
        assert len(asked) == 8

    virtual(main())


def test_more_adds_begin_the_tries_again() -> None:
    async def main() -> None:
        cluster = Cluster(1, quorum(1, 1, 1))
        writer, links = await cluster.writer()
        (link,) = links.links.values()
        note, refused = link.note_confirmed, 0

        async def refuses(confirmed: list[tuple[int, int]]) -> None:
            nonlocal refused
            if refused < 3:
                refused += 1
                raise BookieError("not now")
            await note(confirmed)

        link.note_confirmed = refuses  # type: ignore[assignment,method-assign]
        await write(writer, b"x")
        await asyncio.sleep(9 * INTERVAL_S)
        assert (refused, link.told) == (3, [])
        await write(writer, b"y")
        await asyncio.sleep(IDLE_S + INTERVAL_S)
        assert link.told == [(writer.ledger_id, 1)]
        assert not writer.lac_watched

    virtual(main())


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_one_look_tells_of_a_bounded_number_of_ledgers(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.ledger.explicit_lac.SENT_PER_SCAN_MAX", at_once)

    async def main() -> None:
        cluster = Cluster(1, quorum(1, 1, 1))
        client, links = cluster.client()
        writers = [await client.create({}) for _ in range(5)]
        await asyncio.gather(*(write(writer, b"x") for writer in writers))
        (link,) = links.links.values()
        seen = []
        await asyncio.sleep(0.5 * INTERVAL_S)
        for _ in range(8):
            await asyncio.sleep(INTERVAL_S)
            seen.append(len(link.told))
        assert seen[:3] == [0, at_once, min(2 * at_once, 5)]
        assert seen[-1] == 5
        assert not any(writer.lac_watched for writer in writers)

    virtual(main())


def test_a_writer_that_failed_or_confirmed_nothing_sends_no_lac() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        client, links = cluster.client()
        failed, empty, well = [await client.create({}) for _ in range(3)]
        await write(failed, b"x")
        await write(well, b"x")
        failed.fail(BookieError("its owner gives up"))
        client._context.explicit_lac.watch(empty)
        await asyncio.sleep(IDLE_S)
        assert {told for link in links.links.values() for told in link.told} == {
            (well.ledger_id, 0)
        }
        assert not failed.lac_watched
        assert not empty.lac_watched

    virtual(main())


def test_a_bookie_that_is_not_here_keeps_its_writer_watched() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"x")
        first, second = writer.bookies
        away = links.links.pop(first)
        await asyncio.sleep(2.5 * INTERVAL_S)
        assert links.links[second].told == [(writer.ledger_id, 0)]
        assert writer.lac_watched
        links.links[first] = away
        await asyncio.sleep(3 * INTERVAL_S)
        assert away.told == [(writer.ledger_id, 0)]
        assert not writer.lac_watched

    virtual(main())


def test_a_request_that_hangs_is_given_up_and_made_again() -> None:
    async def main() -> None:
        settings = LedgerSettings(
            1, 1, 1, explicit_lac_interval_s=INTERVAL_S, recovery_request_timeout_s=1.5
        )
        cluster = Cluster(1, settings)
        writer, links = await cluster.writer()
        (link,) = links.links.values()
        note, hung = link.note_confirmed, 0

        async def hangs(confirmed: list[tuple[int, int]]) -> None:
            nonlocal hung
            hung += 1
            if hung == 1:
                await asyncio.sleep(1e6)
            await note(confirmed)

        link.note_confirmed = hangs  # type: ignore[assignment,method-assign]
        await write(writer, b"x")
        await asyncio.sleep(20 * INTERVAL_S)
        assert (hung, link.told) == (2, [(writer.ledger_id, 0)])
        assert not writer.lac_watched

    virtual(main())


def test_a_client_that_was_closed_tells_nobody() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        client, links = cluster.client()
        writer = await client.create({})
        await write(writer, b"x")
        await client.close()
        await asyncio.sleep(IDLE_S)
        assert await write(writer, b"y") == 1
        await asyncio.sleep(IDLE_S)
        assert times_told(links) == 0

    virtual(main())


def test_entries_confirmed_during_a_request_are_sent_with_the_next() -> None:
    async def main() -> None:
        cluster = Cluster(1, quorum(1, 1, 1))
        writer, links = await cluster.writer()
        (link,) = links.links.values()
        link.slow_s = 0.3
        await write(writer, b"x")
        await asyncio.sleep(2 * INTERVAL_S)  # the request is on its way
        writer.append([b"y"], lambda _first, _error: None)
        await asyncio.sleep(10 * INTERVAL_S)
        assert link.told[-1] == (writer.ledger_id, 1)
        assert not writer.lac_watched

    virtual(main())
