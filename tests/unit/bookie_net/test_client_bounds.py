"""What a bookie's client holds for a bookie that does not read, and ids that no frame can carry."""

import asyncio

import pytest
from tests.unit.bookie_net.peers import Adding, Peer, greeted, pretending, remote, serving

from magnetar.bookie.api import ID_END
from magnetar.bookie.net import client as client_module
from magnetar.bookie.net import protocol_v1 as protocol

SOON_S = 0.3


async def test_late_adds_that_were_not_sent_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookie answers pings and does not read: what it was given stays in our memory."""
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
            # Rounds that are late, one after the other.
            first = len(adding.answers)
            for _ in range(8):
                sent += 1
                adding.add(sent, bytes(1 << 20))
            await adding.count(first + 8)
            refused = any("wait for its answers" in str(error) for _, error in adding.answers)
            assert sent < 400
        link = bookie._link
        assert link is not None
        assert link.unsent_bytes() <= 17 << 20
        assert bookie.pending_bytes == 0


async def test_ids_that_cannot_be_leave_the_connection_as_it_was() -> None:
    async with serving() as server, remote(server.port) as bookie:
        adding = Adding(bookie)
        adding.add(0)
        assert await adding.count(1) == [(0, None)]
        with pytest.raises(ValueError, match="no such ids"):
            adding.add(1, ledger_id=1 << 63)
        with pytest.raises(ValueError, match="ids from 0"):
            adding.add(ID_END)
        adding.add(1)
        assert await adding.count(2) == [(0, None), (1, None)]
