"""What RemoteBookie verifies in answers and in its own requests, and when it connects again."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from tests.support.memory_bookie import MemoryBookie
from tests.unit.bookie.net.client_rig import ClientRig, feed, turns, welcome
from tests.unit.bookie.net.peers import (
    DEADLINE_S,
    HOST,
    IDENTITY,
    Adding,
    Peer,
    greeted,
    pretending,
    remote,
    serving,
)

from magnetar.bookie.api import ID_END, BookieUnavailable
from magnetar.bookie.net import client as client_module
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.protocol_v1 import Frame
from magnetar.bookie.net.settings import RemoteSettings


def paging(
    pages: Callable[[int], tuple[list[int], bool]], asked: list[int]
) -> Callable[[Peer], Awaitable[None]]:
    """Returns the behavior of a bookie that answers LIST by `pages(after)`, at most 10 times."""

    async def answer(peer: Peer) -> None:
        await greeted(peer)
        for _ in range(10):
            frame = await peer.frame()
            if frame is None:
                return
            assert isinstance(frame, Frame)
            assert frame.kind == protocol.LIST
            after, _ = messages.decode_list(frame.payload)
            asked.append(after)
            ids, more = pages(after)
            peer.say(protocol.LEDGERS, frame.id, messages.encode_ledgers(ids, more=more))

    return answer


async def test_the_pages_of_a_list_continue_after_the_last_ledger() -> None:
    asked: list[int] = []
    ids = [0, 1, 5, 6, 9]

    def pages(after: int) -> tuple[list[int], bool]:
        rest = [ledger_id for ledger_id in ids if ledger_id > after]
        return rest[:2], len(rest) > 2

    async with pretending(paging(pages, asked)) as (port, _), remote(port) as bookie:
        async with asyncio.timeout(DEADLINE_S):
            assert await bookie.list_ledgers() == ids
        assert asked == [-1, 1, 6]


@pytest.mark.parametrize("second", [[2], [2, 3], [1], [0]])
async def test_a_list_that_does_not_continue_is_refused(second: list[int]) -> None:
    """Otherwise a bookie that repeats a page keeps its client busy forever."""

    def pages(after: int) -> tuple[list[int], bool]:
        return ([1, 2] if after < 0 else second), True

    async with pretending(paging(pages, [])) as (port, _), remote(port) as bookie:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(BookieUnavailable, match="repeats itself"):
                await bookie.list_ledgers()


async def test_more_proofs_than_an_answer_holds_are_requested_as_a_full_answer() -> None:
    memory = MemoryBookie(*IDENTITY)
    asked: list[int] = []

    async def one_prove(peer: Peer) -> None:
        await greeted(peer)
        frame = await peer.frame()
        assert isinstance(frame, Frame)
        asked.append(messages.decode_prove(frame.payload)[3])

    async with pretending(one_prove) as (port, _), remote(port) as bookie:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(BookieUnavailable, match="the connection ended"):
                await bookie.prove_entries(1, 0, 9, count_max=1 << 40)
        assert asked == [protocol.PROOFS_MAX]
    async with serving(memory) as server, remote(server.port) as bookie:
        adding = Adding(bookie)
        adding.add(0)
        await adding.count(1)
        proofs = await bookie.prove_entries(1, 0, ID_END, count_max=1 << 40)
        assert [proof.entry_id for proof in proofs.proofs] == [0]


@pytest.mark.parametrize("ledger_id", [-1, ID_END, ID_END + 1])
async def test_an_add_to_an_invalid_ledger_is_refused_at_once(ledger_id: int) -> None:
    async with serving() as server, remote(server.port) as bookie:
        adding = Adding(bookie)
        with pytest.raises(ValueError, match="no ledger id"):
            adding.add(0, ledger_id=ledger_id)
        adding.add(0, ledger_id=ID_END - 1)
        assert await adding.count(1) == [(0, None)]


async def test_a_group_of_too_many_entries_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "ENTRIES_PER_GROUP_MAX", 3)

    def add(bookie: RemoteBookie, count: int) -> "asyncio.Future[object]":
        added: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        bookie.add_entries(
            1, range(count), [b"x"] * count, last_add_confirmed=-1, on_added=added.set_result
        )
        return added

    async with serving() as server, remote(server.port) as bookie:
        with pytest.raises(ValueError, match="4 entries and 4 bytes is too large"):
            add(bookie, 4)
        assert bookie.pending_bytes == 0
        async with asyncio.timeout(DEADLINE_S):
            assert await add(bookie, 3) is None


async def test_a_welcome_ends_the_back_off() -> None:
    welcoming = False

    async def sometimes(peer: Peer) -> None:
        if welcoming:
            await greeted(peer)
            await peer.frame()

    async with pretending(sometimes) as (port, _):
        settings = RemoteSettings(retry_s_min=0.1, retry_s_max=1000.0)
        bookie = RemoteBookie(IDENTITY, HOST, port, random=Random(1), settings=settings)
        loop = asyncio.get_running_loop()

        async def pause() -> float:
            """Returns the pause after a failed attempt."""
            bookie.retry_at = 0.0
            with pytest.raises(BookieUnavailable):
                async with asyncio.timeout(DEADLINE_S):
                    await bookie.ping()
            return bookie.retry_at - loop.time()

        for _ in range(8):
            long = await pause()
        assert long > 5
        welcoming = True
        bookie.retry_at = 0.0
        with pytest.raises(BookieUnavailable, match="the connection ended"):
            async with asyncio.timeout(DEADLINE_S):
                await bookie.ping()
        assert bookie.retry_at == 0.0, "a connection that was welcomed needs no pause"
        welcoming = False
        assert 0 < await pause() <= 0.1
        await bookie.close()


@pytest.mark.parametrize("cluster", ["", "ours"])
async def test_a_welcome_that_names_no_cluster_is_accepted(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ClientRig(monkeypatch)
    rig.connection.connection_made(rig.wire)
    feed(rig.connection, welcome(cluster=cluster))
    await turns()
    assert rig.owner.connected
    assert rig.connection.error is None
