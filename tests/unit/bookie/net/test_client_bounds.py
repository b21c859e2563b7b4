"""The client's memory for a bookie that does not read, and ids that a frame cannot carry."""

import asyncio

import pytest
from tests.unit.bookie.net.peers import Adding, Peer, greeted, pretending, remote, serving

from magnetar.bookie.api import ID_END
from magnetar.bookie.net import client as client_module
from magnetar.bookie.net import protocol_v1 as protocol

SOON_S = 0.3


async def test_late_unsent_adds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookie answers pings and does not read: our frames stay in memory."""
    monkeypatch.setattr(client_module, "PENDING_BYTES_MAX", 16 << 20)

    async def unreading(peer: Peer) -> None:
        await greeted(peer)
        peer.rest()
        while True:
            await asyncio.sleep(0.05)
            peer.say(protocol.PONG)

    async with pretending(unreading) as (port, _), remote(port, timeout_s=SOON_S) as bookie:
        adding = Adding(bookie)
        sent = 0
        refused = False
        while not refused:
            # Rounds of adds that become late.
            first = len(adding.answers)
            for _ in range(8):
                sent += 1
                adding.add(sent, bytes(1 << 20))
            await adding.count(first + 8)
            refused = any("wait for its answers" in str(error) for _, error in adding.answers)
            assert sent < 400
        link = bookie._connection
        assert link is not None
        assert link.unsent_bytes() <= 17 << 20
        assert bookie.pending_bytes == 0


async def test_invalid_ids_do_not_affect_the_connection() -> None:
    async with serving() as server, remote(server.port) as bookie:
        adding = Adding(bookie)
        adding.add(0)
        assert await adding.count(1) == [(0, None)]
        with pytest.raises(ValueError, match="no ledger id"):
            adding.add(1, ledger_id=1 << 63)
        with pytest.raises(ValueError, match="ids from 0"):
            adding.add(ID_END)
        adding.add(1)
        assert await adding.count(2) == [(0, None), (1, None)]


async def test_a_client_without_a_connection_waits_for_nothing() -> None:
    async with serving() as server, remote(server.port) as bookie:
        assert not bookie.connected
        assert bookie.pending_bytes == 0
        adding = Adding(bookie)
        adding.add(0, bytes(100))
        assert bookie.pending_bytes == 100
        assert await adding.count(1) == [(0, None)]
        assert bookie.pending_bytes == 0
        await bookie.close()
        assert bookie.pending_bytes == 0
