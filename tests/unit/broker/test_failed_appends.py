"""After a failed append, every producer resends messages without a receipt, in order."""

import pytest
from tests.support.broker import running_broker
from tests.unit.broker.peer import Peer, peer_of
from tests.unit.ledger.stage import FaultyBookie
from tests.unit.wire import frames

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

TOPIC = "persistent://public/default/t"


async def attach(peer: Peer, producer_id: int) -> None:
    command = pb.CommandProducer(topic=TOPIC, producer_id=producer_id, request_id=producer_id)
    peer.send(CommandType.PRODUCER, command)
    await peer.until(CommandType.PRODUCER_SUCCESS)


@pytest.mark.parametrize("waiting", [0, 2])
async def test_after_a_failed_append_every_producer_of_the_topic_is_sent_away_once(
    waiting: int,
) -> None:
    bookie = FaultyBookie()
    async with (
        running_broker(bookie=bookie) as (service, port),
        peer_of(port) as sending,
        peer_of(port) as other,
    ):
        await attach(sending, 1)
        await attach(sending, 2)
        await attach(other, 3)
        sending.write(frames.send(1, 0))
        await sending.until(CommandType.SEND_RECEIPT)
        bookie.refuse = lambda _ledger, _ids: True
        sending.write(b"".join(frames.send(1, 1 + number) for number in range(1 + waiting)))
        # The error first: after the close, the client no longer knows the producer.
        error = await sending.until(CommandType.SEND_ERROR)
        assert error.sequence_id == 1
        closed = {(await sending.until(CommandType.CLOSE_PRODUCER)).producer_id for _ in range(2)}
        assert closed == {1, 2}
        assert (await other.until(CommandType.CLOSE_PRODUCER)).producer_id == 3
        topic = service.topics.loaded(parse_topic(TOPIC))
        assert isinstance(topic, PersistentTopic)
        assert not len(topic.producers)
        bookie.refuse = lambda _ledger, _ids: False
        for peer, producer_id in ((sending, 1), (other, 3)):
            await attach(peer, producer_id)
            peer.write(frames.send(producer_id, 1))
            receipt = await peer.until(CommandType.SEND_RECEIPT)
            assert (receipt.producer_id, receipt.sequence_id) == (producer_id, 1)


async def test_a_send_to_a_terminated_topic_disconnects_all_producers() -> None:
    """Not by a SEND_ERROR, after which Go's client sits out its send timeout."""
    async with (
        running_broker() as (service, port),
        peer_of(port) as sending,
        peer_of(port) as other,
    ):
        await attach(sending, 1)
        await attach(other, 2)
        topic = service.topics.loaded(parse_topic(TOPIC))
        assert isinstance(topic, PersistentTopic)
        await topic.managed_ledger.terminate()
        sending.write(frames.send(1, 0))
        for peer, producer_id in ((sending, 1), (other, 2)):
            told = await peer.next()
            assert told is not None
            assert told.type == CommandType.CLOSE_PRODUCER
            assert isinstance(told.message, pb.CommandCloseProducer)
            assert told.message.producer_id == producer_id
            command = pb.CommandProducer(topic=TOPIC, producer_id=producer_id, request_id=9)
            peer.send(CommandType.PRODUCER, command)
            assert (await peer.until(CommandType.ERROR)).error == pb.TopicTerminatedError
