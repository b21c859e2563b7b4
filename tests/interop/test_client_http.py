"""Our own client with an HTTP service URL: topics are found by the admin REST."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from magnetar.client import (
    EARLIEST,
    AutoConsumeSchema,
    AvroSchema,
    Client,
    InitialPosition,
    KeyValue,
    KeyValueSchema,
    StringSchema,
)
from magnetar.client.errors import TopicNotFound

from .client_rig import take, values
from .support import Names, ServerAddress, numbered


@pytest.fixture
async def own(server: ServerAddress) -> AsyncIterator[Client]:
    async with Client(server.http_url) as client:
        yield client


@dataclass
class Thing:
    a: str


@pytest.fixture
def partitioned(names: Names, admin: httpx.Client) -> str:
    """A topic with three partitions."""
    path = f"/admin/v2/persistent/{names.path}/parts/partitions"
    admin.put(path, json=3).raise_for_status()
    return names.topic("parts")


async def test_topics_with_and_without_partitions(
    own: Client, names: Names, partitioned: str
) -> None:
    for topic in (partitioned, names.topic("one ü%")):
        async with own.consumer(topic, "sub") as consumer, own.producer(topic) as producer:
            for body in numbered(30):
                await producer.send(body, key=body.decode())
            assert sorted(values(await take(consumer, 30, ack=True))) == sorted(numbered(30))
    assert len(await own.partitions(partitioned)) == 3
    with pytest.raises(TopicNotFound):
        await own.partitions(names.topic("not-there"))


async def test_schemas_of_writers(own: Client, topic: str) -> None:
    schema = KeyValueSchema(StringSchema(), AvroSchema(Thing))
    async with own.producer(topic, schema=schema) as producer:
        await producer.send(KeyValue("k", Thing("x")))
    async with own.reader(topic, EARLIEST, schema=AutoConsumeSchema()) as reader:
        assert (await reader.read(30)).value == ("k", {"a": "x"})
    async with own.reader(topic, EARLIEST, schema=schema) as typed:
        assert (await typed.read(30)).value == KeyValue("k", Thing("x"))


async def test_patterns_are_polled(own: Client, names: Names) -> None:
    async with own.producer(names.topic("a-1")) as first:
        await first.send(b"first")
    async with own.pattern_consumer(
        f"{names.path}/a-.*",
        "sub",
        initial_position=InitialPosition.EARLIEST,
        update_partitions_s=0.1,
    ) as consumer:
        assert values(await take(consumer, 1, ack=True)) == [b"first"]
        async with own.producer(names.topic("a-2")) as second:
            await second.send(b"second")
            assert values(await take(consumer, 1, ack=True)) == [b"second"]


async def test_transactions(own: Client, topic: str) -> None:
    async with own.consumer(topic, "sub") as consumer, own.producer(topic) as producer:
        async with own.transaction() as txn:
            await producer.send(b"committed", transaction=txn)
        assert values(await take(consumer, 1)) == [b"committed"]
