"""Transactions of our own client against the server under test."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.client import Client, InitialPosition, SubscriptionType, TransactionState
from magnetar.client.errors import (
    InvalidTransactionState,
    TransactionHasFailures,
    TransactionNotFound,
)

from .client_rig import assert_silent, take, values
from .support import Names, ServerAddress, numbered


@pytest.fixture
async def own(server: ServerAddress) -> AsyncIterator[Client]:
    async with Client(server.service_url) as client:
        yield client


async def test_consume_process_produce(own: Client, names: Names) -> None:
    source, target = names.topic("source"), names.topic("target")
    async with (
        own.producer(source, batching=None) as feed,
        own.producer(target) as producer,
        own.consumer(source, "sub", type=SubscriptionType.SHARED) as consumer,
        own.consumer(target, "sub", initial_position=InitialPosition.EARLIEST) as results,
    ):
        for body in numbered(4):
            await feed.send(body)
        messages = await take(consumer, 4)
        async with own.transaction() as txn:
            for message in messages[:2]:
                await producer.send(message.value, transaction=txn)
                await consumer.ack(message, transaction=txn)
            await assert_silent(results)
        assert txn.state is TransactionState.COMMITTED
        assert values(await take(results, 2, ack=True)) == numbered(4)[:2]
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is tested
            async with own.transaction() as txn:
                await txn.enlist(producer)
                producer.send_nowait(b"never", transaction=txn)
                await consumer.ack_many(messages[2:], transaction=txn)
                raise ZeroDivisionError
        assert txn.state is TransactionState.ABORTED
        await consumer.redeliver_unacknowledged()
        assert values(await take(consumer, 2)) == numbered(4)[2:]
        await producer.send(b"plain")
        assert values(await take(results, 1)) == [b"plain"]


async def test_an_ended_transaction_takes_nothing_more(own: Client, topic: str) -> None:
    async with own.producer(topic) as producer:
        async with own.transaction() as txn:
            await producer.send(b"in", transaction=txn)
        with pytest.raises(InvalidTransactionState):
            await producer.send(b"late", transaction=txn)
        with pytest.raises(InvalidTransactionState):
            await txn.commit()


async def test_a_cancelled_send_aborts(own: Client, topic: str) -> None:
    async with own.producer(topic) as producer:
        with pytest.raises(TransactionHasFailures):  # noqa: PT012  # the block is what is tested
            async with own.transaction() as txn:
                await txn.enlist(producer)
                sending = asyncio.create_task(producer.send(b"x", transaction=txn))
                await asyncio.sleep(0)
                sending.cancel()
                await asyncio.wait([sending])
        assert txn.state is TransactionState.ABORTED


async def test_a_repeated_commit_of_a_forgotten_transaction_is_not_taken_for_an_abort(
    own: Client, topic: str
) -> None:
    async with own.producer(topic) as producer:
        async with own.transaction() as txn:
            await producer.send(b"in", transaction=txn)
        txn.state = TransactionState.UNKNOWN  # as if the answer had been lost
        with pytest.raises(TransactionNotFound):
            await txn.commit()
        assert txn.state is TransactionState.UNKNOWN
