"""Bookies get the last confirmed entry of an idle ledger: once, and never too early."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.cluster import Cluster, Links, virtual
from tests.unit.ledger.stage import write

from magnetar.bookie.api import BookieError, LedgerFenced
from magnetar.core.errors import MagnetarError
from magnetar.ledger.explicit_lac import TRIES_MAX
from magnetar.ledger.settings import LedgerSettings

INTERVAL_S = 1.0
IDLE_S = 2 * INTERVAL_S + 0.1
"""Two looks behind the last add, and the request."""


def quorum(ensemble: int, write: int, ack: int) -> LedgerSettings:
    return LedgerSettings(ensemble, write, ack, explicit_lac_interval_s=INTERVAL_S)


def told(links: Links) -> list[tuple[int, int]]:
    return sorted(set().union(*(link.told for link in links.links.values())))


def times_told(links: Links) -> int:
    return sum(len(link.told) for link in links.links.values())


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2), (3, 3, 2), (4, 2, 2)])
def test_the_last_entry_of_an_idle_writer_is_read_from_bookies(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        cluster = Cluster(shape[0], quorum(*shape))
        writer, links = await cluster.writer()
        reading, _ = cluster.client()
        for number in range(3):
            await write(writer, b"%d" % number)
        assert (await reading.open(writer.ledger_id, recover=False)).last_entry == 1
        await asyncio.sleep(IDLE_S)
        reader = await reading.open(writer.ledger_id, recover=False)
        assert [one.data for one in await reader.read(0, 2, bytes_max=100)] == [b"0", b"1", b"2"]
        assert not any(disk.ledger(writer.ledger_id).fenced for disk in cluster.disks.values())

        # Once, to each of its bookies, and again only when there is more.
        assert times_told(links) == shape[0]
        await asyncio.sleep(60)
        assert times_told(links) == shape[0]
        await write(writer, b"3")
        await asyncio.sleep(IDLE_S)
        assert (await reading.open(writer.ledger_id, recover=False)).last_entry == 3
        assert times_told(links) == 2 * shape[0]

    virtual(main())


def test_who_writes_tells_nothing_beside_its_adds() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        for _ in range(20):
            await write(writer, b"x")
            await asyncio.sleep(0.7 * INTERVAL_S)
        assert times_told(links) == 0
        await writer.close()
        await asyncio.sleep(IDLE_S)
        assert times_told(links) == 0

    virtual(main())


def test_many_ledgers_share_one_request() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        client, links = cluster.client()
        writers = [await client.create({}) for _ in range(50)]
        requests = 0
        link = next(iter(links.links.values()))
        note = link.note_confirmed

        async def counted(confirmed: list[tuple[int, int]]) -> None:
            nonlocal requests
            requests += 1
            await note(confirmed)

        link.note_confirmed = counted  # type: ignore[assignment,method-assign]
        await asyncio.gather(*(write(writer, b"x") for writer in writers))
        await asyncio.sleep(IDLE_S)
        assert link.told == [(writer.ledger_id, 0) for writer in writers]
        assert requests == 1

    virtual(main())


def test_no_lac_is_sent_while_a_copy_is_missing() -> None:
    """It is confirmed by the ack quorum, but one bookie has not got it yet."""

    async def main() -> None:
        cluster = Cluster(3, LedgerSettings(3, 3, 2, add_timeout_s=60.0))
        writer, links = await cluster.writer()
        slow = links.links[writer.bookies[1]]
        slow.hold()
        await write(writer, b"x")
        await asyncio.sleep(5 * INTERVAL_S)
        assert writer.last_add_confirmed == 0
        assert times_told(links) == 0
        slow.release()
        await asyncio.sleep(IDLE_S)
        assert told(links) == [(writer.ledger_id, 0)]

    virtual(main())


def test_new_bookies_get_the_lac() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"x")
        await asyncio.sleep(IDLE_S)
        first, second = writer.bookies
        links.leave(first)
        await asyncio.sleep(IDLE_S)
        (third,) = set(links.links) - {first, second}
        assert set(writer.bookies) == {second, third}
        assert links.links[third].told == [(writer.ledger_id, 0)]
        # It had nothing of the ledger: it does not make one up.
        assert writer.ledger_id not in await links.links[third].list_ledgers()

    virtual(main())


def test_bookies_that_join_during_a_request_get_the_lac() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"x")
        first, second = writer.bookies
        links.links[second].slow_s = 0.3
        await asyncio.sleep(2 * INTERVAL_S + 0.05)
        assert links.links[first].told
        links.leave(first)
        await asyncio.sleep(0.1)
        assert first not in writer.bookies
        assert not links.links[second].told
        await asyncio.sleep(5 * INTERVAL_S)
        (third,) = set(links.links) - {first, second}
        assert links.links[third].told == [(writer.ledger_id, 0)]
        assert not writer.lac_watched

    virtual(main())


def test_a_bookie_that_does_not_take_it_is_not_blamed_and_not_asked_for_ever() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        older = links.links[writer.bookies[0]]
        asked = 0

        async def unknown(_confirmed: object) -> None:
            nonlocal asked
            asked += 1
            raise BookieError("this bookie knows no request of kind 10")

        older.note_confirmed = unknown  # type: ignore[assignment,method-assign]
        await write(writer, b"x")
        await asyncio.sleep(600)
        assert asked == TRIES_MAX
        assert not links.failures
        assert writer.error is None
        assert not writer.lac_watched

    virtual(main())


def test_a_bookie_that_hangs_holds_up_no_word_to_others() -> None:
    """Other bookies learn of idle ledgers in time."""

    async def main() -> None:
        cluster = Cluster(2, quorum(1, 1, 1))
        client, links = cluster.client()
        writers = [await client.create({}) for _ in range(12)]
        hung = writers[0].bookies[0]
        others = [each for each in writers if each.bookies[0] != hung]
        assert others
        asked = 0

        async def hangs(_confirmed: object) -> None:
            nonlocal asked
            asked += 1
            await asyncio.get_running_loop().create_future()

        links.links[hung].note_confirmed = hangs  # type: ignore[assignment,method-assign]
        reading, _ = cluster.client()
        await write(writers[0], b"x")
        await asyncio.sleep(IDLE_S)
        assert asked == 1
        for writer in others:
            await write(writer, b"x")
        await asyncio.sleep(IDLE_S)
        for writer in others:
            assert (await reading.open(writer.ledger_id, recover=False)).last_entry == 0
        await asyncio.sleep(600)
        assert asked == TRIES_MAX
        assert not any(writer.lac_watched for writer in writers)

    virtual(main())


def test_a_slow_bookie_gets_the_lacs_of_all_writers_that_pause_meanwhile() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        client, links = cluster.client()
        writers = [await client.create({}) for _ in range(30)]
        slow = links.links[writers[0].bookies[0]]
        note, asked_at_once = slow.note_confirmed, 0

        async def slowly(confirmed: list[tuple[int, int]]) -> None:
            nonlocal asked_at_once
            asked_at_once += 1
            assert asked_at_once == 1
            await asyncio.sleep(2.9 * INTERVAL_S)
            await note(confirmed)
            asked_at_once -= 1

        slow.note_confirmed = slowly  # type: ignore[assignment,method-assign]
        for writer in writers:
            await write(writer, b"x")
            await asyncio.sleep(0.9 * INTERVAL_S)
        await asyncio.sleep(60)
        assert {ledger_id for ledger_id, _ in slow.told} == {each.ledger_id for each in writers}
        assert not any(writer.lac_watched for writer in writers)

    virtual(main())


def test_a_late_word_does_not_move_a_fenced_ledger() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"x")
        for link in links.links.values():
            link.hold()  # the message arrives late
        await asyncio.sleep(IDLE_S)
        other, _ = cluster.client()
        ended = await other.open(writer.ledger_id, recover=True)
        assert ended.last_entry == 0
        ledgers = [disk.ledger(writer.ledger_id) for disk in cluster.disks.values()]
        before = [ledger.last_add_confirmed for ledger in ledgers]
        for link in links.links.values():
            link.release()
        await asyncio.sleep(IDLE_S)
        assert told(links) == [(writer.ledger_id, 0)]
        assert [ledger.last_add_confirmed for ledger in ledgers] == before == [-1, -1]
        with pytest.raises(LedgerFenced):
            await write(writer, b"y")

    virtual(main())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 16),
    st.sampled_from([(1, 1, 1), (2, 2, 1), (3, 3, 2), (4, 2, 2)]),
    st.sampled_from([0.0, 0.1, 0.3]),
)
def test_readers_never_see_what_is_not_confirmed(
    seed: int, shape: tuple[int, int, int], losses: float
) -> None:
    """Whatever is lost, late or replaced; and who ends the ledger finds what readers saw."""

    async def main() -> None:
        cluster, rng = Cluster(5, quorum(*shape), seed), Random(seed)
        writer, links = await cluster.writer()
        reading, _ = cluster.client()
        confirmed = seen = -1

        def on_appended(first: int, error: MagnetarError | None) -> None:
            nonlocal confirmed
            if error is None:
                confirmed = first

        for link in links.links.values():
            link.lose_ratio = losses * rng.random()
        for _ in range(30):
            writer.append([b"x"], on_appended)
            if rng.random() < 0.1:
                links.leave(rng.choice(writer.bookies))
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.3, IDLE_S)))
            reader = await reading.open(writer.ledger_id, recover=False)
            assert reader.last_entry <= confirmed
            seen = max(seen, reader.last_entry)
            if writer.error is not None:
                break
        ended = await reading.open(writer.ledger_id, recover=True)
        assert ended.last_entry >= max(seen, confirmed)
        await asyncio.sleep(IDLE_S)

    virtual(main())
