"""Requests for what nothing acts on are refused: a client that got SUCCESS would believe it."""

import time
from collections.abc import AsyncIterator

import pytest
from tests.support.broker import running_broker
from tests.unit.broker.peer import Peer, peer_of
from tests.unit.wire import frames

from magnetar.broker.session.refusal import NO_REPLICATED_SUBSCRIPTIONS
from magnetar.core.errors import ServerError
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

TOPIC = "persistent://public/default/t"
PRODUCER_ID = 1
HOUR_MS = 3_600_000
LONGEST_MS = 60_000


@pytest.fixture
async def port() -> AsyncIterator[int]:
    settings = compose(BrokerSettings, delayed_delivery_delay_ms_max=LONGEST_MS)
    async with running_broker(settings) as (_, port):
        yield port


@pytest.fixture
async def peer(port: int) -> AsyncIterator[Peer]:
    async with peer_of(port) as peer:
        command = pb.CommandProducer(topic=TOPIC, producer_id=PRODUCER_ID, request_id=1)
        peer.send(CommandType.PRODUCER, command)
        await peer.until(CommandType.PRODUCER_SUCCESS)
        yield peer


def now_ms() -> int:
    return int(time.time() * 1000)


async def test_a_message_with_too_long_a_delay_is_refused_and_the_next_one_is_stored(
    peer: Peer,
) -> None:
    later = frames.entry(publish_time=now_ms(), deliver_at_time=now_ms() + HOUR_MS)
    peer.write(
        frames.send(PRODUCER_ID, 0, later)
        + frames.send(PRODUCER_ID, 1, frames.entry(payload=b"now"))
    )
    refused = await peer.until(CommandType.SEND_ERROR)
    assert (refused.sequence_id, refused.error) == (0, ServerError.NOT_ALLOWED_ERROR)
    assert refused.message == "Exceeds max allowed delivery delay of 60000 milliseconds"
    receipt = await peer.until(CommandType.SEND_RECEIPT)
    assert (receipt.sequence_id, receipt.message_id.entryId) == (1, 0)


async def test_the_cpp_client_gets_the_code_that_fails_one_message(port: int) -> None:
    async with peer_of(port, connected=False) as peer:
        connect = pb.CommandConnect(client_version="Pulsar-CPP-v3.7.1", protocol_version=21)
        peer.send(CommandType.CONNECT, connect)
        await peer.until(CommandType.CONNECTED)
        command = pb.CommandProducer(topic=TOPIC, producer_id=PRODUCER_ID, request_id=1)
        peer.send(CommandType.PRODUCER, command)
        await peer.until(CommandType.PRODUCER_SUCCESS)
        later = frames.entry(publish_time=now_ms(), deliver_at_time=now_ms() + HOUR_MS)
        peer.write(frames.send(PRODUCER_ID, 0) + frames.send(PRODUCER_ID, 1, later))
        # After the receipt: the client takes an error that comes before it for another's.
        assert (await peer.next()).type == CommandType.SEND_RECEIPT  # type: ignore[union-attr]
        refused = await peer.until(CommandType.SEND_ERROR)
        assert (refused.sequence_id, refused.error) == (1, ServerError.CHECKSUM_ERROR)


async def test_a_delivery_time_that_has_passed_delays_nothing(peer: Peer) -> None:
    past = frames.entry(publish_time=now_ms(), deliver_at_time=now_ms() - HOUR_MS)
    peer.write(frames.send(PRODUCER_ID, 0, past))
    assert (await peer.until(CommandType.SEND_RECEIPT)).sequence_id == 0


async def test_the_bytes_of_the_tag_elsewhere_in_the_metadata_mean_nothing(peer: Peer) -> None:
    """A scan finds these bytes; parsing shows that they are not a delivery time."""
    odd = frames.entry(ordering_key=b"\x98\x01" * 3)
    peer.write(frames.send(PRODUCER_ID, 0, odd))
    assert (await peer.until(CommandType.SEND_RECEIPT)).sequence_id == 0


async def test_a_replicated_subscription_is_refused(peer: Peer) -> None:
    command = pb.CommandSubscribe(
        topic=TOPIC,
        subscription="s",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=2,
        replicate_subscription_state=True,
    )
    peer.send(CommandType.SUBSCRIBE, command)
    error = await peer.until(CommandType.ERROR)
    assert (error.request_id, error.error) == (2, ServerError.NOT_ALLOWED_ERROR)
    assert error.message == NO_REPLICATED_SUBSCRIPTIONS
    command.replicate_subscription_state, command.request_id = False, 3
    peer.send(CommandType.SUBSCRIBE, command)
    assert (await peer.until(CommandType.SUCCESS)).request_id == 3
