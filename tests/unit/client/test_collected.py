"""A closed consumer or reader is freed: messages are invisible to the garbage collector.

They are so for speed, and therefore a consumer must not refer to a message, or to the id of one,
once it is closed: the cycle would never be collected.
"""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest
from tests.support.broker import running_broker

from magnetar.client import Client, InitialPosition

PATIENCE_S = 10.0


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        async with client.producer("t") as producer:
            await asyncio.gather(*(producer.send(b"%d" % number, key="k") for number in range(5)))
        yield client


async def used_reader(client: Client) -> weakref.ref[object]:
    async with client.reader("t") as reader:
        await reader.read(PATIENCE_S)
        await reader.has_message_available()
        return weakref.ref(reader)


async def used_consumer(client: Client) -> weakref.ref[object]:
    async with client.consumer(
        "t", "s", initial_position=InitialPosition.EARLIEST, batch_index_ack=True
    ) as consumer:
        message = await consumer.receive(PATIENCE_S)
        await consumer.seek(message.id)
        message = await consumer.receive(PATIENCE_S)
        await consumer.ack(message)
        await consumer.nack(await consumer.receive(PATIENCE_S))
        return weakref.ref(consumer)


async def used_view(client: Client) -> weakref.ref[object]:
    async with client.table_view("t") as view:
        assert view["k"] == b"4"
        return weakref.ref(view)


def partition_consumers() -> list[object]:
    return [each for each in gc.get_objects() if type(each).__name__ == "PartitionConsumer"]


@pytest.mark.parametrize("use", [used_reader, used_consumer, used_view])
async def test_what_was_closed_is_freed(client: Client, use: object) -> None:
    assert callable(use)
    earlier = partition_consumers()  # of other tests, which may still refer to them
    used = await use(client)
    sources = [
        weakref.ref(each)
        for each in partition_consumers()
        if not any(each is one for one in earlier)
    ]
    await asyncio.sleep(0)
    gc.collect()
    assert used() is None
    assert not [source() for source in sources if source() is not None]


async def test_a_refresh_that_waits_for_a_message_without_a_key(client: Client) -> None:
    async with client.table_view("t") as view, client.producer("t") as producer:
        await producer.send(b"no key")
        async with asyncio.timeout(PATIENCE_S):
            await view.refresh()
        assert view["k"] == b"4"
