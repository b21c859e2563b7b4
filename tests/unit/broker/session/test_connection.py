"""A connection above a transport that a test holds: when it reads, when it writes, when it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from tests.unit.broker.session.stage import broker
from tests.unit.ledger.cluster import virtual
from tests.unit.wire import frames

from magnetar.broker.service import BrokerService
from magnetar.broker.session import connection as connection_module
from magnetar.broker.session.connection import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    FRAME_STALL_S,
    GATHERED_FRAME_BYTES_MAX,
    UNREAD_BYTES_MAX,
    WRITE_BUFFER_HIGH_BYTES,
    WRITE_BUFFER_LOW_BYTES,
    Connection,
)
from magnetar.broker.session.handlers import HANDLERS
from magnetar.broker.session.session import Session
from magnetar.core.cork import cork
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PING_FRAME, PONG_FRAME, encode_command
from magnetar.wire.framing import FRAME_OVERHEAD_BYTES_MAX
from magnetar.wire.progress import PROGRESS_BYTES_MIN

FRAME_BYTES_MAX = 1 << 20
CONNECT = encode_command(
    CommandType.CONNECT, pb.CommandConnect(client_version="x", protocol_version=21)
)


class Transport(asyncio.Transport):
    """Records written frames, and whether reading is paused."""

    def __init__(self, peername: tuple[str, int] | None = ("10.0.0.9", 4711)) -> None:
        super().__init__({"peername": peername})
        self.writes: list[bytes] = []
        self.unsent_bytes = 0
        self.reading = True
        self.limits: tuple[int | None, int | None] = (None, None)
        self.closed = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Rig:
    """A connection of a broker, over a transport."""

    def __init__(self, service: BrokerService, transport: Transport | None = None) -> None:
        self.service = service
        self.transport = transport or Transport()
        self.session = Session(service, HANDLERS)
        self.connection = Connection(self.session, FRAME_BYTES_MAX)
        self.connection.connection_made(self.transport)

    def receives(self, data: bytes) -> None:
        while data:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            del buffer
            self.connection.buffer_updated(count)
            data = data[count:]

    def connects(self) -> "Rig":
        self.receives(CONNECT)
        return self

    async def sent(self) -> list[bytes]:
        """The system calls of this turn of the loop."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writes = self.transport.writes.copy()
        self.transport.writes.clear()
        return writes


def rigged(test: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        async with broker() as w:
            await test(Rig(w.service).connects())

    virtual(main())


# -- writing


def test_frames_are_written_at_once_unless_the_cork_is_held() -> None:
    async def test(rig: Rig) -> None:
        rig.transport.writes.clear()
        rig.connection.send(b"a")
        rig.connection.send_parts([b"b", b"c"])
        assert rig.transport.writes == [b"a", b"bc"]

    rigged(test)


def test_small_frames_under_the_cork_are_written_in_order_by_one_call() -> None:
    async def test(rig: Rig) -> None:
        rig.transport.writes.clear()
        connection, writes = rig.connection, rig.transport.writes
        with cork:
            connection.send(b"a")
            with cork:
                connection.send(b"b")
            assert writes == [], "the outer one is held"
        assert writes == [b"ab"]
        large = bytes(GATHERED_FRAME_BYTES_MAX + 1)
        with cork:
            connection.send(b"c")
            connection.send(large)
            assert writes.pop() == b"c" + large, "`writable` must count it"
            connection.send(b"d")
            connection.send_parts([b"e", b"f"])
            assert writes.pop() == b"def", "dispatchers read `writable` next"
            connection.send(b"g")
        assert writes == [b"ab", b"g"]

    rigged(test)


def test_the_cork_writes_nothing_to_a_connection_that_ended_meanwhile() -> None:
    async def test(rig: Rig) -> None:
        other = Rig(rig.service).connects()
        rig.transport.writes.clear()
        other.transport.writes.clear()
        with cork:
            rig.connection.send(b"a")
            other.connection.send(b"b")
            rig.connection.connection_lost(None)
            rig.connection.send(b"late")
        assert (rig.transport.writes, other.transport.writes) == ([], [b"b"])

    rigged(test)


def test_closing_sends_what_is_queued_and_nothing_after_it_and_does_not_wait_for_ever() -> None:
    async def test(rig: Rig) -> None:
        await rig.sent()
        with cork:
            rig.connection.send(b"last")
            rig.connection.close()
        assert (rig.transport.writes, rig.transport.closed) == ([b"last"], True)
        rig.connection.send(b"late")
        rig.connection.send_parts([b"late"])
        rig.connection.close()
        rig.connection.pause_reading()
        assert rig.transport.reading, "it reads nothing more anyway"
        rig.connection.resume_reading()
        await asyncio.sleep(CLOSE_TIMEOUT_S * 0.9)
        assert rig.transport.writes == [b"last"]
        assert not rig.transport.aborted
        await asyncio.sleep(CLOSE_TIMEOUT_S * 0.2)
        assert rig.transport.aborted

    rigged(test)


def test_a_lost_connection_writes_and_reads_nothing_more() -> None:
    async def test(rig: Rig) -> None:
        await rig.sent()
        with cork:
            rig.connection.send(b"queued")
            rig.connection.connection_lost(None)
        assert rig.connection.closed
        assert rig.session not in rig.service.sessions
        rig.connection.send(b"late")
        rig.connection.pause_reading()
        rig.connection.resume_reading()
        rig.connection.check_deadlines(asyncio.get_running_loop().time() + 1_000)
        rig.connection.close()
        assert await rig.sent() == []
        assert (rig.transport.reading, rig.transport.closed) == (True, False)

    rigged(test)


# -- reading


def test_commands_are_decoded_regardless_of_read_boundaries() -> None:
    async def test(rig: Rig) -> None:
        await rig.sent()
        rig.connection.heard = False
        rig.receives(PING_FRAME[:3])
        assert rig.connection.heard
        assert await rig.sent() == []
        rig.receives(PING_FRAME[3:] + PING_FRAME + PING_FRAME[:1])
        assert await rig.sent() == [PONG_FRAME * 2]
        rig.receives(PING_FRAME[1:])
        assert await rig.sent() == [PONG_FRAME]
        assert not rig.connection.eof_received(), "the transport closes itself"

    rigged(test)


def test_bytes_after_the_close_of_a_connection_are_ignored() -> None:
    async def test(rig: Rig) -> None:
        await rig.sent()
        rig.connection.close()
        rig.receives(PING_FRAME)
        assert await rig.sent() == []

    rigged(test)


def test_a_malformed_stream_ends_after_the_answers_to_earlier_commands() -> None:
    async def test(rig: Rig) -> None:
        await rig.sent()
        rig.receives(PING_FRAME + b"\xff" * 8)
        assert (rig.transport.writes, rig.transport.closed) == ([PONG_FRAME], True)

    rigged(test)


def test_a_peer_is_known_by_its_address_and_one_without_is_served_all_the_same() -> None:
    async def main() -> None:
        async with broker() as w:
            known = Rig(w.service)
            assert known.session.link.address == "/10.0.0.9:4711"
            assert known.transport.limits == (WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES)
            unknown = Rig(w.service, Transport(None))
            assert unknown.session.link.address == "/unknown:0"
            assert w.service.sessions == {known.session, unknown.session}

    virtual(main())


def test_a_frame_of_the_largest_size_is_taken_and_a_larger_one_ends_the_connection() -> None:
    async def main() -> None:
        async with broker() as w:
            frame_bytes_max = 5_000 + FRAME_OVERHEAD_BYTES_MAX
            for size, closed in ((frame_bytes_max, False), (frame_bytes_max + 1, True)):
                rig = Rig(w.service)
                rig.connection = Connection(rig.session, frame_bytes_max)
                rig.connection.connection_made(rig.transport)
                rig.connects()
                rig.receives((size - 4).to_bytes(4) + b"\x00\x00\x00\x02")
                assert rig.connection.closed is closed

    virtual(main())


@pytest.mark.parametrize("over", [0, 1])
def test_a_client_that_asks_on_and_reads_nothing_is_not_read_from(over: int) -> None:
    async def test(rig: Rig) -> None:
        rig.connection.pause_writing()
        assert not rig.session.link.writable
        rig.transport.unsent_bytes = UNREAD_BYTES_MAX + over
        rig.receives(PING_FRAME)
        assert rig.transport.reading is (not over)
        rig.receives(PING_FRAME)  # it was under way
        rig.connection.resume_writing()
        assert rig.transport.reading
        assert rig.session.link.writable

    rigged(test)


def test_a_client_that_reads_may_have_much_under_way() -> None:
    async def test(rig: Rig) -> None:
        rig.transport.unsent_bytes = UNREAD_BYTES_MAX * 2
        rig.receives(PING_FRAME)
        assert rig.transport.reading

    rigged(test)


def test_reading_resumes_only_once_both_reasons_have_ended() -> None:
    async def test(rig: Rig) -> None:
        connection, transport = rig.connection, rig.transport
        transport.unsent_bytes = UNREAD_BYTES_MAX + 1

        def unread() -> None:
            connection.pause_writing()
            rig.receives(PING_FRAME)

        unread()
        connection.pause_reading()
        assert not transport.reading
        connection.resume_writing()
        assert not transport.reading, "the budget still holds it"
        connection.resume_reading()
        assert transport.reading
        connection.pause_reading()
        unread()
        connection.resume_reading()
        assert not transport.reading, "its answers are still unread"
        connection.resume_writing()
        assert transport.reading
        unread()
        connection.close()
        connection.resume_writing()
        assert not transport.reading, "it is closed"

    rigged(test)


# -- deadlines


def test_a_client_has_a_time_to_connect_whatever_else_it_sends() -> None:
    async def main() -> None:
        async with broker() as w:
            await asyncio.sleep(100)
            rig = Rig(w.service)
            opened = asyncio.get_running_loop().time()
            rig.receives(PING_FRAME)
            rig.connection.check_deadlines(opened + CONNECT_TIMEOUT_S)
            assert not rig.connection.closed
            rig.connection.check_deadlines(opened + CONNECT_TIMEOUT_S + 0.001)
            assert rig.connection.closed
            other = Rig(w.service).connects()
            other.connection.check_deadlines(opened + 10 * CONNECT_TIMEOUT_S)
            assert not other.connection.closed, "between two frames it may be silent"

    virtual(main())


def test_a_frame_that_does_not_grow_ends_its_connection_and_one_that_does_lives() -> None:
    async def test(rig: Rig) -> None:
        now = 100.0
        large = frames.send(1, 0, frames.entry(payload=bytes(10 * PROGRESS_BYTES_MIN)))
        rig.receives(large[: PROGRESS_BYTES_MIN + 1])
        rig.connection.check_deadlines(now)
        rig.receives(large[PROGRESS_BYTES_MIN + 1 : 2 * PROGRESS_BYTES_MIN + 1])
        rig.connection.check_deadlines(now + FRAME_STALL_S)
        rig.connection.check_deadlines(now + 2 * FRAME_STALL_S)
        assert not rig.connection.closed
        rig.connection.check_deadlines(now + 2 * FRAME_STALL_S + 0.001)
        assert rig.connection.closed

    rigged(test)


@pytest.mark.parametrize("why", ["budget", "unread"])
def test_a_connection_that_is_not_read_from_is_never_late(why: str) -> None:
    async def test(rig: Rig) -> None:
        rig.receives(PING_FRAME[:5])
        rig.connection.check_deadlines(100)
        if why == "budget":
            rig.connection.pause_reading()
        else:
            rig.connection.pause_writing()
            rig.transport.unsent_bytes = UNREAD_BYTES_MAX + 1
            rig.receives(PING_FRAME[5:] + PING_FRAME[:5])
        rig.connection.check_deadlines(100 + 2 * FRAME_STALL_S)
        assert not rig.connection.closed
        if why == "budget":
            rig.connection.resume_reading()
        else:
            rig.connection.resume_writing()
        # The deadline restarts here.
        rig.connection.check_deadlines(100 + 3 * FRAME_STALL_S)
        rig.connection.check_deadlines(100 + 4 * FRAME_STALL_S)
        assert not rig.connection.closed
        rig.connection.check_deadlines(100 + 4 * FRAME_STALL_S + 0.001)
        assert rig.connection.closed

    rigged(test)


def test_the_deadlines_of_every_connection_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT_S", -1.0)

    async def main() -> None:
        async with broker() as w:
            rigs = [Rig(w.service) for _ in range(2)]
            await w.service._close_unfinished()
            assert [each.connection.closed for each in rigs] == [True, True]
            assert all(cast("Any", each.transport).closed for each in rigs)

    virtual(main())
