"""Transactions of the client whose end is not answered, is cancelled, or follows a failover."""

import asyncio

import pytest
from tests.support.broker import HOST, running_broker
from tests.unit.broker.transactions.stage import HoldingStore, turns

from magnetar.client import Client
from magnetar.client.errors import TransactionLost, TransactionOutcomeUnknown
from magnetar.client.network.access import Access, Target
from magnetar.client.network.failover_watch import Switch
from magnetar.client.network.lookup import BinaryLookup
from magnetar.client.network.service_urls import parse_service_url
from magnetar.client.transaction.transaction import Transaction, TransactionState
from magnetar.core.errors import MetadataError
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.transactions.model import TxnId
from magnetar.transactions.records import record_key


async def test_a_commit_that_may_have_been_written_is_not_taken_for_an_abort() -> None:
    """The coordinator fails after its write has landed, and its outcome is not kept."""
    store = HoldingStore()
    settings = compose(BrokerSettings, transactions=True)
    async with (
        running_broker(settings, store) as (_, port),
        Client(f"pulsar://{HOST}:{port}") as client,
    ):
        transaction = await client.transaction()
        store.holding = True
        commit = asyncio.ensure_future(transaction.commit())
        while not store.held:
            await turns(1)
        store.holding = False
        write = store.held.pop()
        await write.land()
        await store.delete(record_key(TxnId(*transaction.wire_id)))
        write.answer.set_exception(MetadataError("the store answered with an error"))
        with pytest.raises(TransactionOutcomeUnknown, match="may have succeeded"):
            await commit
        assert transaction.state is TransactionState.UNKNOWN


def switch(client: Client, port: int) -> None:
    """Moves a client to another cluster, as its failover does."""
    context = client._context
    assert context is not None
    assert isinstance(context.lookup, BinaryLookup)
    access: Access = context.pool.access
    addresses = parse_service_url(f"pulsar://{HOST}:{port}")
    Switch(context.lookup._urls, context.pool, client._moved).to(Target(addresses, access))


async def test_a_transaction_does_not_follow_its_client_to_another_cluster() -> None:
    """Its id names another transaction there, perhaps that of another program."""
    settings = compose(BrokerSettings, transactions=True)
    async with (
        running_broker(settings) as (_, first),
        running_broker(settings) as (_, second),
        Client(f"pulsar://{HOST}:{first}", backoff_max_s=0.1) as client,
        Client(f"pulsar://{HOST}:{second}") as other,
        client.producer("t", batching=None) as producer,
        other.producer("t") as other_producer,
    ):
        lost, unsent = await client.transaction(), await client.transaction()
        await producer.send(b"in the first", transaction=lost)
        await unsent.enlist(producer)
        foreign = [await other.transaction(), await other.transaction()]
        assert [one.wire_id for one in foreign] == [lost.wire_id, unsent.wire_id]
        on_its_way = producer.send_nowait(b"pending", transaction=unsent)
        plain = producer.send_nowait(b"plain")
        switch(client, second)
        with pytest.raises(TransactionLost):
            await on_its_way
        await plain
        with pytest.raises(TransactionLost):
            await producer.send(b"late", transaction=lost)
        for end in (lost.commit, lost.abort, unsent.abort):
            with pytest.raises(TransactionLost):
                await end()
        for transaction in foreign:
            await other_producer.send(b"x", transaction=transaction)
            await transaction.commit()
        async with client.transaction() as begun_there:
            await producer.send(b"y", transaction=begun_there)


async def test_a_cancelled_commit_aborts_what_it_has_not_requested() -> None:
    settings = compose(BrokerSettings, transactions=True)
    async with (
        running_broker(settings) as (_, port),
        Client(f"pulsar://{HOST}:{port}") as client,
    ):

        async def block(
            begun: "asyncio.Future[Transaction]", operation: "asyncio.Future[None]"
        ) -> None:
            async with client.transaction() as transaction:
                transaction.track(operation)
                begun.set_result(transaction)

        loop = asyncio.get_running_loop()
        begun: asyncio.Future[Transaction] = loop.create_future()
        operation: asyncio.Future[None] = loop.create_future()
        running = asyncio.create_task(block(begun, operation))
        transaction = await begun
        await turns(3)
        running.cancel()
        await turns(3)
        operation.set_result(None)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert transaction.state is TransactionState.ABORTED
