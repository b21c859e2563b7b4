"""Ends of topics, of calls and of connections: no message is lost by them, or comes twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.broker import running_broker

from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.client import (
    EARLIEST,
    AccessMode,
    BatchReceive,
    Client,
    ConsumerInterceptor,
    Message,
    SubscriptionType,
)
from magnetar.client.auth import TokenSupplier
from magnetar.client.consumer.consumer import EndOfTopics
from magnetar.client.errors import AlreadyClosed, ClientError, OperationTimeout
from magnetar.client.limits import Permits
from magnetar.core.names import parse_topic

PATIENCE_S = 10.0
SILENCE_S = 0.3
CHUNKED_BYTES = 6 * 1024 * 1024
Rig = tuple[BrokerService, Client]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with (
        running_broker() as (service, port),
        Client(f"pulsar://127.0.0.1:{port}", backoff_max_s=0.1) as client,
    ):
        yield service, client


def drop_connections(client: Client) -> None:
    context = client._context
    assert context is not None
    for connection in list(context.pool._connections.values()):
        connection.abort("dropped by the test")


async def fill(rig: Rig, *, terminate: bool = False) -> None:
    """Three messages for a subscription."""
    service, client = rig
    await (await client.consumer("t", "s")).close()
    async with client.producer("t") as producer:
        for index in range(3):
            await producer.send(b"%d" % index, key="k")
    if terminate:
        topic = service.topics.loaded(parse_topic("t"))
        assert isinstance(topic, PersistentTopic)
        await topic.terminate()


async def test_the_last_messages_of_a_topic_come_before_its_end(rig: Rig) -> None:
    await fill(rig)
    async with rig[1].consumer("t", "s") as consumer:
        many = asyncio.create_task(
            consumer.receive_many(BatchReceive(messages_max=100, timeout_s=PATIENCE_S))
        )
        while consumer.stats.messages_received < 3:  # noqa: ASYNC110 - the broker shares the loop
            await asyncio.sleep(0)
        consumer._queue.fail(EndOfTopics("the end"))
        assert len(await many) == 3
        with pytest.raises(EndOfTopics):
            await consumer.receive_many(BatchReceive(messages_max=100, timeout_s=PATIENCE_S))


async def test_a_seek_goes_back_from_the_end_of_a_topic(rig: Rig) -> None:
    await fill(rig, terminate=True)
    async with rig[1].consumer("t", "s") as consumer:
        for _ in range(2):
            received = 0
            async with asyncio.timeout(PATIENCE_S):
                async for message in consumer:
                    await consumer.ack(message)
                    received += 1
            assert received == 3
            await consumer.seek(EARLIEST)


async def test_grouped_acks_reach_the_broker_before_it_delivers_again(rig: Rig) -> None:
    await fill(rig)
    client = rig[1]
    async with client.consumer("t", "s", ack_group_s=100.0) as consumer:
        for _ in range(3):
            await consumer.ack(await consumer.receive(PATIENCE_S))
        drop_connections(client)
        with pytest.raises(OperationTimeout):
            await consumer.receive(SILENCE_S)
        assert consumer.stats.reconnects == 1


async def test_the_rest_of_a_message_whose_first_chunk_is_acknowledged_is_not_kept(
    rig: Rig,
) -> None:
    """The broker has recorded a part of an ack before the connection was lost."""
    service, client = rig
    async with (
        client.consumer("t", "s") as consumer,
        client.producer("t", batching=None, chunking=True, chunk_bytes_max=1 << 20) as producer,
    ):
        await producer.send(b"x" * CHUNKED_BYTES)
        message = await consumer.receive(PATIENCE_S)
        acks = message.entry.acks
        acks.group.add(message.entry.chunk_ids[0])
        acks.flush()
        await consumer.last_message_ids()  # the broker has read it
        drop_connections(client)
        await producer.send(b"next")
        message = await consumer.receive(PATIENCE_S)
        assert message.value == b"next"
        await consumer.ack(message)
    topic = service.topics.loaded(parse_topic("t"))
    assert isinstance(topic, PersistentTopic)
    async with asyncio.timeout(PATIENCE_S):
        while topic.subscriptions["s"].cursor.backlog:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)


async def test_a_consumer_acknowledges_what_another_has_received(rig: Rig) -> None:
    await fill(rig)
    client = rig[1]
    first = await client.consumer("t", "s", ack_receipt=True)
    foreign = [await first.receive(PATIENCE_S) for _ in range(3)]
    await first.close()
    async with client.consumer("t", "s", ack_receipt=True) as second:
        own = [await second.receive(PATIENCE_S) for _ in range(3)]
        assert own[0].id == foreign[0].id
        await second.ack(foreign[0])
        await second.ack_many([foreign[1].id, own[2]])
    async with client.consumer("t", "s") as third:
        with pytest.raises(OperationTimeout):
            await third.receive(SILENCE_S)


async def test_a_producer_survives_a_supplier_of_tokens_that_raises(rig: Rig) -> None:
    fails, called = False, asyncio.Event()

    def supply() -> str:
        called.set()
        if fails:
            raise KeyError("no such secret")
        return "token"

    url = rig[1].service_url
    async with (
        Client(url, auth=TokenSupplier(supply), backoff_max_s=0.1) as client,
        client.producer("t") as producer,
    ):
        await producer.send(b"1")
        called.clear()
        fails = True
        drop_connections(client)
        await called.wait()
        fails = False
        async with asyncio.timeout(PATIENCE_S):
            await producer.send(b"2")


@pytest.mark.parametrize("key", ["k", None])
async def test_a_cancelled_run_gives_back_what_it_has_not_handled(
    rig: Rig, key: str | None
) -> None:
    client = rig[1]
    await (await client.consumer("t", "s")).close()
    async with client.producer("t") as producer:
        for index in range(5):
            await producer.send(b"%d" % index, key=key)
    async with client.consumer(
        "t", "s", type=SubscriptionType.SHARED,
        negative_ack_delay_s=0.01,
    ) as consumer:  # fmt: skip
        begun: list[Message[bytes]] = []

        async def handle(message: Message[bytes]) -> None:
            begun.append(message)
            await asyncio.Event().wait()

        run = asyncio.create_task(consumer.run(handle, concurrency=2))
        while not begun or consumer.stats.messages_received < 3:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        async with asyncio.timeout(PATIENCE_S):
            again = {(await consumer.receive()).value for _ in range(5)}
        assert len(again) == 5


async def test_a_lazy_partition_that_attaches_as_its_producer_closes_is_closed(rig: Rig) -> None:
    service, client = rig
    await service.topics.create_partitioned(parse_topic("p"), 2, {})
    producer = await client.producer("p", lazy=True)
    first = producer._router.first
    (other,) = (lane for lane in producer._lanes if lane.partition != first)
    attaching = asyncio.create_task(other.open())
    context = client._context
    assert context is not None
    (connection,) = context.pool._connections.values()
    while other._producer_id not in connection._producers:  # noqa: ASYNC110 - it is not announced
        await asyncio.sleep(0)
    await producer.close()
    with pytest.raises(AlreadyClosed):
        await attaching
    topic = service.topics.loaded(parse_topic(other.topic))
    async with asyncio.timeout(PATIENCE_S):
        while topic is not None and topic.producers:  # noqa: ASYNC110 - the broker shares the loop
            await asyncio.sleep(0)


@pytest.mark.parametrize("event", ["unload", "lost connection"])
async def test_a_wait_for_exclusive_access_goes_on(rig: Rig, event: str) -> None:
    service, client = rig
    async with Client(client.service_url, backoff_max_s=0.1) as other:
        holder = await other.producer("t", access_mode=AccessMode.EXCLUSIVE)
        waiting = asyncio.create_task(
            client.producer("t", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE).opened()
        )
        topic = service.topics.loaded(parse_topic("t"))
        assert isinstance(topic, PersistentTopic)
        while not topic.producers.waiting:  # noqa: ASYNC110 - the broker shares the loop
            await asyncio.sleep(0)
        if event == "unload":
            await service.topics.unload(parse_topic("t"))
        else:
            drop_connections(client)
        await holder.close()
        async with asyncio.timeout(PATIENCE_S):
            producer = await waiting
        await producer.send(b"x")
        await producer.close()


async def test_an_unsubscribe_that_one_topic_refuses_may_be_repeated(rig: Rig) -> None:
    service, client = rig
    shared = SubscriptionType.SHARED
    consumer = await client.consumer(["t", "u"], "s", type=shared)
    async with client.consumer("u", "s", type=shared):
        with pytest.raises(ClientError):
            await consumer.unsubscribe()
    await consumer.unsubscribe()
    for name in "tu":
        topic = service.topics.loaded(parse_topic(name))
        assert topic is not None
        assert not topic.subscriptions


class Failing(ConsumerInterceptor):
    """Raises in each method; `before_consume` returns nothing."""

    def before_consume(self, message: Message[Any]) -> Message[Any]:
        return None  # type: ignore[return-value]

    def _fail(self, *_: Any) -> None:
        raise RuntimeError("interceptor")

    on_ack: Any = _fail
    on_negative_ack: Any = _fail
    on_ack_timeout: Any = _fail
    close: Any = _fail


async def test_interceptors_that_fail_stop_no_message(rig: Rig) -> None:
    await fill(rig)
    async with rig[1].consumer(
        "t", "s", interceptors=[Failing()], negative_ack_delay_s=0.01, ack_timeout_s=0.2,
        ack_timeout_tick_s=0.05, type=SubscriptionType.SHARED,
    ) as consumer:  # fmt: skip
        for _ in range(3):
            await consumer.receive(PATIENCE_S)
        for _ in range(3):  # after the ack timeout
            message = await consumer.receive(PATIENCE_S)
            await consumer.nack(message)
        for _ in range(3):
            await consumer.ack(await consumer.receive(PATIENCE_S))
        with pytest.raises(OperationTimeout):
            await consumer.receive(SILENCE_S)


async def test_permits_that_were_refused_are_not_returned() -> None:
    permits = Permits(1)
    assert permits.try_take(1)
    waiting = asyncio.create_task(permits.take(1))
    await asyncio.sleep(0)
    permits.fail_waiters(AlreadyClosed("closed"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert permits.taken == 1
