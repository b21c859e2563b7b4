"""A bookie's end of one connection: exact deadlines, exact bounds, order of adds."""

import pytest

from magnetar.bookie.api import BookieReadOnly, LedgerFenced
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net import requests as requests_module
from magnetar.bookie.net import server as server_module
from magnetar.bookie.net.connection import (
    CLOSE_TIMEOUT_S,
)
from magnetar.bookie.net.frame_socket import WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES
from magnetar.bookie.net.protocol_v1 import Added, Frame
from magnetar.bookie.net.server import PENDING_BYTES_HIGH
from magnetar.bookie.packed import pack

from .client_rig import feed, turns
from .connection_rig import Rig
from .peers import IDENTITY

MOMENT_S = 1e-3


async def test_adds_are_answered_in_their_order_with_one_frame_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    for number in range(1, 7):
        rig.add(number, recovery=number == 2)
    assert rig.bookie.recoveries == [False, True, False, False, False, False]
    first, second, third, fourth, fifth, sixth = rig.bookie.adds
    second(None)
    third(LedgerFenced("fenced"))
    sixth(None)
    assert await rig.said() == []
    first(None)
    added, failed = await rig.said()
    assert added == Added(0, 1, 2)
    assert isinstance(failed, Frame)
    assert (failed.kind, failed.id) == (protocol.ADD_FAILED, 3)
    assert messages.decode_failure(failed.payload).code == messages.CODE_FENCED
    fourth(None)
    fifth(None)
    assert await rig.said() == [Added(0, 4, 3)]


async def test_other_answers_do_not_overtake_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.add(1)
    rig.bookie.adds[0](None)
    rig.say(protocol.PING, 9)
    added, pong = await rig.said()
    assert added == Added(0, 1, 1)
    assert isinstance(pong, Frame)
    assert (pong.kind, pong.id) == (protocol.PONG, 9)


async def test_adds_are_numbered_without_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.add(1)
    rig.add(3)
    assert "add number 3 where 2 is due" in await rig.farewell()
    assert rig.ended
    assert len(rig.bookie.adds) == 1


async def test_refused_adds_set_the_flag_in_every_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.server.add_refusal = BookieReadOnly("no lease")
    rig.add(1)
    rig.say(protocol.PING, 5)
    failed, pong = await rig.said()
    assert isinstance(failed, Frame)
    assert isinstance(pong, Frame)
    assert messages.decode_failure(failed.payload).code == messages.CODE_READ_ONLY
    assert failed.flags == pong.flags == protocol.FLAG_READ_ONLY
    assert not rig.bookie.adds
    rig.server.add_refusal = None
    rig.bookie.takes_adds = False
    rig.say(protocol.PING, 6)
    (pong,) = await rig.said()
    assert pong.flags == protocol.FLAG_READ_ONLY
    rig.bookie.takes_adds = True
    rig.add(2)
    rig.bookie.adds[0](None)
    assert await rig.said() == [Added(0, 2, 1)]


async def test_invalid_add_is_answered_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.add(1)
    rig.bookie.fault = ValueError("no such id")
    rig.add(2)
    rig.bookie.fault = None
    assert await rig.said() == []
    rig.bookie.adds[0](None)
    added, failed = await rig.said()
    assert added == Added(0, 1, 1)
    assert isinstance(failed, Frame)
    assert failed.id == 2
    assert not rig.ended


@pytest.mark.parametrize("kind", ["add", "ping", "read"])
async def test_requests_before_the_hello_are_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rig = Rig(monkeypatch)
    if kind == "add":
        rig.add(1)
    elif kind == "ping":
        rig.say(protocol.PING)
    else:
        rig.read(1)
    assert "hello" in await rig.farewell()
    assert rig.ended
    assert not rig.bookie.adds
    assert not rig.bookie.begun


@pytest.mark.parametrize("kind", [protocol.PONG, protocol.HELLO, protocol.ENTRIES])
async def test_malformed_requests_end_the_connection(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    if kind == protocol.ENTRIES:
        feed(rig.connection, *protocol.encode_entries(0, 1, range(1), [b"x"]))
    elif kind == protocol.HELLO:
        rig.say(kind, 1, messages.encode_hello(messages.Hello(IDENTITY)))
    else:
        rig.say(kind)
    assert await rig.farewell()
    assert rig.ended


@pytest.mark.parametrize(
    ("ours", "theirs", "taken"),
    [
        ("ours", "ours", True),
        ("ours", "theirs", False),
        ("", "theirs", True),
        ("ours", "", True),
    ],
)
async def test_a_client_of_another_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, ours: str, theirs: str, taken: bool
) -> None:
    rig = Rig(monkeypatch)
    rig.server.cluster = ours
    rig.say(protocol.HELLO, 0, messages.encode_hello(messages.Hello(IDENTITY, theirs)))
    (frame,) = await rig.said()
    assert isinstance(frame, Frame)
    assert (frame.kind == protocol.WELCOME) == taken
    if taken:
        said = messages.decode_welcome(frame.payload)
        assert said == messages.Welcome(IDENTITY, protocol.BODY_BYTES_MAX, ours)
    assert rig.ended != taken


@pytest.mark.parametrize("features", [0, 1, messages.FEATURES | 1 << 40])
async def test_welcome_has_only_common_features(
    monkeypatch: pytest.MonkeyPatch, features: int
) -> None:
    rig = Rig(monkeypatch)
    hello = messages.Hello(IDENTITY, "ours", features=features)
    rig.say(protocol.HELLO, 0, messages.encode_hello(hello))
    (welcome,) = await rig.said()
    assert isinstance(welcome, Frame)
    said = messages.decode_welcome(welcome.payload)
    assert said.features == features & messages.FEATURES


async def test_connections_are_accepted_up_to_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch, connections_max=2)
    assert rig.wire.limits == (WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES)
    second, _ = rig.connect()
    third, refused = rig.connect()
    assert not rig.ended
    assert refused.closed
    assert rig.server.connections == {rig.connection, second}
    assert rig.server.connections_refused == 1
    third.connection_lost(None)
    second.connection_lost(None)
    _, fourth = rig.connect()
    assert not fourth.closed


async def test_full_bookie_resumes_reading_at_low_water(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.pending_bytes = PENDING_BYTES_HIGH - 1
    rig.add(1)
    assert not rig.server.held, "up to the bound it is not full"
    rig.add(2)
    assert rig.server.held
    assert not rig.wire.reading
    rig.add(3)
    assert len(rig.bookie.adds) == 2
    late, late_wire = rig.connect()
    await turns()
    assert not late_wire.reading, "one that comes now waits too"
    rig.connection.resume()
    assert not rig.wire.reading
    rig.bookie.pending_bytes = 0
    rig.bookie.low[0]()
    assert rig.wire.reading
    assert late_wire.reading
    assert len(rig.bookie.adds) == 3
    assert not late.closed


async def test_connection_with_most_memory_is_closed_at_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    group = pack([bytes(1 << 20)])
    head = protocol.encode_add(1, 1, -1, range(1), group, recovery=False)
    feed(rig.connection, head, group.body[0][:500_000])
    held = rig.connection.held_bytes
    assert held == rig.server.receiving_bytes > 500_000
    small, small_wire = rig.connect()
    monkeypatch.setattr(server_module, "RECEIVING_BYTES_MAX", held + 1)
    rig.server.receiving(1)
    assert not rig.ended, "at the bound nobody is closed"
    monkeypatch.setattr(server_module, "RECEIVING_BYTES_MAX", held - 1)
    rig.server.receiving(-1)
    assert not rig.ended, "nobody is closed as memory is freed"
    monkeypatch.setattr(server_module, "RECEIVING_BYTES_MAX", held)
    rig.server.receiving(1)
    assert "too many large frames" in await rig.farewell()
    assert rig.ended
    assert not small_wire.closed
    assert rig.server.receiving_bytes == 1, "its memory is free at once"
    assert rig.server.connections == {rig.connection, small}


async def test_closed_connection_frees_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    group = pack([bytes(1 << 20)])
    head = protocol.encode_add(1, 1, -1, range(1), group, recovery=False)
    feed(rig.connection, head, group.body[0][:500_000])
    assert rig.server.receiving_bytes > 0
    feed(rig.connection, group.body[0][500_000:])
    assert rig.server.receiving_bytes == 0
    head = protocol.encode_add(2, 1, -1, range(1), group, recovery=False)
    feed(rig.connection, head, group.body[0][:500_000])
    rig.connection.connection_lost(None)
    assert rig.server.receiving_bytes == 0
    assert not rig.server.connections


async def test_silent_peer_is_disconnected_exactly_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch, idle_timeout_s=60.0)
    await rig.hello()
    rig.timers.now += 50
    rig.say(protocol.PING)
    rig.timers.now += 60
    rig.check_deadlines()
    assert not rig.ended
    rig.timers.now += MOMENT_S
    rig.check_deadlines()
    assert "nothing was heard" in await rig.farewell()
    assert rig.ended


async def test_hello_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, hello_timeout_s=5.0)
    rig.timers.now += 5
    rig.check_deadlines()
    assert not rig.ended
    rig.timers.now += MOMENT_S
    rig.check_deadlines()
    assert "no hello in time" in await rig.farewell()


async def test_peer_that_does_not_read_is_disconnected_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch, unread_timeout_s=30.0, idle_timeout_s=60.0)
    await rig.hello()
    rig.connection.pause_writing()
    assert rig.connection.unread
    assert not rig.wire.reading
    rig.timers.now += 30
    rig.check_deadlines()
    assert not rig.wire.aborted
    rig.connection.resume_writing()
    assert rig.wire.reading
    rig.timers.now += 20
    rig.check_deadlines()
    rig.connection.pause_writing()
    rig.timers.now += 30 + MOMENT_S
    rig.check_deadlines()
    assert rig.wire.aborted
    assert rig.connection.closed


async def test_time_on_hold_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch, idle_timeout_s=60.0, frame_stall_s=25.0)
    await rig.hello()
    feed(rig.connection, protocol.encode_frame(protocol.PING, 0, 1)[:20])
    rig.check_deadlines()
    rig.connection.hold()
    rig.timers.now += 1000
    rig.check_deadlines()
    rig.connection.resume()
    rig.timers.now += 25
    rig.check_deadlines()
    assert not rig.ended


async def test_stalled_frame_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, idle_timeout_s=600.0, frame_stall_s=25.0)
    await rig.hello()
    frame = protocol.encode_frame(protocol.PING, 0, 1)
    for _ in range(3):
        feed(rig.connection, frame[:20])
        rig.check_deadlines()
        rig.timers.now += 20
        feed(rig.connection, frame[20:])
    assert len(await rig.said()) == 3, "each frame has its own time"
    feed(rig.connection, frame[:20])
    rig.check_deadlines()
    rig.timers.now += 25
    rig.check_deadlines()
    assert not rig.ended
    rig.timers.now += MOMENT_S
    rig.check_deadlines()
    assert "did not grow" in await rig.farewell()


async def test_trickling_frame_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trickle of bytes does not keep an incomplete frame alive."""
    rig = Rig(monkeypatch, idle_timeout_s=600.0, frame_stall_s=25.0)
    await rig.hello()
    frame = protocol.encode_frame(protocol.PING, 0, 1)
    for at in range(6):
        feed(rig.connection, frame[at : at + 1])
        rig.check_deadlines()
        assert not rig.ended
        rig.timers.now += 5
    feed(rig.connection, frame[6:7])
    rig.timers.now += MOMENT_S
    rig.check_deadlines()
    assert "did not grow" in await rig.farewell()


async def test_draining_answers_received_requests_and_stops_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    rig.add(1)
    rig.read(7)
    await turns()
    rig.connection.drain("is stopping")
    rig.connection.drain("a second time")
    assert not rig.wire.reading
    assert await rig.farewell() == "is stopping"
    rig.add(2)
    assert len(rig.bookie.adds) == 1
    rig.bookie.adds[0](None)
    assert await rig.said() == [Added(0, 1, 1)]
    assert not rig.ended, "a read is not answered yet"
    rig.bookie.gates[0].set()
    assert await rig.ids() == [7]
    assert rig.wire.closed
    assert rig.timers.live() == [CLOSE_TIMEOUT_S]
    rig.timers.pass_(CLOSE_TIMEOUT_S)
    assert rig.wire.aborted


async def test_a_drained_connection_waits_for_its_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.add(1)
    rig.connection.drain("is stopping")
    await turns()
    assert not rig.ended
    rig.bookie.adds[0](None)
    closing, added = await rig.said()
    assert isinstance(closing, Frame)
    assert added == Added(0, 1, 1)
    assert rig.wire.closed


async def test_closed_connection_sends_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    rig.add(1)
    for id_ in range(1, requests_module.REQUESTS_RUNNING_MAX + 2):
        rig.read(id_)
    await turns()
    rig.connection.abort()
    rig.connection.connection_lost(None)
    rig.bookie.adds[0](None)
    rig.bookie.open = True
    for gate in rig.bookie.gates:
        gate.set()
    assert await rig.said() == []
    assert len(rig.bookie.begun) == requests_module.REQUESTS_RUNNING_MAX
