"""When a held connection handles frames again: after every reason to hold it is over."""

import pytest

from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.requests import REQUESTS_RUNNING_MAX
from magnetar.bookie.net.server import PENDING_BYTES_HIGH
from magnetar.bookie.packed import pack

from .client_rig import feed, turns
from .connection_rig import Rig


async def fence_due(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Returns a connection with a fence that has not begun, followed by an add."""
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.begun.clear()
    rig.say(protocol.LEDGER_END, 7, messages.encode_ledger(1), protocol.FLAG_FENCE)
    rig.add(1)
    assert rig.bookie.adds == []
    assert rig.bookie.begun == []
    assert not rig.wire.reading
    return rig


async def test_low_water_does_not_let_adds_overtake_a_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await fence_due(monkeypatch)
    rig.connection.resume()
    assert rig.bookie.adds == []
    assert not rig.wire.reading
    await turns()
    assert rig.bookie.begun == [("end", (1, True))]
    assert len(rig.bookie.adds) == 1
    assert rig.wire.reading


async def test_started_fence_does_not_let_adds_into_a_full_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await fence_due(monkeypatch)
    another, _ = rig.connect()
    rig.bookie.pending_bytes = PENDING_BYTES_HIGH + 1
    rig.server.added()
    await turns()
    assert rig.bookie.begun == [("end", (1, True))], "a fence adds nothing"
    assert rig.bookie.adds == []
    assert not rig.wire.reading
    rig.bookie.pending_bytes = 0
    rig.bookie.low[0]()
    assert len(rig.bookie.adds) == 1
    assert rig.wire.reading
    assert not another.closed


async def test_connection_that_ended_while_paused_handles_no_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await fence_due(monkeypatch)
    group = pack([bytes(1 << 20)])
    head = protocol.encode_add(2, 1, -1, range(1), group, recovery=False)
    feed(rig.connection, head, group.body[0][:500_000])
    assert rig.server.receiving_bytes > 0
    rig.connection.abort()
    rig.connection.connection_lost(None)
    await turns()
    rig.connection.resume()
    assert rig.bookie.adds == []
    assert rig.server.receiving_bytes == 0, "what it held is not counted again"


async def test_held_frames_free_their_memory_once_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await fence_due(monkeypatch)
    group = pack([bytes(1 << 20)])
    head = protocol.encode_add(2, 1, -1, range(1), group, recovery=False)
    feed(rig.connection, head, *group.body)
    assert rig.server.receiving_bytes > 0
    await turns()
    assert len(rig.bookie.adds) == 2
    assert rig.server.receiving_bytes == rig.connection.held_bytes == 0


async def test_draining_connection_handles_no_frame_when_its_fence_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await fence_due(monkeypatch)
    rig.connection.drain("is stopping")
    await turns()
    assert rig.bookie.begun == [("end", (1, True))]
    assert rig.bookie.adds == []
    assert not rig.wire.reading
    assert rig.wire.closed, "its fence is answered, and the add was never taken"


async def test_draining_connection_answers_waiting_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    asked = list(range(1, 2 * REQUESTS_RUNNING_MAX + 1))
    for id_ in asked:
        rig.read(id_)
    await turns()
    rig.connection.drain("is stopping")
    await turns()
    assert not rig.ended
    assert len(rig.bookie.gates) == REQUESTS_RUNNING_MAX
    rig.bookie.open = True
    for gate in rig.bookie.gates:
        gate.set()
    closing, *answered = await rig.ids()
    assert (closing, sorted(answered)) == (0, asked)
    assert rig.wire.closed
