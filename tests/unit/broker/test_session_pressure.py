"""Bounds on the memory that clients can claim: floods, peers that do not read, silent peers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.held_bookie import HeldBookie
from tests.support.raw_client import RawClient
from tests.unit.broker.peer import READ_BYTES, Peer, peer_of

from magnetar.broker.service import BrokerService
from magnetar.broker.session.budget import CONNECTION_PENDING_BYTES_HIGH
from magnetar.broker.session.connection import WRITE_BUFFER_HIGH_BYTES
from magnetar.broker.session.session import Session
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command
from magnetar.wire.receive_buffer import BUFFER_BYTES_DEFAULT

TOPIC = "persistent://public/default/t"
WAIT_S = 20.0
PAYLOAD = bytes(256 * 1024)


async def eventually(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not what():  # noqa: ASYNC110 - nothing tells when a broker has noticed
            await asyncio.sleep(0.001)


@asynccontextmanager
async def stalling(
    settings: BrokerSettings | None = None,
) -> AsyncIterator[tuple[BrokerService, int, HeldBookie]]:
    bookie = HeldBookie()
    async with running_broker(settings, bookie=bookie) as (service, port):
        try:
            yield service, port, bookie
        finally:
            bookie.release()


async def flood(client: RawClient, producer_id: int, first: int, bytes_count: int) -> int:
    """Writes this number of bytes, or until the socket blocks; returns the number of messages."""
    sent = 0
    while sent * len(PAYLOAD) < bytes_count:
        client.send(producer_id, first + sent, PAYLOAD)
        sent += 1
        await asyncio.sleep(0)
    return sent


# -- producers


async def test_a_producer_is_not_read_from_while_the_bookie_stalls() -> None:
    async with stalling() as (service, port, bookie):
        client = await RawClient.connect(HOST, port)
        producer_id = await client.producer(TOPIC)
        client.send(producer_id, 0, b"first")
        await client.receipted(producer_id, 1)
        bookie.hold = True
        sent = 1 + await flood(client, producer_id, 1, 4 * CONNECTION_PENDING_BYTES_HIGH)
        await eventually(lambda: len(service.budget._paused) == 1)
        most = CONNECTION_PENDING_BYTES_HIGH + BUFFER_BYTES_DEFAULT + len(PAYLOAD)
        assert CONNECTION_PENDING_BYTES_HIGH < service.budget.pending_bytes <= most
        (session,) = service.sessions
        before = service.budget.pending_bytes
        async with peer_of(port) as other:  # others are served meanwhile
            for _ in range(20):
                assert await other.is_silent()
        assert service.budget.pending_bytes == before
        bookie.release()
        await client.receipted(producer_id, sent)
        positions = [client.receipts[producer_id][number] for number in range(sent)]
        assert positions == sorted(positions)
        assert service.budget.pending_bytes == session.link.pending_bytes == 0
        await client.close()


async def test_the_bytes_of_a_lost_connection_count_until_they_are_stored() -> None:
    async with stalling() as (service, port, bookie):
        client = await RawClient.connect(HOST, port)
        producer_id = await client.producer(TOPIC)
        client.send(producer_id, 0, b"first")
        await client.receipted(producer_id, 1)
        bookie.hold = True
        client.send(producer_id, 1, PAYLOAD)
        await eventually(lambda: len(bookie.held) == 1)
        await client.close()
        await eventually(lambda: not service.sessions)
        assert service.budget.pending_bytes > len(PAYLOAD)
        bookie.release()
        await eventually(lambda: service.budget.pending_bytes == 0)


# -- peers that do not read


def narrow_socket(port: int) -> socket.socket:
    """A connection whose kernel buffers are small."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.connect((HOST, port))
    sock.setblocking(False)
    return sock


@asynccontextmanager
async def narrow_peer(port: int) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection(sock=narrow_socket(port), limit=READ_BYTES)
    try:
        peer = Peer(reader, writer)
        await peer.connect()
        yield peer
    finally:
        writer.close()


def unread_bytes(session: Session) -> int:
    transport: asyncio.WriteTransport = session.wire._transport  # type: ignore[attr-defined]
    return transport.get_write_buffer_size()


async def test_a_consumer_that_does_not_read_does_not_grow_memory() -> None:
    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        producer_id = await client.producer(TOPIC)
        sent = await flood(client, producer_id, 0, 8 * WRITE_BUFFER_HIGH_BYTES)
        await client.receipted(producer_id, sent)
        others = set(service.sessions)
        async with narrow_peer(port) as peer:
            (session,) = service.sessions - others
            subscribe = pb.CommandSubscribe(
                topic=TOPIC,
                subscription="s",
                subType=pb.CommandSubscribe.Shared,
                consumer_id=1,
                request_id=1,
                initialPosition=pb.CommandSubscribe.Earliest,
            )
            peer.send(CommandType.SUBSCRIBE, subscribe)
            await peer.until(CommandType.SUCCESS)
            peer.send(CommandType.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=sent))
            await eventually(lambda: not session.wire.writable)
            for _ in range(100):
                await asyncio.sleep(0)
            # One step of a dispatcher may exceed the mark by the entries of one consumer's turn.
            turn = service.settings.subscriptions.dispatch_turn_entries_max * (len(PAYLOAD) + 200)
            assert unread_bytes(session) <= WRITE_BUFFER_HIGH_BYTES + turn
            for _ in range(sent):  # and once it reads, it gets everything
                await peer.until(CommandType.MESSAGE)
        await client.close()


async def test_a_client_that_asks_and_does_not_read_is_not_read_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise its answers would fill memory: the number of requests is unbounded."""
    unread_max = WRITE_BUFFER_HIGH_BYTES + (1 << 20)
    monkeypatch.setattr("magnetar.broker.session.connection.UNREAD_BYTES_MAX", unread_max)
    async with running_broker() as (service, port), narrow_peer(port) as peer:
        (session,) = service.sessions
        # An answer that says how wrong the question was is as long as the question.
        lookup = pb.CommandLookupTopic(topic="no-domain://" + "x" * 4_000, request_id=1)
        question = encode_command(CommandType.LOOKUP, lookup)
        peer.write(question)
        answer = await peer.reader.read(READ_BYTES)
        assert len(answer) > 4_000
        # Two reads are still answered: the current one, and the one whose answers are unwritten.
        most = unread_max + 3 * BUFFER_BYTES_DEFAULT
        count = 5 * unread_max // len(answer)
        peer.write(question * count)
        await eventually(lambda: unread_bytes(session) > unread_max)
        for _ in range(500):
            await asyncio.sleep(0)
            assert unread_bytes(session) <= most
        left = count * len(answer)
        async with asyncio.timeout(WAIT_S):  # it reads: it is read from again
            while left:
                left -= len(await peer.reader.read(READ_BYTES))
                assert left >= 0


# -- keep-alive


@pytest.mark.parametrize("watching", [False, True])
async def test_lists_are_made_only_while_their_client_reads(watching: bool) -> None:
    """A list may be large, and a connection may request many at once."""
    asked = 150
    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        for number in range(100):
            await client.producer(f"persistent://public/default/{number:02d}{'x' * 2_000}")
        list_bytes = 100 * 2_100
        others = set(service.sessions)
        async with narrow_peer(port) as peer:
            (session,) = service.sessions - others
            for number in range(asked):
                if watching:
                    watch = pb.CommandWatchTopicList(
                        request_id=number,
                        watcher_id=number,
                        namespace="public/default",
                        topics_pattern="public/default/.*",
                    )
                    peer.send(CommandType.WATCH_TOPIC_LIST, watch)
                else:
                    ask = pb.CommandGetTopicsOfNamespace(
                        request_id=number,
                        namespace="public/default",
                        mode=pb.CommandGetTopicsOfNamespace.PERSISTENT,
                    )
                    peer.send(CommandType.GET_TOPICS_OF_NAMESPACE, ask)
            await eventually(lambda: not session.wire.writable and len(session.tasks) > 50)
            for _ in range(200):
                await asyncio.sleep(0)
            assert unread_bytes(session) <= WRITE_BUFFER_HIGH_BYTES + 2 * list_bytes
            kind = (
                CommandType.WATCH_TOPIC_LIST_SUCCESS
                if watching
                else CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE
            )
            answered = {(await peer.until(kind)).request_id for _ in range(asked)}
            assert answered == set(range(asked))
        await client.close()


async def interval_passes(service: BrokerService) -> None:
    """Runs the broker's keep-alive, which is due every `keep_alive_interval_s`."""
    await service._keep_alive()


@pytest.mark.parametrize("connected", [True, False])
async def test_a_silent_peer_is_asked_and_then_closed(connected: bool) -> None:
    async with running_broker() as (service, port), peer_of(port, connected=connected) as peer:
        await eventually(lambda: len(service.sessions) == 1)
        await interval_passes(service)  # it was heard of: it has just come
        await interval_passes(service)
        await peer.until(CommandType.PING)
        await interval_passes(service)
        assert await peer.next() is None
        await eventually(lambda: not service.sessions)


async def test_a_peer_that_answers_stays() -> None:
    async with running_broker() as (service, port), peer_of(port) as peer:
        for _ in range(5):
            await interval_passes(service)
            await interval_passes(service)
            await peer.until(CommandType.PING)
            peer.send(CommandType.PONG, pb.CommandPong())
            assert await peer.is_silent()


async def test_a_paused_connection_does_not_count_as_silent() -> None:
    """Its answer to our ping waits in a socket that we do not read."""
    async with stalling() as (service, port, bookie):
        client = await RawClient.connect(HOST, port)
        producer_id = await client.producer(TOPIC, "n")
        client.send(producer_id, 0, b"first")
        await client.receipted(producer_id, 1)
        bookie.hold = True
        sent = 1 + await flood(client, producer_id, 1, 2 * CONNECTION_PENDING_BYTES_HIGH)
        await eventually(lambda: len(service.budget._paused) == 1)
        for _ in range(5):
            await interval_passes(service)
        async with peer_of(port) as newcomer:  # nor does it lose its name
            producer = pb.CommandProducer(
                topic=TOPIC, producer_id=1, request_id=1, producer_name="n"
            )
            newcomer.send(CommandType.PRODUCER, producer)
            error = await newcomer.until(CommandType.ERROR)
            assert error.error == pb.ProducerBusy
        assert not client.lost.is_set()
        bookie.release()
        await client.receipted(producer_id, sent)
        await client.close()


@pytest.mark.parametrize("answers", [True, False])
async def test_a_name_is_taken_over_only_from_a_dead_connection(answers: bool) -> None:
    # The peer has time to answer; a silent one is waited for.
    settings = compose(BrokerSettings, liveness_check_timeout_ms=20_000 if answers else 100)
    async with (
        running_broker(settings) as (_, port),
        peer_of(port) as holder,
        peer_of(port) as newcomer,
    ):
        producer = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="n")
        holder.send(CommandType.PRODUCER, producer)
        await holder.until(CommandType.PRODUCER_SUCCESS)
        newcomer.send(CommandType.PRODUCER, producer)
        await holder.until(CommandType.PING)
        if answers:
            holder.send(CommandType.PONG, pb.CommandPong())
            error = await newcomer.until(CommandType.ERROR)
            assert error.error == pb.ProducerBusy
            assert await holder.is_silent()
        else:
            success = await newcomer.until(CommandType.PRODUCER_SUCCESS)
            assert success.producer_name == "n"
            assert await holder.next() is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (compose(BrokerSettings, connections_max=2), "Reached the maximum number of connections"),
        (
            compose(BrokerSettings, connections_per_ip_max=2),
            "Reached the maximum number of connections on address127.0.0.1",
        ),
    ],
)
async def test_connections_beyond_the_bound_are_closed(settings: BrokerSettings, text: str) -> None:
    async with running_broker(settings) as (service, port), peer_of(port) as first:
        for _ in range(3):  # one that has ended counts no more
            async with peer_of(port):
                for _ in range(2):
                    async with peer_of(port, connected=False) as third:
                        error = await third.until(CommandType.ERROR)
                        assert (error.error, error.message) == (pb.NotAllowedError, text)
                        assert error.request_id == 2**64 - 1
                        assert await third.next() is None
            async with asyncio.timeout(WAIT_S):
                while len(service.sessions) > 1:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.001)
        assert await first.is_silent()


async def test_another_address_is_not_counted_with_the_first() -> None:
    async with running_broker(compose(BrokerSettings, connections_per_ip_max=1)) as (_, port):
        sockets = []
        for address in ("127.0.0.1", "127.0.0.2"):
            opened = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            peer = Peer(*opened)
            await peer.connect()
            sockets.append(peer)
        for peer in sockets:
            assert await peer.is_silent()
            peer.writer.close()
