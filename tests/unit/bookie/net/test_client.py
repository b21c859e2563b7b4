"""RemoteBookie against bookies that die, hang, are late, lie, or have another identity."""

import asyncio
import gc
import socket
from collections.abc import Coroutine, Iterator
from random import Random

import pytest
from tests.support.memory_bookie import MemoryBookie
from tests.unit.bookie.net.peers import (
    DEADLINE_S,
    HOST,
    IDENTITY,
    Adding,
    Peer,
    greeted,
    next_add,
    pretending,
    remote,
    serving,
    until,
)

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    BookieLate,
    BookieUnavailable,
    NoSuchLedger,
)
from magnetar.bookie.net import client as client_module
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.protocol_v1 import Frame

SOON_S = 0.3
"""A deadline that a test waits for."""


@pytest.fixture(autouse=True)
def no_lost_exceptions(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails on exceptions of futures and tasks that were never retrieved."""
    yield
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_unreachable_bookie_fails_requests() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    async with remote(port, retry_s_min=60.0, retry_s_max=60.0) as bookie:
        adding = Adding(bookie)
        adding.add(0)
        adding.add(1)
        assert await adding.count(2) == [(0, BookieUnavailable), (1, BookieUnavailable)]
        with pytest.raises(BookieUnavailable, match=r"no connection: .*; tried again in"):
            await bookie.read_entries(1, 0, 0, bytes_max=1)
        adding.add(2)
        assert len(adding.answers) == 2, "nobody is called back from inside the call"
        await adding.count(3)


async def test_back_off_doubles_and_is_jittered() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    bookie = RemoteBookie(IDENTITY, HOST, port, random=Random(1))
    loop = asyncio.get_running_loop()
    pauses = []
    for _ in range(8):
        with pytest.raises(BookieUnavailable):
            await bookie.ping()
        pauses.append(bookie.retry_at - loop.time())
        bookie.retry_at = 0.0
    assert all(0 < pause <= bookie.settings.retry_s_max for pause in pauses)
    assert pauses[6] > 8 * pauses[0]
    await bookie.close()


async def test_adds_before_the_connection_are_sent_once_it_opens() -> None:
    memory = MemoryBookie(*IDENTITY)
    async with serving(memory) as server, remote(server.port) as bookie:
        adding = Adding(bookie)
        for entry_id in range(5):
            adding.add(entry_id)
        assert not bookie.connected
        assert await adding.count(5) == [(entry_id, None) for entry_id in range(5)]
        assert bookie.pending_bytes == 0
        assert (await bookie.ledger_end(1)).last_entry == 4


async def test_adds_of_one_turn_are_sent_in_one_call() -> None:
    sizes: list[int] = []

    async def count_reads(peer: Peer) -> None:
        await greeted(peer)
        await peer.frame()
        peer.say(protocol.PONG, 1)
        while sum(sizes) < 100 * (56 + 50):
            sizes.append(len(await peer.reader.read(1 << 20)))
        peer.send(protocol.encode_added(0, 1, 100))
        await peer.frame()

    async with pretending(count_reads) as (port, _), remote(port) as bookie:
        await bookie.ping()
        adding = Adding(bookie)
        for entry_id in range(100):
            adding.add(entry_id, b"y" * 50)
        await adding.count(100)
        assert len(sizes) == 1


async def test_a_bookie_that_dies_fails_what_is_pending_in_order_and_the_next_add_reconnects() -> (
    None
):
    async def answer_two_then_die(peer: Peer) -> None:
        await greeted(peer)
        for _ in range(5):
            await next_add(peer)
        peer.send(protocol.encode_added(0, 1, 2))

    async with (
        pretending(answer_two_then_die) as (port, peers),
        remote(port, timeout_s=SOON_S) as bookie,
    ):
        adding = Adding(bookie)
        for entry_id in range(5):
            adding.add(entry_id)
        assert await adding.count(5) == [
            (0, None),
            (1, None),
            *((entry_id, BookieUnavailable) for entry_id in (2, 3, 4)),
        ]
        adding.add(5)
        await until(lambda: len(peers) == 2)


async def test_an_add_made_in_a_failed_completion_goes_to_a_new_connection() -> None:
    async def die_once(peer: Peer) -> None:
        await greeted(peer)
        await next_add(peer)
        if len(peers) > 1:
            peer.send(protocol.encode_added(0, 1, 1))
            await next_add(peer)

    async with pretending(die_once) as (port, peers), remote(port) as bookie:
        answers: list[BookieError | None] = []
        done = asyncio.Event()

        def again(error: BookieError | None) -> None:
            answers.append(error)
            if error is None:
                done.set()
                return
            bookie.add_entries(1, range(1), [b"x"], last_add_confirmed=-1, on_added=again)

        again(BookieUnavailable("begin"))
        await asyncio.wait_for(done.wait(), DEADLINE_S)
        assert [type(answer) for answer in answers] == [
            BookieUnavailable,
            BookieUnavailable,
            type(None),
        ]


async def test_hanging_bookie_is_disconnected() -> None:
    async def hang(peer: Peer) -> None:
        await greeted(peer)
        await asyncio.Event().wait()

    async with pretending(hang) as (port, _), remote(port, timeout_s=SOON_S) as bookie:
        adding = Adding(bookie)
        adding.add(0)
        adding.add(1)
        with pytest.raises(BookieLate, match="no answer within"):
            await bookie.ledger_end(1)
        assert await adding.count(2) == [(0, BookieLate), (1, BookieLate)]
        assert not bookie.connected


async def test_bookie_without_a_welcome_is_disconnected() -> None:
    async def hang(peer: Peer) -> None:
        await asyncio.Event().wait()

    async with pretending(hang) as (port, _), remote(port, connect_timeout_s=0.05) as bookie:
        adding = Adding(bookie)
        adding.add(0)
        assert await adding.count(1) == [(0, BookieUnavailable)]


async def test_a_late_answer_fails_its_add_and_nothing_else() -> None:
    answer = asyncio.Event()

    async def late(peer: Peer) -> None:
        await greeted(peer)
        while (frame := await peer.frame()) is not None:
            if isinstance(frame, Frame):  # it still answers everything else
                peer.say(protocol.PONG, frame.id)
                if answer.is_set():
                    peer.send(protocol.encode_added(0, 1, 2))

    async with pretending(late) as (port, peers), remote(port, timeout_s=SOON_S) as bookie:
        adding = Adding(bookie)
        adding.add(0)
        async with asyncio.timeout(DEADLINE_S):
            while not adding.answers:
                await bookie.ping()
        assert await adding.count(1) == [(0, BookieLate)]
        assert bookie.connected
        adding.add(1)
        answer.set()
        await bookie.ping()
        assert await adding.count(2) == [(0, BookieLate), (1, None)]
        assert len(peers) == 1
        assert bookie.pending_bytes == 0


async def test_late_answer_to_a_read_is_ignored() -> None:
    async def late(peer: Peer) -> None:
        await greeted(peer)
        while (frame := await peer.frame()) is not None:
            assert isinstance(frame, Frame)
            if frame.kind == protocol.PING:
                peer.say(protocol.PONG, frame.id)
                peer.say(protocol.END, 1, bytes(25))

    async with pretending(late) as (port, _), remote(port, timeout_s=SOON_S) as bookie:
        end = asyncio.ensure_future(bookie.ledger_end(1))
        await until(lambda: bookie.connected)
        with pytest.raises(BookieLate):
            await end
        await bookie.ping()
        assert bookie.connected
        cancelled = asyncio.ensure_future(bookie.ledger_end(1))
        await asyncio.sleep(0)
        cancelled.cancel()
        await bookie.ping()


LIES = {
    "out of order": protocol.encode_added(0, 2, 1),
    "never asked": protocol.encode_added(0, 1, 3),
    "none": protocol.encode_added(0, 1, 0),
    "a request": protocol.encode_frame(protocol.PING, 0, 1),
    "a second time": protocol.encode_added(0, 1, 1) * 2,
    "an unknown request": protocol.encode_frame(protocol.PONG, 0, 77),
    "no failure": protocol.encode_frame(protocol.ADD_FAILED, 0, 1, bytes(16))[:-1] + b"\1",
    "garbage": bytes(100),
}


@pytest.mark.parametrize("lie", LIES)
async def test_protocol_violation_closes_the_connection(lie: str) -> None:
    async def lying(peer: Peer) -> None:
        await greeted(peer)
        await next_add(peer)
        await next_add(peer)
        peer.send(LIES[lie])
        await peer.frame()

    async with pretending(lying) as (port, _), remote(port) as bookie:
        adding = Adding(bookie)
        adding.add(0)
        adding.add(1)
        answers = await adding.count(2)
        assert answers[1] == (1, BookieUnavailable)
        assert "broke the protocol" in str(adding.answers[1][1])


@pytest.mark.parametrize("lie", ["entries", "pong", "first", "last", "failure", "page"])
async def test_answers_to_unknown_requests_are_refused(lie: str) -> None:
    answers = {
        "entries": protocol.encode_frame(protocol.END, 0, 1, bytes(25)),
        "pong": protocol.encode_frame(protocol.PONG, 0, 1),
        "first": b"".join(protocol.encode_entries(0, 1, range(6, 7), [b"x"])),
        "last": b"".join(protocol.encode_entries(0, 1, range(5, 9), [b"x"] * 4)),
        "failure": protocol.encode_frame(protocol.FAILED, 0, 1, b"\1" * 16),
        "page": protocol.encode_frame(
            protocol.LEDGERS, 0, 1, messages.encode_ledgers([-5], more=False)
        ),
    }

    async def lying(peer: Peer) -> None:
        await greeted(peer)
        await peer.frame()
        peer.send(answers[lie])
        await peer.frame()

    async with pretending(lying) as (port, _), remote(port) as bookie:
        reading = bookie.read_entries(1, 5, 6, bytes_max=100)
        with pytest.raises(BookieUnavailable, match="b1"):
            await (reading if lie != "page" else _listed(reading, bookie))


async def _listed(instead_of: Coroutine[object, object, object], bookie: RemoteBookie) -> None:
    instead_of.close()
    await bookie.list_ledgers()


async def test_another_incarnation_is_never_used() -> None:
    stranger = MemoryBookie("b1", "two")
    async with serving(stranger) as server, remote(server.port) as bookie:
        adding = Adding(bookie)
        adding.add(0)
        assert await adding.count(1) == [(0, BookieUnavailable)]
        assert "another incarnation" in str(adding.answers[0][1])
        assert await stranger.list_ledgers() == []

    async def careless(peer: Peer) -> None:
        await peer.frame()
        peer.welcome(BookieIdentity("b1", "two"))
        assert await peer.frame() is None

    async with pretending(careless) as (port, _), remote(port) as bookie:
        with pytest.raises(BookieUnavailable, match="another incarnation"):
            await bookie.ping()


async def test_a_bookie_of_another_version_or_cluster_is_not_used() -> None:
    async def newer(peer: Peer) -> None:
        await peer.frame()
        peer.welcome(version=2)
        await peer.frame()

    async with pretending(newer) as (port, _), remote(port) as bookie:
        with pytest.raises(BookieUnavailable, match="version 2"):
            await bookie.ping()
    async with serving() as server:
        server.cluster = "theirs"
        bookie = RemoteBookie(IDENTITY, HOST, server.port, cluster="ours")
        with pytest.raises(BookieUnavailable, match="cluster theirs"):
            await bookie.ping()
        await bookie.close()


async def test_pending_adds_are_bounded_and_refusals_stay_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "PENDING_BYTES_MAX", 250)
    answer = asyncio.Event()

    async def hold(peer: Peer) -> None:
        await greeted(peer)
        await next_add(peer)
        await next_add(peer)
        await answer.wait()
        peer.send(protocol.encode_added(0, 1, 1), protocol.encode_added(0, 2, 1))
        await next_add(peer)
        peer.send(protocol.encode_added(0, 3, 1))
        await peer.frame()

    async with pretending(hold) as (port, _), remote(port) as bookie:
        adding = Adding(bookie)
        for entry_id in range(4):
            adding.add(entry_id, bytes(100))
        assert bookie.pending_bytes == 200
        await until(lambda: bookie.connected)
        assert not adding.answers
        answer.set()
        assert await adding.count(4) == [
            (0, None),
            (1, None),
            (2, BookieUnavailable),
            (3, BookieUnavailable),
        ]
        adding.add(4)
        assert (await adding.count(5))[4] == (4, None)


async def test_idle_connection_is_pinged_and_closed_without_an_answer() -> None:
    pings = asyncio.Event()

    async def hang(peer: Peer) -> None:
        await greeted(peer)
        await peer.frame()
        peer.say(protocol.PONG, 1)
        frame = await peer.frame()
        assert isinstance(frame, Frame)
        assert frame.kind == protocol.PING
        pings.set()
        await asyncio.Event().wait()

    async with (
        pretending(hang) as (port, _),
        remote(port, ping_idle_s=0.01, timeout_s=SOON_S) as bookie,
    ):
        await bookie.ping()
        assert bookie.connected
        await asyncio.wait_for(pings.wait(), DEADLINE_S)
        await until(lambda: not bookie.connected)


async def test_stopping_bookie_gives_the_reason() -> None:
    async with serving() as server, remote(server.port) as bookie:
        await bookie.ping()
        reading = asyncio.ensure_future(bookie.read_entries(9, 0, 0, bytes_max=1))
        await server.stop()
        with pytest.raises((BookieUnavailable, NoSuchLedger)):
            await reading
        await until(lambda: not bookie.connected)


async def test_close_waits_for_answers_to_adds() -> None:
    async with serving() as server:
        bookie = RemoteBookie(IDENTITY, HOST, server.port)
        adding = Adding(bookie)
        adding.add(0)
        await bookie.close()
        assert await adding.count(1) == [(0, None)]
        adding.add(1)
        assert (await adding.count(2))[1] == (1, BookieUnavailable)
        with pytest.raises(BookieUnavailable, match="not used any more"):
            await bookie.ping()
        await bookie.close()


async def test_a_group_that_is_too_large_is_refused_at_once() -> None:
    async with serving() as server, remote(server.port) as bookie:
        with pytest.raises(ValueError, match="too large"):
            bookie.add_entries(
                1,
                range(2),
                [bytes(protocol.BODY_BYTES_MAX), b"x"],
                last_add_confirmed=-1,
                on_added=lambda _: None,
            )
        assert bookie.pending_bytes == 0
