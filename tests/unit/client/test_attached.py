"""The client beside a real broker: lost connections, cancellations, leaks, forks."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any, get_type_hints

import pytest
from tests.support.broker import running_broker

from magnetar.client import (
    BytesSchema,
    Client,
    ClientOptions,
    Compression,
    ConsumerOptions,
    Hashing,
    InitialPosition,
    OutgoingMessage,
    ProducerOptions,
    ReaderOptions,
    SubscriptionType,
)
from magnetar.client.errors import (
    ClientError,
    InvalidConfiguration,
    OperationTimeout,
    ProducerQueueIsFull,
    SchemaFailed,
    UsedAfterFork,
)
from magnetar.client.options import (
    ClientKeywords,
    ConsumerKeywords,
    ProducerKeywords,
    ReaderKeywords,
)
from magnetar.client.producer.routing import key_hash

PATIENCE_S = 60.0


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        yield client


def drop_connections(client: Client) -> None:
    """Aborts all connections of a client, as a network that fails."""
    context = client._context
    assert context is not None
    for connection in list(context.pool._connections.values()):
        connection.abort("dropped by the test")


async def test_a_message_that_was_given_back_to_a_reader_survives_a_lost_connection(
    client: Client,
) -> None:
    async with client.producer("t", batching=None) as producer:
        for number in range(3):
            await producer.send(b"%d" % number)
    async with client.reader("t", receiver_queue_size=1) as reader:
        assert (await reader.read(PATIENCE_S)).data == b"0"
        given_back = await reader.read(PATIENCE_S)
        given_back.entry.source.untake(given_back)  # as an interrupted call does
        drop_connections(client)
        await given_back.entry.source.attached()
        assert await reader.has_message_available()
        assert [(await reader.read(PATIENCE_S)).data for _ in range(2)] == [b"1", b"2"]


async def test_messages_survive_lost_connections_in_order(client: Client) -> None:
    count = 300
    async with (
        client.consumer("t", "sub", initial_position=InitialPosition.EARLIEST) as consumer,
        client.producer("t", batching=None) as producer,
    ):
        futures = []
        for number in range(count):
            futures.append(producer.send_nowait(b"%d" % number))
            if number % 100 == 50:
                await asyncio.sleep(0)
                drop_connections(client)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*futures)
            seen: list[int] = []
            while len(set(seen)) < count:
                message = await consumer.receive()
                seen.append(int(message.data))
                await consumer.ack(message)
        first_seen = list(dict.fromkeys(seen))
        assert first_seen == list(range(count))
        assert producer.stats.reconnects >= 1
        assert producer.stats.pending_messages == 0


async def test_random_cancellations_leak_no_task_and_no_permit(client: Client) -> None:
    chance = random.Random(7)
    before = len(asyncio.all_tasks())
    async with (
        client.consumer("t", "sub", type=SubscriptionType.SHARED) as consumer,
        client.producer("t", max_pending_messages=20, batching=None) as producer,
    ):
        tasks: list[asyncio.Task[Any]] = []
        for number in range(1000):
            action: Any = chance.choice(
                (
                    lambda: producer.send(b"x" * 100),
                    consumer.receive,
                    consumer.receive_many,
                    consumer.last_message_ids,
                    producer.flush,
                )
            )
            tasks.append(asyncio.create_task(action()))
            if chance.random() < 0.3:
                await asyncio.sleep(0)
            chance.choice(tasks).cancel()
            if number % 100 == 0:
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [
            r for r in results if isinstance(r, Exception) and not isinstance(r, ClientError)
        ]
        async with asyncio.timeout(PATIENCE_S):
            await producer.flush()
        context = client._context
        assert context is not None
        assert context.memory.taken == 0
        assert producer._total.taken == 0
        assert producer._lanes[0].permits.taken == 0
        assert not consumer._queue.waiting
        await producer.send(b"last")
        async with asyncio.timeout(PATIENCE_S):
            while (await consumer.receive()).data != b"last":
                pass
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= before + 5  # the connection's own in broker and client


async def test_limits_fail_or_wait(client: Client) -> None:
    async with client.producer("t", max_pending_messages=2, batching=None) as producer:
        futures = [producer.send_nowait(b"x") for _ in range(2)]
        with pytest.raises(ProducerQueueIsFull) as full:
            producer.send_nowait(b"x")
        assert full.value.retryable
        await producer.send(b"waits")
        await asyncio.gather(*futures)


async def test_a_receive_with_a_timeout(client: Client) -> None:
    async with client.consumer("t", "sub") as consumer:
        for _ in range(3):
            with pytest.raises(OperationTimeout):
                await consumer.receive(0.01)
        assert not consumer._queue.waiting


async def test_round_robin_leaves_out_a_blocked_partition(client: Client) -> None:
    class Lane:
        def __init__(self, *, blocked: bool) -> None:
            self.blocked = blocked
            self.batch_is_open = False

    from magnetar.client.options import RoundRobin
    from magnetar.client.producer.routing import Router

    lanes = [Lane(blocked=number == 3) for number in range(10)]
    router = Router(
        RoundRobin(), Hashing.JAVA_STRING, sticky=True, partitions=10, random=random.Random(1)
    )
    chosen = []
    for _ in range(100):
        index = router.choose(OutgoingMessage(b""), lanes)
        chosen.append(index)
        lanes[index].batch_is_open = len(chosen) % 5 != 0
    assert 3 not in chosen
    assert set(chosen) == set(range(10)) - {3}
    assert chosen[:5] == [chosen[0]] * 5, "a partition keeps messages until its batch is sent"


def test_hashes_of_keys() -> None:
    message = OutgoingMessage(b"", "null")
    assert key_hash(Hashing.JAVA_STRING, message) == 3392903, "as Java's String.hashCode"
    binary = OutgoingMessage(b"", None, b"null")
    assert key_hash(Hashing.JAVA_STRING, binary) == key_hash(
        Hashing.JAVA_STRING, OutgoingMessage(b"", "bnVsbA==")
    )


async def test_use_after_a_fork_fails_clearly(client: Client) -> None:
    async with client.producer("t") as producer:
        child = os.fork()
        if child == 0:
            try:
                producer.send_nowait(b"x")
            except UsedAfterFork:
                with contextlib.suppress(StopIteration):
                    producer.close().send(None)  # returns at once: the connection is the parent's
                    os._exit(2)
                os._exit(7)
            os._exit(1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        await producer.send(b"the parent is as before")


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        (ClientOptions, ClientKeywords),
        (ProducerOptions, ProducerKeywords),
        (ConsumerOptions, ConsumerKeywords),
        (ReaderOptions, ReaderKeywords),
    ],
)
def test_keywords_are_the_options(options: type, keywords: type) -> None:
    assert get_type_hints(options) == get_type_hints(keywords)


@pytest.mark.parametrize(
    "options",
    [
        {"max_pending_messages": 10},
        {"encryption": object()},
        {"no_such_option": 1},
        {"send_timeout_s": -1},
    ],
)
async def test_options_that_cannot_be_honored(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration):
        client.producer("t", **options)


async def test_zlib_needs_nothing_and_urls_carry_options(client: Client) -> None:
    async with client.producer("t", compression=Compression.ZLIB) as producer:
        await producer.send(b"x" * 1000)
    parsed = Client.from_url("pulsar://h:1?token=abc&operation_timeout_s=5")
    assert (parsed.service_url, parsed.options.operation_timeout_s) == ("pulsar://h:1", 5.0)
    assert await parsed.options.auth.credentials() == b"abc"
    with pytest.raises(InvalidConfiguration):
        Client.from_url("pulsar://h:1?tokn=abc")
    assert Client.from_env(
        {"MAGNETAR_URL": "pulsar://h", "MAGNETAR_LISTENER": "x"}
    ).options.listener


def test_importing_the_client_is_cheap() -> None:
    code = (
        "import sys; import magnetar.client; from magnetar.client import Client; "
        "heavy = {'google.protobuf', 'msgspec', 'httpx', 'cryptography', 'cramjam', 'zstandard'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == "[]"


class Undecodable(BytesSchema):
    """A schema of users whose `decode` fails."""

    def decode(self, data: bytes, version: bytes | None) -> bytes:
        raise ValueError("not mine")


async def test_a_table_view_whose_schema_fails_ends(client: Client) -> None:
    async with (
        client.table_view("t", schema=Undecodable()) as view,
        client.producer("t") as producer,
    ):
        await producer.send(b"x", key="k")
        with pytest.raises(SchemaFailed, match="not mine"):
            async with asyncio.timeout(PATIENCE_S):
                await view.refresh()
