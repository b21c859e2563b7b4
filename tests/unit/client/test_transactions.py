"""Transactions of the client when the answer to their end does not say what became of them."""

import asyncio

import pytest
from tests.support.broker import HOST, running_broker
from tests.unit.broker.transactions.stage import HoldingStore, turns

from magnetar.client import Client
from magnetar.client.errors import TransactionOutcomeUnknown
from magnetar.client.transaction.transaction import TransactionState
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
