"""How a client learns that a bookie is read-only or writable again."""

import asyncio

from tests.unit.bookie.net.peers import DEADLINE_S, Adding, remote, serving

from magnetar.bookie.api import BookieReadOnly


async def test_writable_follows_the_last_frame() -> None:
    async with serving() as server, remote(server.port) as bookie:
        await bookie.ping()
        assert bookie.writable
        server.add_refusal = BookieReadOnly("full")
        adding = Adding(bookie)
        adding.add(0)
        assert await adding.count(1) == [(0, BookieReadOnly)]
        assert not bookie.writable
        server.add_refusal = None
        await bookie.ping()
        assert bookie.writable


async def test_client_learns_that_an_idle_bookie_is_writable_again() -> None:
    async with serving() as server, remote(server.port, ping_idle_s=3_600.0) as bookie:
        server.add_refusal = BookieReadOnly("resting")
        await bookie.ping()
        assert not bookie.writable
        server.add_refusal = None
        async with asyncio.timeout(DEADLINE_S):  # not only by the ping of an idle connection
            while not bookie.writable:  # noqa: ASYNC110 - the state has no event
                await asyncio.sleep(0.02)
