"""Messages that cannot be encoded, or read, fail alone: others pass, and nothing stays taken."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.broker import running_broker

from magnetar.client import Client
from magnetar.client.errors import InvalidConfiguration, MessageTooBig, NotAllowed
from magnetar.client.producer.outgoing import OutgoingMessage, check_fields, delay_ms
from magnetar.client.producer.producer import Producer
from magnetar.wire._pb import PulsarApi_pb2 as pb

PATIENCE_S = 10.0
TOO_LARGE = 6 * 1024 * 1024
NOT_ALLOWED = 22


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        yield client


def taken(client: Client, producer: Producer[Any]) -> tuple[int, int]:
    """What the client's messages hold of its memory limit, and of the producer's limit."""
    assert client._context is not None
    return client._context.memory.taken, producer._total.taken


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("properties", {"a": 1}),
        ("properties", {1: "a"}),
        ("properties", {"a": "\ud800"}),
        ("properties", [("a", "b")]),
        ("key", "\ud800"),
        ("key", 5),
        ("key_bytes", "text"),
        ("ordering_key", "text"),
        ("event_time_ms", 1.5),
        ("event_time_ms", -1),
        ("event_time_ms", 2**63),
        ("sequence_id", 1.5),
        ("sequence_id", -2),
        ("sequence_id", 2**63),
        ("deliver_at_ms", 0.5),
        ("deliver_at_ms", 2**63),
        ("replicate_to", ("\ud800",)),
        ("replicate_to", (5,)),
        ("replicate_to", "cluster"),
        ("payload", "text"),
    ],
)
def test_a_field_that_cannot_be_sent_is_refused(name: str, value: Any) -> None:
    fields: dict[str, Any] = {"payload": b"x"} | {name: value}
    with pytest.raises(InvalidConfiguration, match="bytes" if name == "payload" else name):
        check_fields(OutgoingMessage(**fields))


@pytest.mark.parametrize("delay_s", [float("nan"), float("inf")])
def test_a_delay_must_be_a_number(delay_s: float) -> None:
    with pytest.raises(InvalidConfiguration, match="deliver_after_s"):
        delay_ms(delay_s)


async def test_a_refused_message_takes_nothing_and_harms_no_other(client: Client) -> None:
    async with client.producer("t") as producer:
        good = producer.send_nowait(b"good")
        with pytest.raises(InvalidConfiguration, match="properties"):
            await producer.send(b"bad", properties={"attempt": 1})  # type: ignore[dict-item]
        async with asyncio.timeout(PATIENCE_S):
            await good
        assert taken(client, producer) == (0, 0)


@pytest.mark.parametrize("batching", [True, False])
async def test_messages_that_a_codec_fails_on_are_failed(client: Client, batching: bool) -> None:
    def broken(_payload: bytes) -> bytes:
        raise RuntimeError("codec")

    options: Any = {} if batching else {"batching": None}
    async with client.producer("t", **options) as producer:
        (lane,) = producer._lanes
        lane._compress = broken
        with pytest.raises(RuntimeError, match="codec"):
            async with asyncio.timeout(PATIENCE_S):
                await producer.send(b"x")
        lane._compress = None
        assert taken(client, producer) == (0, 0)
        assert producer.stats.messages_failed == 1
        await producer.send(b"y")


@pytest.mark.parametrize("options", [{}, {"batching": None}, {"batching": None, "chunking": True}])
async def test_properties_that_exceed_the_maximum_are_refused(
    client: Client, options: dict[str, Any]
) -> None:
    """The broker would close the connection for each attempt."""
    async with client.producer("t", **options) as producer:
        with pytest.raises(MessageTooBig, match="properties"):
            async with asyncio.timeout(PATIENCE_S):
                await producer.send(b"x" * 50, properties={"a": "\u20ac" * (TOO_LARGE // 3)})
        assert producer.stats.reconnects == 0
        assert taken(client, producer) == (0, 0)


async def test_a_message_without_its_first_chunk_is_not_reported_as_stored(client: Client) -> None:
    async with client.producer("t", batching=None, chunking=True, chunk_bytes_max=1000) as producer:
        (lane,) = producer._lanes
        lane._connection, connection = None, lane._connection  # the chunks are not on their way
        chunked = producer.send_nowait(b"x" * TOO_LARGE)
        assert len(lane._pending) > 1
        lane.on_send_error(pb.CommandSendError(sequence_id=0, error=pb.NotAllowedError))
        with pytest.raises(NotAllowed):
            await chunked
        assert not lane._pending
        assert taken(client, producer) == (0, 0)
        lane._connection = connection
        await producer.send(b"y")


@pytest.mark.parametrize("count", [-5, 0, 2**31 - 1])
async def test_a_batch_of_an_impossible_size_is_passed_over(client: Client, count: int) -> None:
    async with client.producer("t") as producer, client.consumer("t", "sub") as consumer:
        (lane,) = producer._lanes
        honest = lane._encoder

        class Encoder:
            def batch(self, first: Any, low: int, high: int, _count: int, *rest: Any) -> Any:
                return honest.batch(first, low, high, count % 2**64, *rest)

        encoder: Any = Encoder()
        lane._encoder = encoder
        await producer.send(b"bad")
        lane._encoder = honest
        await producer.send(b"good")
        message = await consumer.receive(PATIENCE_S)
        assert message.value == b"good"
        assert (consumer.stats.entries_bad, consumer.stats.reconnects) == (1, 0)
