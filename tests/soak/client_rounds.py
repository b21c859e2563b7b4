"""What programs do with our client, as short rounds: open, send, receive, move, leave.

A round leaves nothing: no task, no permit, and only topics and subscriptions whose names come from
small sets, so that the server's state stays bounded as well. Each may be cancelled at any await.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from magnetar.client import (
    EARLIEST,
    LATEST,
    AccessMode,
    Batching,
    BatchReceive,
    Client,
    Compression,
    Consumer,
    DeadLetterPolicy,
    InitialPosition,
    JsonSchema,
    Message,
    Producer,
    SubscriptionType,
)

TOPICS: Final = 20
PARTITIONS: Final = 3
SENT: Final = 30
BODY: Final = b"x" * 200
LARGE: Final = b"y" * (6 << 20)
"""More than the broker takes in one entry: it is sent in chunks."""
WAIT_S: Final = 5.0
"""For messages that a restart of the server, or another round, may have taken."""
NAMESPACE: Final = "public/default"
PARTITIONED: Final = f"persistent://{NAMESPACE}/soak-partitioned"
TYPES: Final = tuple(SubscriptionType)


@dataclass(frozen=True, slots=True)
class Order:
    """The value of rounds with a schema."""

    number: int
    note: str | None = None


class Rounds:
    """The rounds of one client."""

    def __init__(self, client: Client, url: str, rng: Random) -> None:
        self._client, self._url, self._rng = client, url, rng
        self._numbers = itertools.count()

    def draw(self) -> tuple[str, Callable[[], Awaitable[None]]]:
        """Returns the next round with its name."""
        rounds: list[Callable[[], Awaitable[None]]] = [
            self.send_and_receive, self.send_and_receive, self.subscriptions, self.redeliveries,
            self.letters, self.seeks, self.readers, self.table_views, self.transactions,
            self.several_topics, self.patterns, self.chunks, self.listeners, self.exclusive,
            self.records, self.own_client,
        ]  # fmt: skip
        chosen = rounds[next(self._numbers) % len(rounds)]
        return chosen.__name__, chosen

    def _topic(self, kind: str = "plain") -> str:
        if self._rng.random() < 0.3:
            return PARTITIONED
        return f"persistent://{NAMESPACE}/soak-{kind}-{self._rng.randrange(TOPICS)}"

    def _producer(self, topic: str) -> Any:
        options: dict[str, Any] = self._rng.choice(
            [
                {},
                {"batching": None},
                {"batching": Batching(by_key=True)},
                {"compression": Compression.ZLIB},
                {"max_pending_messages": 10, "batching": Batching(messages_max=5)},
                {"lazy": True},
            ]
        )
        return self._client.producer(topic, **options)

    async def _send(self, producer: Producer[bytes], count: int = SENT) -> None:
        await asyncio.gather(
            *(producer.send(BODY, key=f"k{number % 7}") for number in range(count))
        )

    async def _skip(self, consumer: Consumer[Any]) -> None:
        """Moves the subscription to the end, so that no backlog grows."""
        await consumer.seek(LATEST)

    async def send_and_receive(self) -> None:
        """A producer and a consumer with options of all kinds."""
        topic = self._topic()
        options: dict[str, Any] = self._rng.choice(
            [
                {},
                {"ack_receipt": True},
                {"batch_index_ack": True, "ack_receipt": True},
                {"receiver_queue_size": 0},
                {"auto_scale_receiver_queue": True},
                {"ack_group_s": 0.0},
            ]
        )
        if topic == PARTITIONED:
            options.pop("receiver_queue_size", None)
        async with self._client.consumer(
            topic, "shared", type=SubscriptionType.SHARED, **options
        ) as consumer:
            async with self._producer(topic) as producer:
                await self._send(producer)
            for _ in range(SENT // 2):
                await consumer.ack(await consumer.receive(WAIT_S))

    async def subscriptions(self) -> None:
        """Two consumers of each type; the second one may be refused."""
        kind = self._rng.choice(TYPES)
        topic = self._topic(kind.name.lower())
        name = f"type-{kind.name.lower()}"
        async with self._client.consumer(topic, name, type=kind) as one:
            if kind is not SubscriptionType.EXCLUSIVE:
                await (await self._client.consumer(topic, name, type=kind)).close()
            async with self._producer(topic) as producer:
                await self._send(producer)
            message = await one.receive(WAIT_S)
            if kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
                await one.ack_cumulative(message)
            one.pause()
            one.resume()
            if self._rng.random() < 0.5:
                await one.unsubscribe()
            else:
                await self._skip(one)

    async def redeliveries(self) -> None:
        """Negative acks, an ack timeout, and a redelivery of everything."""
        topic = self._topic("again")
        async with self._client.consumer(
            topic, "again", type=SubscriptionType.SHARED,
            negative_ack_delay_s=0.1, ack_timeout_s=1.0, ack_timeout_tick_s=0.2,
        ) as consumer:  # fmt: skip
            async with self._producer(topic) as producer:
                await self._send(producer)
            for _ in range(5):
                await consumer.nack(await consumer.receive(WAIT_S))
            await consumer.receive(WAIT_S)
            await consumer.redeliver_unacknowledged()
            messages = await consumer.receive_many(BatchReceive(messages_max=10, timeout_s=0.2))
            await consumer.ack_many(messages)
            await self._skip(consumer)

    async def letters(self) -> None:
        """Retry letters and dead letters."""
        topic = f"persistent://{NAMESPACE}/soak-letters"
        async with self._client.consumer(
            topic, "letters", type=SubscriptionType.SHARED, retry_enabled=True,
            dead_letter=DeadLetterPolicy(max_redeliver_count=1), negative_ack_delay_s=0.1,
        ) as consumer:  # fmt: skip
            async with self._producer(topic) as producer:
                await self._send(producer, 5)
            await consumer.reconsume_later(await consumer.receive(WAIT_S), 0.1)
            for _ in range(8):
                await consumer.nack(await consumer.receive(WAIT_S))

    async def seeks(self) -> None:
        """Seeks back and forth while messages come."""
        topic = self._topic("seek")
        async with self._client.consumer(topic, "seek") as consumer:
            async with self._producer(topic) as producer:
                await self._send(producer)
            message = await consumer.receive(WAIT_S)
            if topic != PARTITIONED:
                await consumer.seek(message.id, inclusive=self._rng.random() < 0.5)
            await consumer.seek(EARLIEST)
            await consumer.seek(message.publish_time_ms)
            await consumer.last_message_ids()
            await self._skip(consumer)

    async def readers(self) -> None:
        """A reader from the beginning and one from the end."""
        topic = self._topic()
        async with (
            self._client.reader(topic, EARLIEST) as early,
            self._client.reader(topic, LATEST, receiver_queue_size=10) as late,
        ):
            async with self._producer(topic) as producer:
                await self._send(producer)
            await late.read(WAIT_S)
            await early.read(WAIT_S)
            await early.has_message_available()
            await late.seek(EARLIEST)

    async def table_views(self) -> None:
        """A view with a listener."""
        topic = f"persistent://{NAMESPACE}/soak-table"
        async with self._producer(topic) as producer:
            await self._send(producer)
        seen: list[str] = []
        async with self._client.table_view(topic) as view:
            view.listen(lambda key, _value: seen.append(key), existing=True)
            await view.refresh()

    async def transactions(self) -> None:
        """Commits, aborts by an exception, and leaves transactions to their timeout."""
        topic = self._topic("txn")
        async with (
            self._client.consumer(topic, "txn", type=SubscriptionType.SHARED) as consumer,
            self._client.producer(topic) as producer,
        ):
            async with self._client.transaction(10.0) as txn:
                await producer.send(BODY, transaction=txn)
            message = await consumer.receive(WAIT_S)
            try:
                async with self._client.transaction(10.0) as txn:
                    await producer.send(BODY, transaction=txn)
                    await consumer.ack(message, transaction=txn)
                    raise LookupError
            except LookupError:
                pass
            await self._client.transaction(0.5)
            await self._skip(consumer)

    async def several_topics(self) -> None:
        """One consumer of several topics, one of them partitioned."""
        topics = [PARTITIONED, *(self._topic() for _ in range(4))]
        async with self._client.consumer(
            topics, "several", type=SubscriptionType.SHARED, update_partitions_s=0.5
        ) as consumer:
            async with self._producer(topics[-1]) as producer:
                await self._send(producer)
            await consumer.receive_many(BatchReceive(messages_max=10, timeout_s=1.0))
            await self._skip(consumer)

    async def patterns(self) -> None:
        """A pattern over topics that others create."""
        async with self._client.pattern_consumer(
            f"{NAMESPACE}/soak-plain-.*", "pattern", type=SubscriptionType.SHARED
        ) as consumer:
            async with self._client.producer(
                f"persistent://{NAMESPACE}/soak-plain-{self._rng.randrange(TOPICS)}"
            ) as producer:
                await self._send(producer)
            await consumer.receive_many(BatchReceive(messages_max=10, timeout_s=1.0))
            await self._skip(consumer)

    async def chunks(self) -> None:
        """A large message, now and then."""
        body = LARGE if self._rng.random() < 0.2 else BODY
        topic = f"persistent://{NAMESPACE}/soak-chunks"
        async with (
            self._client.consumer(topic, "chunks", type=SubscriptionType.SHARED) as consumer,
            self._client.producer(topic, chunking=True) as producer,
        ):
            await producer.send(body)
            await consumer.ack(await consumer.receive(WAIT_S))

    async def listeners(self) -> None:
        """`run` with a handler that fails now and then, until it is cancelled."""
        topic = self._topic("run")
        handled = asyncio.Event()

        async def handle(message: Message[bytes]) -> None:
            handled.set()
            await asyncio.sleep(0.001)
            if self._rng.random() < 0.1:
                raise LookupError

        async with self._client.consumer(
            topic, "run", type=SubscriptionType.KEY_SHARED, negative_ack_delay_s=0.1
        ) as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=8))
            try:
                async with self._producer(topic) as producer:
                    await self._send(producer)
                async with asyncio.timeout(WAIT_S):
                    await handled.wait()
            finally:
                running.cancel()
                await asyncio.wait([running])
            await self._skip(consumer)

    async def exclusive(self) -> None:
        """A producer that waits for its turn, and is cancelled or gets it."""
        topic = f"persistent://{NAMESPACE}/soak-exclusive-{self._rng.randrange(TOPICS)}"
        waits = AccessMode.WAIT_FOR_EXCLUSIVE
        async with self._client.producer(topic, access_mode=AccessMode.EXCLUSIVE) as first:

            async def wait() -> None:
                async with self._client.producer(topic, access_mode=waits) as second:
                    await second.send(BODY)

            waiting = asyncio.create_task(wait())
            await first.send(BODY)
            if self._rng.random() < 0.5:
                waiting.cancel()
            await first.close()
        try:
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait([waiting])
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def records(self) -> None:
        """Values with a schema."""
        topic = f"persistent://{NAMESPACE}/soak-records"
        schema = JsonSchema(Order)
        async with (
            self._client.consumer(
                topic, "records", schema=schema, type=SubscriptionType.SHARED,
                initial_position=InitialPosition.EARLIEST,
            ) as consumer,
            self._client.producer(topic, schema=schema) as producer,
        ):  # fmt: skip
            await producer.send(Order(7))
            message = await consumer.receive(WAIT_S)
            assert message.value.number == 7
            await consumer.ack(message)

    async def own_client(self) -> None:
        """A client of its own, which is closed with everything that it has open."""
        async with Client(self._url) as client:
            topic = self._topic()
            await client.consumer(topic, "left", type=SubscriptionType.SHARED)
            await client.reader(topic)
            producer = await client.producer(topic)
            for _ in range(SENT):
                producer.send_nowait(BODY)
