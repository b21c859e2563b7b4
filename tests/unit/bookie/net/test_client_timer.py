"""The timer of a client connection: exact deadlines, and pings of an idle connection."""

import asyncio
import gc
from typing import Any

import pytest

from magnetar.bookie.api import BookieError, BookieLate, BookieUnavailable
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.client_connection import TICK_S
from magnetar.bookie.net.protocol_v1 import Frame

from .client_rig import ClientRig, feed, turns

TIMEOUT_S = 1.0
TICKS = int(TIMEOUT_S / TICK_S) + 1
"""After which an add is late: the deadline, and the tick that it was made in."""


def heard(rig: ClientRig) -> None:
    """Feeds a frame that answers no pending request."""
    feed(rig.connection, protocol.encode_frame(protocol.PONG, 0, 0))


async def test_add_is_late_exactly_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch, timeout_s=TIMEOUT_S)
    rig.open()
    rig.add(0, bytes(10))
    rig.timers.pass_(TICK_S)
    rig.add(1, bytes(20))
    rig.timers.pass_(TICK_S * (TICKS - 2))
    heard(rig)
    assert not rig.answers
    rig.wire.unsent_bytes = 12
    rig.timers.pass_(TICK_S)
    assert rig.kinds() == [(0, BookieLate)]
    assert (rig.connection.pending_bytes, rig.connection.late_bytes) == (20, 10)
    rig.timers.pass_(TICK_S)
    assert rig.kinds() == [(0, BookieLate), (1, BookieLate)]
    assert (rig.connection.pending_bytes, rig.connection.late_bytes) == (0, 12)
    assert rig.connection.error is None
    rig.add(2)
    feed(rig.connection, protocol.encode_added(0, 1, 3))
    assert rig.kinds()[2:] == [(2, None)], "late answers are nobody's"
    rig.wire.unsent_bytes = 5
    rig.connection.unsent_bytes()
    assert rig.connection.late_bytes == 5


async def test_refusal_behind_a_late_add_completes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch, timeout_s=TIMEOUT_S)
    rig.open()
    rig.add(0)
    refusal = BookieError("refused")
    rig.connection.refuse(lambda error: rig.answers.append((1, error)), refusal)
    drained = asyncio.ensure_future(rig.connection.drained())
    await turns()
    rig.timers.pass_(TICK_S * (TICKS - 1))
    heard(rig)
    rig.timers.pass_(TICK_S)
    assert rig.kinds() == [(0, BookieLate), (1, BookieError)]
    await asyncio.wait_for(drained, 1)
    rig.add(2)
    feed(rig.connection, protocol.encode_added(0, 1, 2))
    assert rig.kinds()[2:] == [(2, None)]


async def test_a_late_request_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ClientRig(monkeypatch, timeout_s=TIMEOUT_S)
    rig.open()
    first = asyncio.ensure_future(rig.connection.request(protocol.PING, 0, b""))
    await turns()
    rig.timers.pass_(TICK_S)
    second = asyncio.ensure_future(rig.connection.request(protocol.PING, 0, b""))
    rig.add(0)
    await turns()
    rig.timers.pass_(TICK_S * (TICKS - 2))
    heard(rig)
    await turns()
    assert not first.done()
    rig.timers.pass_(TICK_S)
    with pytest.raises(BookieLate, match="no answer within 1 s"):
        await first
    assert not second.done()
    assert not rig.answers
    feed(rig.connection, protocol.encode_frame(protocol.PONG, 0, 2))
    await second
    assert rig.connection.error is None


@pytest.mark.parametrize(("adds", "requests"), [(0, 1), (1, 0), (1, 1), (2, 2), (1, 3)])
async def test_all_pending_requests_have_deadlines(
    monkeypatch: pytest.MonkeyPatch, adds: int, requests: int
) -> None:
    rig = ClientRig(monkeypatch, timeout_s=TIMEOUT_S)
    rig.open()
    for entry_id in range(adds):
        rig.add(entry_id)
    asked = [rig.connection.request(protocol.PING, 0, b"") for _ in range(requests)]
    asking = [asyncio.ensure_future(item) for item in asked]
    await turns()
    assert rig.connection.pending == adds + requests
    rig.timers.pass_(TICK_S * (TICKS - 1))
    heard(rig)
    rig.timers.pass_(TICK_S)
    await turns()
    assert rig.kinds() == [(entry_id, BookieLate) for entry_id in range(adds)]
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(item) for item in answers] == [BookieLate] * requests
    assert rig.connection.pending == 0
    assert rig.connection.error is None


async def test_silent_bookie_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch, timeout_s=TIMEOUT_S)
    rig.open()
    rig.timers.pass_(100 * TICK_S)
    rig.add(0)
    rig.add(1)
    rig.timers.pass_(TICK_S * (TICKS - 1))
    assert not rig.answers
    rig.timers.pass_(TICK_S)
    assert rig.kinds() == [(0, BookieLate), (1, BookieLate)]
    assert "nor anything else" in str(rig.answers[0][1])
    assert rig.wire.aborted
    assert rig.timers.live() == []


async def test_nothing_is_late_before_the_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then only the deadline of the connection attempt applies."""
    rig = ClientRig(monkeypatch, timeout_s=TIMEOUT_S)
    rig.connection.connection_made(rig.wire)
    rig.add(0)
    rig.timers.pass_(TICK_S * 5 * TICKS)
    assert not rig.answers
    assert rig.connection.error is None


@pytest.mark.parametrize(("writable", "idle_s"), [(True, 10.0), (False, 0.5)])
async def test_idle_connection_is_pinged_with_a_deadline(
    monkeypatch: pytest.MonkeyPatch, writable: bool, idle_s: float
) -> None:
    rig = ClientRig(monkeypatch, timeout_s=TIMEOUT_S, ping_idle_s=10.0, ping_read_only_s=0.5)
    rig.open()
    rig.add(0)
    flags = 0 if writable else protocol.FLAG_READ_ONLY
    feed(rig.connection, protocol.encode_added(flags, 1, 1))
    await turns()
    rig.wire.frames()
    rig.timers.pass_(TICK_S)
    assert rig.timers.live() == [idle_s]
    rig.timers.pass_(idle_s - TICK_S)
    assert not rig.wire.writes
    rig.timers.pass_(TICK_S)
    (ping,) = rig.wire.frames()
    assert isinstance(ping, Frame)
    assert (ping.kind, ping.id) == (protocol.PING, 1)
    feed(rig.connection, protocol.encode_frame(protocol.PONG, flags, 1))
    rig.timers.pass_(TICK_S)
    assert rig.timers.live() == [idle_s]
    rig.timers.pass_(idle_s)
    (ping,) = rig.wire.frames()
    assert isinstance(ping, Frame)
    assert ping.id == 2
    rig.timers.pass_(TICK_S * TICKS)
    assert isinstance(rig.connection.error, BookieLate)


async def test_a_ping_that_fails_with_its_connection_is_no_unhandled_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for it; asyncio would log an error for each bookie that restarts."""
    rig = ClientRig(monkeypatch, timeout_s=TIMEOUT_S, ping_idle_s=10.0)
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    rig.open()
    rig.add(0)
    feed(rig.connection, protocol.encode_added(0, 1, 1))
    await turns()
    rig.wire.frames()
    rig.timers.pass_(TICK_S + 10.0)
    (ping,) = rig.wire.frames()
    assert isinstance(ping, Frame)
    assert ping.kind == protocol.PING
    rig.connection.close(BookieUnavailable("it is gone"))
    await turns()
    assert rig.connection.pending == 0
    gc.collect()
    assert failed == []


async def test_one_timer_serves_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ClientRig(monkeypatch, timeout_s=TIMEOUT_S)
    rig.open()
    for entry_id in range(5):
        rig.add(entry_id)
        await turns()
        assert len(rig.timers.live()) == 1
        rig.timers.pass_(TICK_S / 10)
    feed(rig.connection, protocol.encode_added(0, 1, 5))
    rig.timers.pass_(2 * TICK_S)
    assert len(rig.timers.live()) == 1, "the idle timer"
    rig.add(5)
    assert rig.timers.live() == [TICK_S], "work takes its place"
