"""When a bookie's server holds frames back or keeps memory, and when it stops."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.memory_bookie import MemoryBookie
from tests.support.sim_disk import SimDisk, SimIndexStore
from tests.unit.bookie.conftest import DATA, SMALL, add, open_sim
from tests.unit.bookie.net.peers import HOST, IDENTITY, Peer, connected, serving, until
from tests.unit.bookie.net.test_server import SlowBookie, alive

from magnetar.bookie.api import LedgerEnd, OnAdded, StoredEntry
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net import server as server_module
from magnetar.bookie.net.connection import BookieConnection
from magnetar.bookie.net.protocol_v1 import Added, Entries, Frame
from magnetar.bookie.net.requests import REQUESTS_RUNNING_MAX
from magnetar.bookie.net.server import PENDING_BYTES_HIGH, BookieServer
from magnetar.bookie.net.settings import ServerSettings


async def test_server_resumes_after_a_missed_low_water_call() -> None:
    bookie = SlowBookie()
    server = BookieServer(bookie, pressure=bookie, settings=ServerSettings(sweep_s=0.01))
    await server.start(host="127.0.0.1")
    try:
        async with connected(server) as peer:
            bookie.pending_bytes = PENDING_BYTES_HIGH
            peer.add(1)
            await until(lambda: server.held)
            bookie.pending_bytes = 0  # and nobody calls
            await alive(server)
            assert not server.held
            bookie.waiting[0](None)
            assert await peer.frame() == Added(0, 1, 1)
    finally:
        await server.stop()


async def test_server_stays_held_until_the_bookie_has_room() -> None:
    """Each sweep would otherwise let every client send another group."""
    bookie = SlowBookie()
    server = BookieServer(bookie, pressure=bookie, settings=ServerSettings(sweep_s=1000.0))
    await server.start(host="127.0.0.1")
    try:
        async with connected(server) as peer:
            bookie.pending_bytes = PENDING_BYTES_HIGH
            peer.add(1)
            await until(lambda: server.held)
            bookie.pending_bytes = PENDING_BYTES_HIGH + 1
            for _ in range(3):
                server._sweep()
                assert server.held
            bookie.pending_bytes = PENDING_BYTES_HIGH
            server._sweep()
            assert not server.held
            bookie.waiting[0](None)
            assert await peer.frame() == Added(0, 1, 1)
    finally:
        await server.stop()


async def test_a_connection_that_opens_as_the_bookie_gets_room_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All held connections are resumed in the turn in which the new one is to be held."""
    bookie, loop = SlowBookie(), asyncio.get_running_loop()
    server = BookieServer(bookie, pressure=bookie, settings=ServerSettings(sweep_s=1000.0))
    await server.start(host="127.0.0.1")
    try:
        async with connected(server) as peer:
            bookie.pending_bytes = PENDING_BYTES_HIGH
            peer.add(1)
            await until(lambda: server.held)
            opened = server.opened

            def with_room(connection: BookieConnection) -> bool:
                loop.call_soon(bookie.low[0])
                return opened(connection)

            monkeypatch.setattr(server, "opened", with_room)
            await alive(server)
            assert not server.held
            bookie.waiting[0](None)
            assert await peer.frame() == Added(0, 1, 1)
    finally:
        await server.stop()


async def test_a_connection_that_opens_while_the_bookie_has_no_room_waits() -> None:
    bookie = SlowBookie()
    server = BookieServer(bookie, pressure=bookie, settings=ServerSettings(sweep_s=1000.0))
    await server.start(host="127.0.0.1")
    try:
        async with connected(server) as peer:
            bookie.pending_bytes = PENDING_BYTES_HIGH
            peer.add(1)
            await until(lambda: server.held)
            async with connected(server, hello=False) as other:
                await until(lambda: len(server.connections) == 2)
                other.hello()
                other.add(1, ledger_id=2)
                for _ in range(20):
                    await asyncio.sleep(0.001)
                assert len(bookie.waiting) == 1
                bookie.low[0]()
                assert isinstance(await other.frame(), Frame)
                await until(lambda: len(bookie.waiting) == 2)
    finally:
        await server.stop()


async def test_reads_continue_after_a_journal_failure_under_load() -> None:
    disk = SimDisk()
    settings = replace(SMALL, journal_queue_bytes_low=1000)
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), settings)
    assert await add(bookie, 1, range(3)) is None
    server = BookieServer(bookie, pressure=bookie, settings=ServerSettings(sweep_s=1000.0))
    await server.start(host="127.0.0.1")
    try:
        async with connected(server, hello=False) as peer:
            peer.hello(bookie.identity)
            assert isinstance(await peer.frame(), Frame)
            bookie._journal.hold()
            bodies = [bytes(1 << 20)] * (PENDING_BYTES_HIGH >> 20)
            for number, body in enumerate((*bodies, bytes(1)), 1):
                peer.add(number, 2, [body])
            await until(lambda: server.held)
            disk.fault = lambda _, path: (
                OSError(5, "Input/output error") if path.suffix == ".journal" else None
            )
            bookie._journal.release()
            await until(lambda: not server.held)
            async with connected(server, hello=False) as another:
                another.hello(bookie.identity)
                assert isinstance(await another.frame(), Frame)
                another.say(protocol.READ, 1, messages.encode_read(1, 0, 2, 1000))
                result = await another.frame()
                assert isinstance(result, Entries)
                assert result.entry_ids == range(3)
    finally:
        await server.stop()
        disk.fault = None
        await bookie.close()


async def test_fence_begins_before_later_frames_under_load() -> None:
    bookie = SlowBookie()
    bookie.may_read.clear()
    refused: list[int] = []

    class Fencing(SlowBookie):
        fenced = False

        async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
            self.fenced |= fence
            await bookie.may_read.wait()
            return LedgerEnd(-1, -1, self.fenced, 0)

        async def read_entries(
            self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
        ) -> list[StoredEntry]:
            self.fenced |= fence
            return await bookie.read_entries(ledger_id, first, last, bytes_max=bytes_max)

        def add_entries(
            self,
            ledger_id: int,
            entry_ids: Sequence[int],
            entries: Sequence[bytes],
            *,
            last_add_confirmed: int,
            on_added: OnAdded,
            recovery: bool = False,
        ) -> None:
            assert self.fenced
            refused.append(ledger_id)
            on_added(None)

    async with serving(Fencing()) as server, connected(server) as peer:
        for id_ in range(REQUESTS_RUNNING_MAX):
            peer.say(protocol.READ, id_ + 1, messages.encode_read(1, 0, 3, 2 << 20))
        peer.say(protocol.LEDGER_END, 100, messages.encode_ledger(2), protocol.FLAG_FENCE)
        peer.add(1)
        assert await peer.frame() == Added(0, 1, 1)
        # This fence may answer more bytes than are free: later frames wait until it begins.
        peer.say(protocol.READ, 101, messages.encode_read(2, 0, 3, 8 << 20), protocol.FLAG_FENCE)
        peer.add(2)
        (connection,) = server.connections
        await until(lambda: connection._requests.fences_due == 1)
        assert len(refused) == 1
        bookie.may_read.set()
        answers = [await peer.frame() for _ in range(REQUESTS_RUNNING_MAX + 3)]
        assert Added(0, 2, 1) in answers
        assert len(refused) == 2


async def test_memory_of_incomplete_frames_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "RECEIVING_BYTES_MAX", 3 << 20)
    frame = protocol.encode_frame(protocol.ADD, 0, 1, bytes(32), 8 << 20)
    async with serving() as server, connected(server) as small, connected(server) as large:
        small.send(frame, bytes(100))
        await until(lambda: server.receiving_bytes > 0)
        large.send(frame, bytes(6 << 20))
        failure = await large.failure(protocol.CLOSING)
        assert "too many large frames" in failure.message
        await until(lambda: len(server.connections) == 1)
        assert 0 < server.receiving_bytes < 3 << 20
        small.close()
        await until(lambda: not server.connections)
        assert server.receiving_bytes == 0


async def test_frame_without_progress_ends_its_connection() -> None:
    async with serving(frame_stall_s=0.05, sweep_s=0.01) as server:
        many = [await asyncio.open_connection(HOST, server.port) for _ in range(20)]
        peers = [Peer(*streams) for streams in many]
        for peer in peers:
            peer.hello()
            assert isinstance(await peer.frame(), Frame)
            peer.send(protocol.encode_frame(protocol.READ, 0, 1, bytes(32))[:-3])
        for peer in peers:
            assert "did not grow" in (await peer.failure(protocol.CLOSING)).message
            assert await peer.frame() is None
            peer.close()
        await alive(server)


async def test_a_busy_client_is_never_late() -> None:
    """Each sweep sees the same number of bytes, but of another frame."""
    async with serving(frame_stall_s=1.0, sweep_s=1000.0) as server, connected(server) as peer:
        (connection,) = server.connections
        now = asyncio.get_running_loop().time()
        ping = protocol.encode_frame(protocol.PING, 0, 1)
        peer.send(ping[:5])
        for _ in range(5):
            peer.send(ping[5:] + ping[:5])
            answer = await peer.frame()
            assert isinstance(answer, Frame)
            assert answer.kind == protocol.PONG
            connection.check_deadlines(now)
            assert not connection.closed
            now += 1.5
        connection.check_deadlines(now)
        assert "did not grow" in (await peer.failure(protocol.CLOSING)).message


async def test_trickling_hello_is_late() -> None:
    async with (
        serving(hello_timeout_s=0.1, sweep_s=0.01) as server,
        connected(server, hello=False) as peer,
    ):
        hello = protocol.encode_frame(protocol.HELLO, 0, 0, bytes(40))

        async def trickle() -> None:
            for byte in hello[:-1]:
                peer.send(bytes((byte,)))
                await asyncio.sleep(0.02)

        trickling = asyncio.ensure_future(trickle())
        assert "no hello" in (await peer.failure(protocol.CLOSING)).message
        trickling.cancel()


async def test_exception_in_an_add_ends_its_connection() -> None:
    class Buggy(MemoryBookie):
        def add_entries(self, *_: object, **__: object) -> None:
            raise RuntimeError("a bug")

    async with serving(Buggy(*IDENTITY)) as server, connected(server) as peer:
        peer.add(1)
        assert "a bug" in (await peer.failure(protocol.CLOSING)).message
        assert await peer.frame() is None
        await alive(server)
