"""A bookie's server: misbehaving peers affect only their own connections."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.support.memory_bookie import MemoryBookie
from tests.unit.bookie.net.peers import DEADLINE_S, IDENTITY, Peer, connected, serving, until

from magnetar.bookie.api import (
    BookieIdentity,
    BookieReadOnly,
    EntryProofs,
    LedgerEnd,
    OnAdded,
    StoredEntry,
)
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.protocol_v1 import Added, Entries, Frame
from magnetar.bookie.net.requests import REQUESTS_RUNNING_MAX, REQUESTS_WAITING_MAX
from magnetar.bookie.net.server import PENDING_BYTES_HIGH, BookieServer
from magnetar.bookie.packed import PackedEntries


class SlowBookie(MemoryBookie):
    """A bookie that answers on the test's command."""

    def __init__(self) -> None:
        super().__init__(*IDENTITY)
        self.waiting: list[OnAdded] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.reads = 0
        self.reads_at_once = 0
        self.pending_bytes = 0
        self.low: list[Callable[[], None]] = []

    def notify_low(self, callback: Callable[[], None]) -> None:
        self.low.append(callback)

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
        self.pending_bytes += sum(map(len, entries))
        self.waiting.append(on_added)

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        self.reads += 1
        self.reads_at_once = max(self.reads_at_once, self.reads)
        await self.may_read.wait()
        self.reads -= 1
        return [StoredEntry(first, bytes(bytes_max))]


async def alive(server: BookieServer) -> None:
    """Checks that another client is still served."""
    async with connected(server) as other:
        other.say(protocol.PING, 5)
        pong = await other.frame()
        assert isinstance(pong, Frame)
        assert (pong.kind, pong.id) == (protocol.PONG, 5)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
        bytes(200),
        b"\xff" * 200,
        protocol.encode_frame(protocol.ADD, 0, 1, bytes(31)),
        protocol.encode_frame(protocol.ADD, 0, 1, bytes(32), (1 << 32) - 1),
        protocol.encode_frame(protocol.PONG, 0, 1),
        protocol.encode_frame(protocol.HELLO, 0, 0, bytes(40)),
        protocol.encode_frame(protocol.PING, 0, 1) + b"\0" * 24,
    ],
)
@pytest.mark.parametrize("hello", [True, False])
async def test_garbage_ends_its_own_connection_only(garbage: bytes, hello: bool) -> None:
    async with serving() as server, connected(server, hello=hello) as peer:
        peer.send(garbage)
        last: object = None
        while (frame := await peer.frame()) is not None:
            last = frame
        assert isinstance(last, Frame)
        assert last.kind == protocol.CLOSING
        assert "closed" in messages.decode_failure(last.payload).message
        await alive(server)


async def test_an_add_whose_body_is_damaged_is_refused_and_the_connection_closed() -> None:
    bookie = MemoryBookie(*IDENTITY)
    async with serving(bookie) as server, connected(server) as peer:
        peer.add(1)
        assert isinstance(await peer.frame(), Added)
        group = PackedEntries([b"sent"], (b"other",), 5, 77, b"")
        peer.send(protocol.encode_add(2, 1, -1, range(5, 6), group, recovery=False), b"other")
        assert "CRC" in (await peer.failure(protocol.CLOSING)).message
        assert await peer.frame() is None
        assert (await bookie.ledger_end(1)).last_entry == 10


async def test_incomplete_frame_blocks_no_other_connection_and_times_out() -> None:
    async with serving(idle_timeout_s=0.02, sweep_s=0.01) as server, connected(server) as peer:
        peer.send(protocol.encode_frame(protocol.READ, 0, 1, bytes(32))[:-3])
        await alive(server)
        assert "too long" in (await peer.failure(protocol.CLOSING)).message
        assert await peer.frame() is None


async def test_client_without_a_hello_is_disconnected() -> None:
    async with (
        serving(hello_timeout_s=0.02, sweep_s=0.01) as server,
        connected(server, hello=False) as peer,
    ):
        assert "no hello" in (await peer.failure(protocol.CLOSING)).message
        assert await peer.frame() is None


async def test_another_incarnation_another_version_and_a_second_hello_are_refused() -> None:
    async with serving() as server:
        async with connected(server, hello=False) as peer:
            peer.hello(BookieIdentity("b1", "two"))
            failure = await peer.failure(protocol.CLOSING)
            assert failure.code == messages.CODE_OTHER_BOOKIE
            assert "another incarnation" in failure.message
            assert await peer.frame() is None
        async with connected(server, hello=False) as peer:
            peer.hello(version_min=7, version_max=9)
            assert (await peer.failure(protocol.CLOSING)).code == messages.CODE_VERSION
        async with connected(server, hello=False) as peer:
            peer.hello(version_min=1, version_max=9)
            welcome = await peer.frame()
            assert isinstance(welcome, Frame)
            assert messages.decode_welcome(welcome.payload).version == 1
            peer.hello()
            await peer.failure(protocol.CLOSING)


async def test_a_request_of_a_newer_client_is_answered_as_unknown() -> None:
    async with serving() as server, connected(server) as peer:
        peer.say(0x30, 8, b"whatever")
        failure = await peer.failure(protocol.FAILED)
        assert failure.code == messages.CODE_UNKNOWN_KIND
        peer.say(protocol.PING, 9)
        assert isinstance(await peer.frame(), Frame)


async def test_adds_are_answered_in_order_when_the_bookie_is_slow() -> None:
    bookie = SlowBookie()
    async with serving(bookie) as server, connected(server) as peer:
        for number in range(1, 6):
            peer.add(number, ledger_id=number)
        await until(lambda: len(bookie.waiting) == 5)
        for number in (2, 4, 3):
            bookie.waiting[number - 1](None)
        peer.say(protocol.PING, 1)
        pong = await peer.frame()
        assert isinstance(pong, Frame)
        assert pong.kind == protocol.PONG
        bookie.waiting[0](BookieReadOnly("full"))
        bookie.waiting[4](None)
        refused = await peer.frame()
        assert isinstance(refused, Frame)
        assert (refused.kind, refused.id) == (protocol.ADD_FAILED, 1)
        assert messages.decode_failure(refused.payload).code == messages.CODE_READ_ONLY
        assert await peer.frame() == Added(0, 2, 4)


async def test_a_hole_in_the_numbers_of_adds_ends_the_connection() -> None:
    async with serving() as server, connected(server) as peer:
        peer.add(2)
        assert "is due" in (await peer.failure(protocol.CLOSING)).message


async def test_adds_are_refused_while_add_refusal_is_set() -> None:
    async with serving() as server, connected(server) as peer:
        server.add_refusal = BookieReadOnly("no lease")
        peer.add(1)
        refused = await peer.frame()
        assert isinstance(refused, Frame)
        assert refused.flags == protocol.FLAG_READ_ONLY
        assert messages.decode_failure(refused.payload).message == "no lease"
        server.add_refusal = None
        peer.add(2)
        assert await peer.frame() == Added(0, 2, 1)


async def test_full_bookie_gets_no_adds_until_low_water() -> None:
    bookie = SlowBookie()
    server = BookieServer(bookie, pressure=bookie)
    await server.start(host="127.0.0.1")
    try:
        async with connected(server) as peer:
            bookie.pending_bytes = PENDING_BYTES_HIGH
            peer.add(1)
            await until(lambda: server.held)
            for number in range(2, 40):
                peer.add(number, entries=[bytes(100_000)])
            async with connected(server, hello=False) as other:
                other.hello()
                for _ in range(100):
                    await asyncio.sleep(0)
                assert len(bookie.waiting) == 1
                bookie.pending_bytes = 0
                bookie.low.pop()()
                assert isinstance(await other.frame(), Frame)
            await until(lambda: len(bookie.waiting) == 39)
    finally:
        bookie.may_read.set()
        for on_added in bookie.waiting:
            on_added(None)
        await server.stop()


async def test_running_reads_are_bounded_and_others_wait() -> None:
    bookie = SlowBookie()
    bookie.may_read.clear()
    async with serving(bookie) as server, connected(server) as peer:
        total = REQUESTS_RUNNING_MAX + REQUESTS_WAITING_MAX
        for id_ in range(total + 1):
            peer.say(protocol.READ, id_, messages.encode_read(1, id_, id_, 10))
        refused = await peer.frame()
        assert isinstance(refused, Frame)
        assert refused.id == total
        assert messages.decode_failure(refused.payload).code == messages.CODE_UNAVAILABLE
        bookie.may_read.set()
        result = [await peer.frame() for _ in range(total)]
        assert {frame.id for frame in result if isinstance(frame, Entries)} == set(range(total))
        assert bookie.reads_at_once == REQUESTS_RUNNING_MAX


async def test_reads_pause_for_a_peer_that_does_not_read() -> None:
    bookie = SlowBookie()
    async with (
        serving(bookie, unread_timeout_s=0.2, sweep_s=0.05) as server,
        connected(server) as peer,
    ):
        peer.rest()
        for id_ in range(200):
            peer.say(protocol.READ, id_, messages.encode_read(1, 0, 0, 8 << 20))
        (connection,) = server.connections
        await until(lambda: connection.unread)
        assert len(server.tasks) + bookie.reads <= 2 * REQUESTS_RUNNING_MAX
        await alive(server)
        await until(lambda: connection.closed)


async def test_connections_are_bounded() -> None:
    async with serving(connections_max=1) as server, connected(server):
        async with connected(server, hello=False) as second:
            assert "no more connections" in (await second.failure(protocol.CLOSING)).message
            assert await second.frame() is None
        assert server.connections_refused == 1


async def test_stop_answers_received_requests() -> None:
    bookie = SlowBookie()
    async with serving(bookie) as server, connected(server) as peer:
        bookie.may_read.clear()
        peer.add(1)
        peer.say(protocol.READ, 3, messages.encode_read(1, 0, 0, 10))
        await until(lambda: bookie.reads == 1)
        stopping = asyncio.ensure_future(server.stop())
        assert "stopping" in (await peer.failure(protocol.CLOSING)).message
        peer.add(2)
        bookie.waiting[0](None)
        assert await peer.frame() == Added(0, 1, 1)
        bookie.may_read.set()
        assert isinstance(await peer.frame(), Entries)
        assert await peer.frame() is None
        await asyncio.wait_for(stopping, DEADLINE_S)
        assert len(bookie.waiting) == 1


async def test_failure_inside_the_bookie_is_answered() -> None:
    class Broken(MemoryBookie):
        async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
            raise RuntimeError("a bug")

    async with serving(Broken(*IDENTITY)) as server, connected(server) as peer:
        peer.say(protocol.LEDGER_END, 1, messages.encode_ledger(1))
        assert "a bug" in (await peer.failure(protocol.FAILED)).message
        await alive(server)


async def test_a_list_of_ledgers_comes_in_pages() -> None:
    bookie = MemoryBookie(*IDENTITY)
    for ledger_id in range(10):
        bookie.add_entries(
            ledger_id, range(1), [b"x"], last_add_confirmed=-1, on_added=lambda _: None
        )
    async with serving(bookie) as server, connected(server) as peer:
        result: list[int] = []
        more = True
        while more:
            after = result[-1] if result else -1
            peer.say(protocol.LIST, 1, messages.encode_list(after, 4))
            frame = await peer.frame()
            assert isinstance(frame, Frame)
            page, more = messages.decode_ledgers(frame.payload)
            result += page
        assert result == list(range(10))


async def test_proofs_are_requested_in_steps() -> None:
    asked: list[int] = []

    class Counting(MemoryBookie):
        async def prove_entries(
            self, ledger_id: int, first: int, last: int, *, count_max: int
        ) -> EntryProofs:
            asked.append(first)
            return await super().prove_entries(ledger_id, first, last, count_max=count_max)

    bookie = Counting(*IDENTITY)
    entries = [b"%d" % id_ for id_ in range(150)]
    bookie.add_entries(1, range(150), entries, last_add_confirmed=-1, on_added=lambda _: None)
    async with serving(bookie) as server, connected(server) as peer:
        peer.say(protocol.PROVE, 1, messages.encode_prove(1, 0, 1000, 160))
        frame = await peer.frame()
        assert isinstance(frame, Frame)
        proofs, next_entry = messages.decode_proofs(frame.payload)
        assert [proof.entry_id for proof in proofs] == list(range(150))
        assert next_entry == 160
        assert asked == [0, 64, 128]


async def test_peer_may_disconnect_at_any_time(caplog: pytest.LogCaptureFixture) -> None:
    bookie = SlowBookie()
    bookie.may_read.clear()
    async with serving(bookie) as server:
        async with connected(server) as peer:
            peer.add(1)
            peer.say(protocol.READ, 1, messages.encode_read(1, 0, 0, 10))
            await until(lambda: bookie.reads == 1)
            _reset(peer)
        await until(lambda: not server.connections)
        bookie.waiting[0](None)
        bookie.may_read.set()
        await alive(server)
    assert not caplog.records


def _reset(peer: Peer) -> None:
    peer.writer.transport.abort()
