"""Pattern consumers: what happens to one topic is not felt by the others."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.broker import running_broker

from magnetar.broker.service import BrokerService
from magnetar.client import Client, Consumer
from magnetar.core.names import parse_topic
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.topics import TopicSettings

PATIENCE_S = 10.0
POLL_S = 0.05
PATTERN = "public/default/p-.*"
Rig = tuple[BrokerService, Client]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    settings = BrokerSettings(topics=TopicSettings(auto_topic_creation=False))
    async with (
        running_broker(settings) as (service, port),
        Client(f"pulsar://127.0.0.1:{port}", backoff_max_s=0.1) as client,
    ):
        for name in "12":
            await service.topics.create(parse_topic(f"p-{name}"), {})
        yield service, client


async def consumes(consumer: Consumer[bytes], *names: str) -> None:
    """Waits until the consumer has these topics."""
    wanted = {str(parse_topic(f"p-{name}")) for name in names}
    async with asyncio.timeout(PATIENCE_S):
        while set(consumer.topics) != wanted:  # noqa: ASYNC110 - the broker shares the loop
            await asyncio.sleep(POLL_S)


async def test_a_topic_that_cannot_be_attached_keeps_no_other_out(rig: Rig) -> None:
    service, client = rig
    async with client.pattern_consumer(PATTERN, "s", update_partitions_s=POLL_S) as consumer:
        await service.topics.create(parse_topic("unseen"), {})
        held = asyncio.Event()
        async with consumer._topics._changes:  # so that both are found together
            await service.topics.create(parse_topic("p-3"), {})
            await service.topics.create(parse_topic("p-4"), {})
            other = await client.consumer("p-3", "s")
            asyncio.get_running_loop().call_later(4 * POLL_S, held.set)
            await held.wait()
        await consumes(consumer, "1", "2", "4")
        await other.close()
        await consumes(consumer, "1", "2", "3", "4")


async def test_a_deleted_topic_does_not_end_the_others(rig: Rig) -> None:
    """Without a watch, the refused reconnect comes before the list without the topic."""
    service, client = rig
    async with (
        client.pattern_consumer(
            PATTERN, "s", pattern_mode="all", update_partitions_s=3_600.0
        ) as consumer,
        client.producer("p-1") as producer,
    ):
        await service.topics.delete(parse_topic("p-2"), force=True)
        await consumes(consumer, "1")
        receiving = asyncio.create_task(consumer.receive(PATIENCE_S))
        await asyncio.sleep(0)
        await producer.send(b"still")
        assert (await receiving).value == b"still"
