"""Dead letters: a message stays until its letter is stored; no producer outlives its consumer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.broker import running_broker

from magnetar.broker.service import BrokerService
from magnetar.client import Client, DeadLetterPolicy, SubscriptionType
from magnetar.client.consumer.letters import LetterTopics
from magnetar.client.errors import AlreadyClosed, TopicNotFound
from magnetar.client.producer.producer import Producer
from magnetar.core.names import parse_topic
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.topics import TopicSettings

PATIENCE_S = 10.0
DEAD = "t-s-DLQ"
OPTIONS: dict[str, Any] = {
    "type": SubscriptionType.SHARED,
    "negative_ack_delay_s": 0.01,
    "dead_letter": DeadLetterPolicy(max_redeliver_count=1),
}
Rig = tuple[BrokerService, Client]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    settings = BrokerSettings(topics=TopicSettings(auto_topic_creation=False))
    async with (
        running_broker(settings) as (service, port),
        Client(f"pulsar://127.0.0.1:{port}", backoff_max_s=0.1) as client,
    ):
        await service.topics.create(parse_topic("t"), {})
        yield service, client


async def test_a_message_stays_while_its_dead_letter_is_refused(rig: Rig) -> None:
    service, client = rig
    async with client.producer("t") as producer, client.consumer("t", "s", **OPTIONS) as consumer:
        refused = asyncio.Event()
        assert consumer._letters is not None
        dead = consumer._letters.dead

        async def noted(messages: Any) -> None:
            try:
                await dead(messages)
            except TopicNotFound:
                refused.set()
                raise

        consumer._letters.dead = noted
        for round_ in (b"1", b"2"):
            await producer.send(round_)
            refused.clear()
            handling = asyncio.create_task(_refuse_all(consumer))
            async with asyncio.timeout(PATIENCE_S):
                await refused.wait()
            await service.topics.create(parse_topic(DEAD), {})
            async with client.reader(DEAD) as reader:
                assert (await reader.read(PATIENCE_S)).value == round_
            handling.cancel()
            # The producer of letters ends with its topic; the next letter needs another.
            await service.topics.delete(parse_topic(DEAD), force=True)
            (letters,) = consumer._letters._producers.values()
            async with asyncio.timeout(PATIENCE_S):
                while not letters.ended:  # noqa: ASYNC110 - the broker shares the loop
                    await asyncio.sleep(0.01)


async def _refuse_all(consumer: Any) -> None:
    async for message in consumer:
        await consumer.nack(message)


async def test_a_producer_that_opens_as_the_consumer_closes_is_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, client = rig
    await service.topics.create(parse_topic(DEAD), {})
    async with client.consumer("t", "s", **OPTIONS) as consumer:
        letters = consumer._letters
        assert isinstance(letters, LetterTopics)
        opened, opening = Producer.open, asyncio.Event()

        async def open_(producer: Producer[Any]) -> None:
            await opened(producer)
            await letters.close()
            opening.set()

        monkeypatch.setattr(Producer, "open", open_)
        with pytest.raises(AlreadyClosed):
            await letters._producer(str(parse_topic(DEAD)), "")
        assert opening.is_set()
    topic = service.topics.loaded(parse_topic(DEAD))
    assert topic is not None
    assert not topic.producers
