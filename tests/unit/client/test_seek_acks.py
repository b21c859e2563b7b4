"""A seek undoes acknowledgments: what was acknowledged before it must not count after it."""

import asyncio
import random
from contextlib import suppress

import pytest
from tests.support.broker import running_broker
from tests.unit.client.test_attached import drop_connections

from magnetar.client import (
    EARLIEST,
    Batching,
    Client,
    Consumer,
    InitialPosition,
    Message,
    MessageId,
)
from magnetar.client.errors import AckFailed, OperationTimeout
from magnetar.client.opening import Opening

PATIENCE_S = 60.0
START = InitialPosition.EARLIEST


async def taken(consumer: Consumer[bytes], count: int) -> list[tuple[bytes, MessageId]]:
    """Messages, and their ids as programs store them."""
    messages = [await consumer.receive(PATIENCE_S) for _ in range(count)]
    return [(m.value, MessageId.deserialize(m.id.serialize(), m.topic)) for m in messages]


async def test_acks_by_id_of_a_batch_before_a_seek_do_not_complete_it_after() -> None:
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        async with client.producer("orders", batching=Batching(delay_s=10)) as producer:
            futures = [producer.send_nowait(b"%d" % n) for n in range(3)]
            await producer.flush()
            assert all(future.done() for future in futures)
        async with client.consumer("orders", "s", initial_position=START) as consumer:
            (_, first), (_, second), _ = await taken(consumer, 3)
            await consumer.ack(first)
            await consumer.ack(second)
            await consumer.seek(EARLIEST)
            *_, (value, third) = await taken(consumer, 3)
            assert value == b"2"
            await consumer.ack(third)
        async with client.consumer("orders", "s") as consumer:
            assert [value for value, _ in await taken(consumer, 3)] == [b"0", b"1", b"2"]


async def test_acks_that_were_not_sent_before_a_seek_drop_nothing_after_it() -> None:
    """One waits for its group during the seek; one was made while there was no connection."""
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        async with client.producer("orders", batching=None) as producer:
            for n in range(2):
                await producer.send(b"%d" % n)
        async with client.consumer("orders", "s", initial_position=START) as consumer:
            first, second = [await consumer.receive(PATIENCE_S) for _ in range(2)]
            drop_connections(client)
            await asyncio.sleep(0)
            await consumer.ack(first)
            seeking = asyncio.create_task(consumer.seek(EARLIEST))
            (source,) = consumer._topics.sources.values()
            async with asyncio.timeout(PATIENCE_S):
                while not source.acks.held:  # noqa: ASYNC110  # no event says so
                    await asyncio.sleep(0)
            await consumer.ack(second)
            await seeking
            assert [value for value, _ in await taken(consumer, 2)] == [b"0", b"1"]
        async with client.consumer("orders", "s") as consumer:
            assert [value for value, _ in await taken(consumer, 2)] == [b"0", b"1"]


async def test_a_caller_that_waits_for_the_receipt_learns_of_the_seek() -> None:
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        async with client.producer("orders", batching=None) as producer:
            await producer.send(b"0")
        async with client.consumer(
            "orders", "s", initial_position=START, ack_receipt=True
        ) as consumer:
            message = await consumer.receive(PATIENCE_S)
            (source,) = consumer._topics.sources.values()
            source.acks.ack(message.entry, -1)
            waiting = asyncio.create_task(source.acks.receipt())
            await asyncio.sleep(0)
            source.acks.undo()
            with pytest.raises(AckFailed, match="seek"):
                await waiting


async def test_cancelled_seeks_leave_the_consumer_as_it_was() -> None:
    generator = random.Random(5)
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        async with client.producer("orders", batching=None) as producer:
            for n in range(5):
                await producer.send(b"%d" % n)
        async with client.consumer("orders", "s", initial_position=START) as consumer:
            tasks = len(asyncio.all_tasks())
            for _ in range(50):
                seeking = asyncio.create_task(consumer.seek(EARLIEST))
                for _ in range(generator.randrange(40)):
                    await asyncio.sleep(0)
                seeking.cancel()
                with suppress(asyncio.CancelledError):
                    await seeking
            await consumer.seek(EARLIEST)
            for n in range(5):
                message = await consumer.receive(PATIENCE_S)
                assert message.value == b"%d" % n
                await consumer.ack(message)
            assert len(asyncio.all_tasks()) == tasks
        async with client.consumer("orders", "s") as consumer:
            assert not await consumer.has_message_available()


@pytest.mark.parametrize("index_ack", [False, True])
async def test_messages_from_before_a_seek_acknowledge_nothing_after_it(index_ack: bool) -> None:
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        async with client.producer("orders", batching=Batching(delay_s=10)) as producer:
            for n in range(3):
                producer.send_nowait(b"%d" % n)
            await producer.flush()

        def subscribed() -> Opening[Consumer[bytes]]:
            return client.consumer("orders", "s", initial_position=START, batch_index_ack=index_ack)

        async with subscribed() as consumer:
            old = [await consumer.receive(PATIENCE_S) for _ in range(3)]
            await consumer.ack_many(old[:2])
            await consumer.seek(EARLIEST)
            new = [await consumer.receive(PATIENCE_S) for _ in range(3)]
            await consumer.ack(new[1])
            await consumer.ack(old[2])  # it would complete the batch that the first two left
            await consumer.ack(old[0].id)
            await consumer.ack_cumulative(old[2])
            assert new[0].entry.unacked == 0b101
        async with subscribed() as consumer:
            left = [b"0", b"2"] if index_ack else [b"0", b"1", b"2"]
            again = [await consumer.receive(PATIENCE_S) for _ in left]
            assert [message.value for message in again] == left
            await consumer.ack_many(again)
        async with client.consumer("orders", "s") as consumer:
            assert not await consumer.has_message_available()


async def test_an_ack_with_receipt_of_a_message_from_before_a_seek_fails() -> None:
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        async with client.producer("orders", batching=None) as producer:
            for n in range(2):
                await producer.send(b"%d" % n)
        async with client.consumer(
            "orders", "s", initial_position=START, ack_receipt=True
        ) as consumer:
            old = await consumer.receive(PATIENCE_S)
            await consumer.seek(EARLIEST)
            new = [await consumer.receive(PATIENCE_S) for _ in range(2)]
            for acknowledge in (consumer.ack, consumer.ack_cumulative):
                with pytest.raises(AckFailed, match="seek"):
                    await acknowledge(old)
            with pytest.raises(AckFailed, match="seek"):
                await consumer.ack_many([old, new[1]])  # the other one is acknowledged
        async with client.consumer("orders", "s") as consumer:
            assert (await consumer.receive(PATIENCE_S)).value == b"0"
            with pytest.raises(OperationTimeout):
                await consumer.receive(0.2)


@pytest.mark.parametrize("seeks", [True, False])
async def test_a_message_that_is_returned_late_does_not_come_before_its_place(seeks: bool) -> None:
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        async with client.producer("orders", batching=None) as producer:
            for n in range(3):
                await producer.send(b"%d" % n)
        async with client.consumer("orders", "s", initial_position=START) as consumer:
            handled = asyncio.Event()

            async def never(message: Message[bytes]) -> None:
                handled.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(consumer.run(never))
            async with asyncio.timeout(PATIENCE_S):
                await handled.wait()
                while consumer.stats.messages_received < 2:  # noqa: ASYNC110  # no event says so
                    await asyncio.sleep(0)
            if seeks:
                await consumer.seek(EARLIEST)
            else:
                drop_connections(client)
                async with asyncio.timeout(PATIENCE_S):
                    while not consumer.stats.reconnects:  # noqa: ASYNC110  # no event says so
                        await asyncio.sleep(0)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            assert [value for value, _ in await taken(consumer, 3)] == [b"0", b"1", b"2"]
            assert consumer.receive_nowait() is None
