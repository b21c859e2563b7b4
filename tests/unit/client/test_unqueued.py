"""Consumers without a receiver queue, beside a real broker: nothing is sent ahead or stalls."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.broker import running_broker

from magnetar.client import Batching, Client, Consumer, Producer, SubscriptionType
from magnetar.client.consumer.permits import UnqueuedPermits
from magnetar.client.errors import OperationTimeout

PATIENCE_S = 10.0
MOMENT_S = 0.01


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with running_broker() as (_, port), Client(f"pulsar://127.0.0.1:{port}") as client:
        yield client


@pytest.fixture
async def pair(client: Client) -> AsyncIterator[tuple[Consumer[bytes], Producer[bytes]]]:
    async with (
        client.consumer("t", "s", type=SubscriptionType.SHARED, receiver_queue_size=0) as consumer,
        client.producer("t", batching=Batching(messages_max=5)) as producer,
    ):
        yield consumer, producer


Pair = tuple[Consumer[bytes], Producer[bytes]]


async def send(producer: Producer[bytes], count: int) -> None:
    await asyncio.gather(*(producer.send_nowait(b"%d" % number) for number in range(count)))


async def test_batches_are_received_to_their_ends(pair: Pair) -> None:
    consumer, producer = pair
    await send(producer, 23)
    got = [(await consumer.receive(PATIENCE_S)).data for _ in range(23)]
    assert got == [b"%d" % number for number in range(23)]


async def test_several_callers_wait(pair: Pair) -> None:
    consumer, producer = pair
    waiting = [asyncio.create_task(consumer.receive(PATIENCE_S)) for _ in range(12)]
    await asyncio.sleep(0)
    await send(producer, 12)
    got = {message.data for message in await asyncio.gather(*waiting)}
    assert got == {b"%d" % number for number in range(12)}


async def test_a_message_that_came_after_the_timeout(pair: Pair) -> None:
    consumer, producer = pair
    with pytest.raises(OperationTimeout):
        await consumer.receive(MOMENT_S)
    await producer.send(b"0")
    assert (await consumer.receive(PATIENCE_S)).data == b"0"
    await producer.send(b"1")
    assert (await consumer.receive(PATIENCE_S)).data == b"1"


async def test_a_caller_that_waits_while_the_connection_is_lost(client: Client, pair: Pair) -> None:
    consumer, producer = pair
    waiting = asyncio.create_task(consumer.receive(PATIENCE_S))
    await asyncio.sleep(MOMENT_S)
    for connection in list(client._ready().pool._connections.values()):
        connection.abort("dropped by the test")
    await producer.send(b"0")
    assert (await waiting).data == b"0"


async def test_a_pause_withholds_permits(pair: Pair) -> None:
    consumer, producer = pair
    consumer.pause()
    await producer.send(b"0")
    with pytest.raises(OperationTimeout):
        await consumer.receive(MOMENT_S)
    consumer.resume()
    assert (await consumer.receive(PATIENCE_S)).data == b"0"


async def test_a_redelivery_of_everything(pair: Pair) -> None:
    consumer, producer = pair
    await send(producer, 5)
    await consumer.receive(PATIENCE_S)
    await consumer.redeliver_unacknowledged()
    got = {(await consumer.receive(PATIENCE_S)).data for _ in range(5)}
    assert got == {b"%d" % number for number in range(5)}


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.booleans()), max_size=20))
def test_a_broker_that_counts_messages_sends_an_entry_per_wait(
    entries: list[tuple[int, int, bool]],
) -> None:
    """Entries of some messages, of which some are dropped; a user takes the others."""
    balance = 0

    def grant(count: int) -> None:
        nonlocal balance
        balance += count

    permits = UnqueuedPermits(grant, lambda: 0)
    for size, dropped, again in entries:
        left_out = min(size, dropped)
        permits.ran_empty(0, 0)
        assert balance == 1, "one entry is sent"
        balance -= size
        if left_out:
            permits.dropped(left_out)
        for _ in range(size - left_out):
            permits.consumed()
        if again:
            balance = 0
            permits.start()
