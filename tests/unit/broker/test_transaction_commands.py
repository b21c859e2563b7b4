"""The commands of transactions at a broker, as clients send them: every request has its answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient
from tests.unit.broker.transactions.stage import HoldingStore, turns

from magnetar.broker.service import BrokerService
from magnetar.broker.session.session import COMMANDS_PENDING_BYTES_MAX
from magnetar.broker.transactions.assignment import ASSIGN_TOPIC
from magnetar.broker.transactions.service import ANSWER_TIMEOUT_S
from magnetar.core.deadlines import Deadlines
from magnetar.core.errors import ServerError
from magnetar.metadata.memory import MemoryStore
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

TOPIC = "persistent://public/default/t"
TIMEOUT_MS = 60_000
SOON_S = 0.02
"""A deadline that passes while a test waits for it."""


@asynccontextmanager
async def transactional(
    store: MemoryStore | None = None, **settings: Any
) -> AsyncIterator[tuple[BrokerService, RawClient, int]]:
    composed = compose(BrokerSettings, transactions=True, **settings)
    async with running_broker(composed, store) as (service, port):
        client = await RawClient.connect(HOST, port)
        yield service, client, port
        await client.close()


async def begun(client: RawClient, timeout_ms: int = TIMEOUT_MS, coordinator: int = 0) -> Any:
    command = pb.CommandNewTxn(txn_ttl_millis=timeout_ms, tc_id=coordinator)
    return await client.request(CommandType.NEW_TXN, command)


async def ended(client: RawClient, txn: Any, action: Any = pb.TxnAction.COMMIT) -> Any:
    command = pb.CommandEndTxn(
        txnid_most_bits=txn.txnid_most_bits,
        txnid_least_bits=txn.txnid_least_bits,
        txn_action=action,
    )
    return await client.request(CommandType.END_TXN, command)


async def with_partition(client: RawClient, txn: Any, topic: str = TOPIC) -> Any:
    command = pb.CommandAddPartitionToTxn(
        txnid_most_bits=txn.txnid_most_bits,
        txnid_least_bits=txn.txnid_least_bits,
        partitions=[topic],
    )
    return await client.request(CommandType.ADD_PARTITION_TO_TXN, command)


async def test_clients_find_sixteen_coordinators_at_the_first_use() -> None:
    async with transactional() as (service, client, _):
        metadata = await client.request(
            CommandType.PARTITIONED_METADATA,
            pb.CommandPartitionedTopicMetadata(topic=str(ASSIGN_TOPIC)),
        )
        assert metadata.partitions == 16
        for index in range(16):
            found = await client.request(
                CommandType.LOOKUP, pb.CommandLookupTopic(topic=str(ASSIGN_TOPIC.partition(index)))
            )
            assert found.response == pb.CommandLookupTopicResponse.Connect
            connected = await client.request(
                CommandType.TC_CLIENT_CONNECT_REQUEST, pb.CommandTcClientConnectRequest(tc_id=index)
            )
            assert not connected.HasField("error")
        assert sorted(service.transactions.coordinators.serving) == list(range(16))  # type: ignore[union-attr]


async def test_an_empty_transaction_ends_and_is_found_again_on_another_connection() -> None:
    async with transactional() as (_, client, port):
        first, second = await begun(client), await begun(client, coordinator=3)
        assert (first.txnid_most_bits, first.txnid_least_bits) == (0, 0)
        assert (second.txnid_most_bits, second.txnid_least_bits) == (3, 0)
        answer = await ended(client, first)
        assert (answer.HasField("error"), answer.txnid_least_bits) == (False, 0)
        assert (await ended(client, first)).error == ServerError.TRANSACTION_NOT_FOUND
        other = await RawClient.connect(HOST, port)
        assert not (await ended(other, first)).HasField("error")
        await other.close()
        third = await RawClient.connect(HOST, port)
        opposite = await ended(third, first, pb.TxnAction.ABORT)
        assert opposite.error == ServerError.INVALID_TXN_STATUS
        await third.close()


async def test_a_commit_whose_answer_came_too_late_succeeds_again_on_the_same_connection() -> None:
    """The client has a retryable error; TransactionNotFound would say that nothing is committed."""
    store = HoldingStore()
    async with transactional(store) as (service, client, _port):
        assert service.transactions is not None
        txn = await begun(client)
        service.transactions.answers = Deadlines(SOON_S)
        store.holding = True
        late = await ended(client, txn)
        assert late.error == ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
        service.transactions.answers = Deadlines(ANSWER_TIMEOUT_S)
        store.holding = False
        await store.held.pop().lands()
        while service.transactions.coordinators.serving[0].active_count:
            await turns(1)
        assert not (await ended(client, txn)).HasField("error")
        assert (await ended(client, txn)).error == ServerError.TRANSACTION_NOT_FOUND


async def test_errors_are_in_the_response_of_the_command() -> None:
    async with transactional() as (_, client, _port):
        unknown = pb.CommandNewTxnResponse(request_id=1, txnid_most_bits=0, txnid_least_bits=99)
        assert (await ended(client, unknown)).error == ServerError.TRANSACTION_NOT_FOUND
        assert (await begun(client, coordinator=5_000)).error == (
            ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
        )
        assert (await begun(client, timeout_ms=0)).error == ServerError.NOT_ALLOWED_ERROR
        txn = await begun(client)
        for topic, error in (
            ("non-persistent://public/default/t", ServerError.NOT_ALLOWED_ERROR),
            ("persistent://public", ServerError.INVALID_TOPIC_NAME),
        ):
            refused = await with_partition(client, txn, topic)
            assert (refused.error, refused.txnid_least_bits) == (error, txn.txnid_least_bits)
        endless = await client.request(
            CommandType.END_TXN,
            pb.CommandEndTxn(txnid_most_bits=0, txnid_least_bits=txn.txnid_least_bits),
        )
        assert endless.error == ServerError.NOT_ALLOWED_ERROR


@pytest.mark.parametrize("coordinator", [1, 15])
async def test_a_refusal_of_new_txn_names_its_coordinator_as_java_needs(coordinator: int) -> None:
    """Java's client hands it to the handler of the coordinator that the response names."""
    async with transactional(open_transactions_max=1) as (service, client, _port):
        assert service.transactions is not None
        assert not (await begun(client, coordinator=coordinator)).HasField("error")
        too_many = await begun(client, coordinator=coordinator)
        wrong = await begun(client, timeout_ms=0, coordinator=coordinator)
        await service.transactions.coordinators.stop()
        gone = await begun(client, coordinator=coordinator)
    not_found = ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    assert [(answer.error, answer.txnid_most_bits) for answer in (too_many, wrong, gone)] == [
        (not_found, coordinator),
        (ServerError.NOT_ALLOWED_ERROR, coordinator),
        (not_found, coordinator),
    ]


async def test_too_many_requests_are_refused_in_the_response_of_the_command() -> None:
    """Java's client ignores an ERROR for such a request, which would wait until its timeout."""
    async with transactional() as (service, client, _port):
        (session,) = service.sessions
        session.begin_wait(COMMANDS_PENDING_BYTES_MAX)
        refused = await begun(client, coordinator=7)
        connect = pb.CommandTcClientConnectRequest(tc_id=7)
        other = await client.request(CommandType.TC_CLIENT_CONNECT_REQUEST, connect)
        session.end_wait(COMMANDS_PENDING_BYTES_MAX)
        assert not (await begun(client, coordinator=7)).HasField("error")
    not_found = ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    assert (refused.error, refused.txnid_most_bits, other.error) == (not_found, 7, not_found)


async def test_the_names_of_participants_are_kept_as_the_client_gave_them() -> None:
    async with transactional() as (service, client, _):
        txn = await begun(client)
        for topic in ("t", TOPIC, "t"):
            assert not (await with_partition(client, txn, topic)).HasField("error")
        command = pb.CommandAddSubscriptionToTxn(
            txnid_least_bits=0, subscription=[pb.Subscription(topic="t", subscription="s")]
        )
        await client.request(CommandType.ADD_SUBSCRIPTION_TO_TXN, command)
        (record,) = service.transactions.coordinators.serving[0].active.values()  # type: ignore[union-attr]
        assert (record.topics, record.subscriptions) == (("t", TOPIC), (("t", "s"),))


@pytest.mark.parametrize("action", [pb.TxnAction.COMMIT, pb.TxnAction.ABORT])
async def test_a_deleted_topic_does_not_keep_a_transaction_from_ending(action: Any) -> None:
    async with transactional() as (_, client, _port):
        txn = await begun(client)
        await with_partition(client, txn, "persistent://public/default/never-created")
        await with_partition(client, txn, "persistent://gone/away/t")
        assert not (await ended(client, txn, action)).HasField("error")


async def test_a_broker_without_transactions_refuses_them_as_pulsar_does() -> None:
    async with running_broker() as (_, port):
        client = await RawClient.connect(HOST, port)
        with pytest.raises(Exception, match="not enabled"):
            await begun(client)
        await client.close()


async def test_too_many_open_transactions_are_refused_with_the_setting_in_the_text() -> None:
    async with transactional(open_transactions_max=1) as (_, client, _port):
        txn = await begun(client)
        refused = await begun(client)
        assert refused.error == ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
        assert "maxActiveTransactionsPerCoordinator" in refused.message
        await ended(client, txn)
        assert not (await begun(client)).HasField("error")
