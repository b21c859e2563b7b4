"""What clients close, delete or lose while it is still being made."""

import asyncio

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.late_store import LateStore
from tests.support.raw_client import RawClient, Refused

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import ServerError
from magnetar.core.names import parse_topic
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command

TOPIC = "persistent://public/default/t"
WAIT_S = 20.0
NAME = parse_topic(TOPIC)
EXCLUSIVE, SHARED = 0, 1


def subscribe(consumer_id: int, *, request_id: int, topic: str = TOPIC) -> bytes:
    return encode_command(
        CommandType.SUBSCRIBE,
        pb.CommandSubscribe(
            topic=topic,
            subscription="sub",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=consumer_id,
            request_id=request_id,
        ),
    )


async def lookup(client: RawClient) -> None:
    """Returns once the server has handled all that was sent before."""
    await client.request(CommandType.LOOKUP, pb.CommandLookupTopic(topic=TOPIC))


async def test_a_producer_closed_right_behind_its_creation_holds_nothing() -> None:
    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        create = pb.CommandProducer(
            topic=TOPIC,
            producer_id=7,
            request_id=1,
            producer_name="mine",
            producer_access_mode=pb.ProducerAccessMode.Exclusive,
        )
        client.write(
            encode_command(CommandType.PRODUCER, create)
            + encode_command(
                CommandType.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=7, request_id=2)
            )
        )
        await client.producer(TOPIC, name="mine", producer_id=8)
        topic = service.topics.loaded(NAME)
        assert topic is not None
        assert [producer.producer_id for producer in topic.producers] == [8]
        await client.close()


async def test_a_consumer_closed_right_behind_its_creation_holds_nothing() -> None:
    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        client.write(
            subscribe(7, request_id=1)
            + encode_command(
                CommandType.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=7, request_id=2)
            )
        )
        # An exclusive subscription has room for one.
        await client.consumer(TOPIC, "sub", consumer_id=8)
        topic = service.topics.loaded(NAME)
        assert topic is not None
        consumers = topic.subscriptions["sub"].consumers
        assert [consumer.spec.consumer_id for consumer in consumers] == [8]
        await client.close()


async def test_a_client_that_leaves_while_its_subscription_is_recorded_harms_nobody() -> None:
    store = LateStore()
    async with running_broker(store=store) as (_, port):
        leaving = await RawClient.connect(HOST, port)
        staying = await RawClient.connect(HOST, port)
        producer = await staying.producer(TOPIC)
        store.hold()
        leaving.write(subscribe(1, request_id=1))
        await store.landed.wait()
        await leaving.close()
        await lookup(staying)
        store.answering.set()
        consumer = await staying.consumer(TOPIC, "sub")
        staying.send(producer, 0, b"a")
        await staying.receipted(producer, 1)
        staying.flow(consumer, 10)
        assert (await staying.receive(consumer)).payload == b"a"
        await staying.close()


async def test_what_was_sent_before_a_close_is_receipted_before_its_answer() -> None:
    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        producer = await client.producer(TOPIC)
        for number in range(20):
            client.send(producer, number, b"a")
        await client.request(
            CommandType.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=producer)
        )
        assert len(client.receipts[producer]) == 20
        topic = service.topics.loaded(NAME)
        assert topic is not None
        assert not len(topic.producers)
        await client.producer(TOPIC, producer_id=producer)
        await client.close()


async def test_producers_of_a_terminated_topic_get_its_error_when_they_reattach() -> None:
    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        producer = await client.producer(TOPIC)
        topic = service.topics.loaded(NAME)
        assert isinstance(topic, PersistentTopic)
        await topic.terminate()
        with pytest.raises(Refused) as refused:
            await client.producer(TOPIC, producer_id=producer)
        assert refused.value.code == ServerError.TOPIC_TERMINATED_ERROR
        assert client.closed_by_server == [producer]
        await client.close()


async def test_a_message_sent_while_the_topic_is_terminated_gets_no_error_of_its_own() -> None:
    store = LateStore()
    async with running_broker(store=store) as (service, port):
        client = await RawClient.connect(HOST, port)
        producer = await client.producer(TOPIC)
        client.send(producer, 0, b"first")
        await client.receipted(producer, 1)
        topic = service.topics.loaded(NAME)
        assert isinstance(topic, PersistentTopic)
        store.hold()
        terminating = asyncio.create_task(topic.terminate())
        await asyncio.wait_for(store.landed.wait(), WAIT_S)
        client.send(producer, 1, b"too late")
        for _ in range(2):  # the refusal of a message follows the answer to what came with it
            await lookup(client)
        assert client.closed_by_server == [producer]
        store.answering.set()
        await asyncio.wait_for(terminating, WAIT_S)
        with pytest.raises(Refused, match="Topic was already terminated"):
            await client.producer(TOPIC, producer_id=producer)
        assert not client.send_errors
        assert len(client.receipts[producer]) == 1
        await client.close()


async def test_a_reader_that_starts_in_the_past_is_attached_and_stays_so() -> None:
    async with running_broker() as (_, port):
        client = await RawClient.connect(HOST, port)
        keeping = await client.consumer(TOPIC, "keeps-the-data")
        producer = await client.producer(TOPIC)
        client.send(producer, 0, b"a")
        await client.receipted(producer, 1)
        reader = await client.consumer(
            TOPIC, "reader", durable=False, start_message_rollback_duration_sec=60, earliest=False
        )
        client.flow(reader, 10)
        assert (await client.receive(reader)).payload == b"a"
        assert client.closed_by_server == []
        assert keeping != reader
        await client.close()


async def test_a_reader_that_is_refused_leaves_nothing_behind() -> None:
    settings = compose(BrokerSettings, consumers_per_subscription_max=1)
    async with running_broker(settings) as (service, port):
        client = await RawClient.connect(HOST, port)
        await client.consumer(TOPIC, "other")
        topic = service.topics.loaded(NAME)
        assert isinstance(topic, PersistentTopic)
        with pytest.raises(Refused):
            await client.consumer(
                TOPIC,
                "reader",
                kind=3,
                durable=False,
                keySharedMeta=pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.STICKY),
            )
        assert list(topic.subscriptions) == ["other"]
        assert list(topic.managed_ledger.cursors) == ["other"]
        reader = await client.consumer(TOPIC, "reader", durable=False)
        await client.request(
            CommandType.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=reader)
        )
        assert list(topic.managed_ledger.cursors) == ["other"]
        await client.close()


async def test_nobody_gets_a_subscription_that_is_being_deleted() -> None:
    store = LateStore()
    async with running_broker(store=store) as (service, port):
        client = await RawClient.connect(HOST, port)
        await client.consumer(TOPIC, "sub")
        topic = service.topics.loaded(NAME)
        assert isinstance(topic, PersistentTopic)
        store.hold()
        deleting = asyncio.ensure_future(topic.delete_subscription("sub", force=True))
        await asyncio.sleep(0)
        with pytest.raises(Refused) as refused:
            await client.consumer(TOPIC, "sub")
        assert refused.value.code == ServerError.SERVICE_NOT_READY
        store.answering.set()
        await deleting
        assert "sub" not in topic.subscriptions
        await client.consumer(TOPIC, "sub")
        assert topic.managed_ledger.cursors["sub"].state != "Closed"
        await client.close()


async def test_an_exclusive_consumer_that_replaces_a_lost_one_is_served() -> None:
    """Without storage too: the list must know the subscription that it was let in to."""
    topic = "non-persistent://public/default/t"
    async with running_broker() as (service, port):
        old, new = await RawClient.connect(HOST, port), await RawClient.connect(HOST, port)
        await old.consumer(topic, "sub")
        assert old.transport is not None
        old.transport.pause_reading()  # it answers no ping
        attaching = asyncio.ensure_future(new.consumer(topic, "sub"))
        await lookup(new)
        old.transport.abort()
        try:
            consumer = await attaching
        except Refused as refused:
            if refused.code != ServerError.SERVICE_NOT_READY:
                raise
            consumer = await new.consumer(topic, "sub")
        new.flow(consumer, 10)
        producer = await new.producer(topic)
        new.send(producer, 0, b"a")
        assert (await new.receive(consumer)).payload == b"a"
        assert service.topics.loaded(parse_topic(topic)) is not None
        await new.close()


async def test_a_subscription_must_have_a_name() -> None:
    async with running_broker() as (_, port):
        client = await RawClient.connect(HOST, port)
        for durable in (True, False):
            with pytest.raises(Refused):
                await client.consumer(TOPIC, "", durable=durable)
        await client.close()


async def test_a_cumulative_ack_inside_a_batch_acks_what_is_before_where_batches_stay_whole() -> (
    None
):
    async with running_broker(compose(BrokerSettings, batch_index_acks=False)) as (service, port):
        client = await RawClient.connect(HOST, port)
        consumer = await client.consumer(TOPIC, "sub")
        producer = await client.producer(TOPIC)
        for number in range(3):
            client.send(producer, number, b"a")
        await client.receipted(producer, 3)
        ledger_id, _ = client.receipts[producer][0]
        ack = pb.CommandAck(consumer_id=consumer, ack_type=pb.CommandAck.Cumulative)
        ack.message_id.add(ledgerId=ledger_id, entryId=2, ack_set=[6], batch_size=3)
        answer = await client.request(CommandType.ACK, ack)
        assert not answer.HasField("error"), answer
        topic = service.topics.loaded(NAME)
        assert isinstance(topic, PersistentTopic)
        assert topic.subscriptions["sub"].cursor.mark_delete == (ledger_id, 1)
        await client.close()
