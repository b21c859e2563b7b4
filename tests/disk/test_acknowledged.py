"""The answers that are right after what a bookie acknowledged, and those that are not."""

import asyncio
from random import Random

import pytest
from tests.disk.acknowledged import Told, Violation
from tests.disk.traffic import Traffic
from tests.unit.bookie.net.peers import DEADLINE_S, Peer, greeted, pretending, remote

from magnetar.bookie.api import NoSuchEntry, NoSuchLedger, StoredEntry
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.protocol_v1 import Frame


def told() -> Told:
    """Entries 0 to 4 of ledger 1 are stored; 2 has no receipt yet."""
    history = Told(7)
    history.tried.update((1, entry_id) for entry_id in range(5))
    history.added(1, (0, 1, 3, 4))
    return history


def stored(history: Told, *ids: int) -> list[StoredEntry]:
    return [StoredEntry(entry_id, history.entry(1, entry_id)) for entry_id in ids]


def test_a_receipt_binds_later_reads_only() -> None:
    history = told()
    before = history.as_of_now()
    history.added(1, (2,))
    before.check_entries(1, 0, stored(history, 0, 1, 3, 4))
    before.check_read_error((1, 2), NoSuchEntry("none"))
    with pytest.raises(Violation, match="passed over: 1:2"):
        history.check_entries(1, 0, stored(history, 0, 1, 3, 4))
    with pytest.raises(Violation, match="acknowledged, and now"):
        history.check_read_error((1, 2), NoSuchEntry("none"))
    with pytest.raises(Violation, match="passed over: 1:1"):
        before.check_entries(1, 0, stored(history, 0, 3))


def test_a_deletion_binds_later_reads_only() -> None:
    history = told()
    before = history.as_of_now()
    history.deleting.add(1)
    history.deleted.add(1)
    before.check_entries(1, 0, stored(history, 0, 1))
    before.check_read_error((1, 0), NoSuchLedger("deleted"))
    with pytest.raises(Violation, match="deleted ledger 1 is served"):
        history.check_entries(1, 0, stored(history, 0, 1))


def test_wrong_bytes_are_never_right() -> None:
    before = told().as_of_now()
    with pytest.raises(Violation, match="wrong bytes"):
        before.check_entries(1, 0, [StoredEntry(0, b"x")])


async def test_a_receipt_that_arrives_with_an_earlier_reads_answer_does_not_bind_it() -> None:
    """The client completes adds as it receives a frame, and wakes readers in the next turn."""
    history = told()

    async def answer_both(peer: Peer) -> None:
        await greeted(peer)
        read = await peer.frame()
        assert isinstance(read, Frame)
        assert await peer.frame() is not None, "the add"
        found = stored(history, 0, 1, 3)
        ids, entries = [item.entry_id for item in found], [item.data for item in found]
        peer.send(
            *protocol.encode_entries(0, read.id, ids, entries), protocol.encode_added(0, 1, 1)
        )
        await peer.frame()

    async with pretending(answer_both) as (port, _), remote(port) as bookie:
        traffic = Traffic(history, Random(1), bookie, lambda: True)
        reading = asyncio.ensure_future(traffic.read(1, 0, 3))
        await asyncio.sleep(0)
        await traffic._add(1, (2,))
        async with asyncio.timeout(DEADLINE_S):
            await reading
            await traffic.settle()
        assert (1, 2) in history.acked
