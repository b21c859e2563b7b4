"""Transactions of other principals, as raw frames: nobody adds to them, or ends them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.security.sessions import ADMIN, PROXY, connect_command, secured
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient, Refused

from magnetar.broker.security.needs import TopicNeed, TopicOperation
from magnetar.broker.security.principal import Principal
from magnetar.broker.service import BrokerService
from magnetar.core.errors import ServerError
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.transactions.model import TransactionRecord, TxnId, TxnState
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_send

MINE = "persistent://public/default/mine"
"""OWNER and RIVAL may use it."""
OTHER = "persistent://public/default/other"
"""Only RIVAL may use it."""
OWNER, RIVAL, TENANT_ADMIN = "owner", "rival", "tenant-admin"
WAIT_S = 60.0
COMMIT, ABORT = pb.TxnAction.COMMIT, pb.TxnAction.ABORT


@dataclass(slots=True)
class Stage:
    """A closed broker, and connections to it."""

    service: BrokerService
    port: int
    stack: AsyncExitStack

    async def client(self, role: str, **more: Any) -> RawClient:
        client = await RawClient.connect(HOST, self.port, connect_command(role, **more))
        self.stack.push_async_callback(client.close)
        return client

    def record(self, txn: Any) -> TransactionRecord:
        transactions = self.service.transactions
        assert transactions is not None
        active = transactions.coordinators.serving[txn.txnid_most_bits].active
        return active[TxnId(txn.txnid_most_bits, txn.txnid_least_bits)]


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    settings = compose(BrokerSettings, transactions=True)
    async with (
        running_broker(settings, secure=secured()) as (service, port),
        AsyncExitStack() as stack,
    ):
        both = ["produce", "consume"]
        auth = {MINE: {OWNER: both, RIVAL: both}, OTHER: {RIVAL: both}}
        await service.resources.update_policies(
            NamespaceName("public", "default"),
            lambda document: {**document, "auth_policies": {"destination_auth": auth}},
        )
        assert service.security is not None
        assert service.security.authorizer is not None
        need = TopicNeed(parse_topic(MINE), TopicOperation.PRODUCE)
        async with asyncio.timeout(WAIT_S):
            while not service.security.authorizer.allowed_now(Principal(OWNER), need):  # noqa: ASYNC110
                await asyncio.sleep(0)
        yield Stage(service, port, stack)


async def begun(client: RawClient) -> Any:
    return await client.request(CommandType.NEW_TXN, pb.CommandNewTxn(txn_ttl_millis=60_000))


def bits(txn: Any) -> dict[str, Any]:
    return {"txnid_most_bits": txn.txnid_most_bits, "txnid_least_bits": txn.txnid_least_bits}


async def add_topic(client: RawClient, txn: Any, *topics: str) -> int | None:
    """The error of ADD_PARTITION_TO_TXN, None without one."""
    command = pb.CommandAddPartitionToTxn(**bits(txn), partitions=topics)
    return error_of(await client.request(CommandType.ADD_PARTITION_TO_TXN, command))


async def add_subscription(client: RawClient, txn: Any, topic: str, name: str) -> int | None:
    used = [pb.Subscription(topic=topic, subscription=name)]
    command = pb.CommandAddSubscriptionToTxn(**bits(txn), subscription=used)
    return error_of(await client.request(CommandType.ADD_SUBSCRIPTION_TO_TXN, command))


async def end(client: RawClient, txn: Any, action: Any = COMMIT, *joined: Any) -> int | None:
    least = [other.txnid_least_bits for other in joined]
    command = pb.CommandEndTxn(**bits(txn), txn_action=action, joined_least_bits=least)
    return error_of(await client.request(CommandType.END_TXN, command))


def error_of(answer: Any) -> int | None:
    return answer.error if answer.HasField("error") else None


@pytest.mark.parametrize("action", [COMMIT, ABORT])
@pytest.mark.parametrize(("role", "original"), [(RIVAL, None), ("nobody", None), (PROXY, RIVAL)])
async def test_others_neither_end_a_transaction_nor_add_to_it(
    role: str, original: str | None, action: Any
) -> None:
    async with stage() as on:
        owner = await on.client(OWNER)
        txn = await begun(owner)
        assert await add_topic(owner, txn, MINE) is None
        before = on.record(txn)
        other = await on.client(role, **({"original_principal": original} if original else {}))
        assert await end(other, txn, action) == ServerError.TRANSACTION_NOT_FOUND
        missing = {ServerError.TRANSACTION_NOT_FOUND, ServerError.AUTHORIZATION_ERROR}
        assert await add_topic(other, txn, MINE) in missing
        assert await add_subscription(other, txn, MINE, "s") in missing
        assert on.record(txn) == before
        assert await end(owner, txn, action) is None


@pytest.mark.parametrize("role", [OWNER, ADMIN])
async def test_its_owner_and_super_users_end_it_on_any_connection(role: str) -> None:
    async with stage() as on:
        txn = await begun(await on.client(OWNER))
        assert await end(await on.client(role), txn) is None


async def test_a_joint_commit_takes_no_transactions_of_others() -> None:
    async with stage() as on:
        owner, rival = await on.client(OWNER), await on.client(RIVAL)
        txn, own = await begun(owner), await begun(rival)
        assert await add_topic(owner, txn, MINE) is None
        assert await end(rival, own, COMMIT, txn) == ServerError.TRANSACTION_NOT_FOUND
        assert on.record(txn).state is TxnState.OPEN
        assert await end(owner, txn, ABORT) is None


async def test_a_transaction_takes_no_participant_that_its_owner_may_not_use() -> None:
    async with stage() as on:
        owner = await on.client(OWNER)
        txn = await begun(owner)
        denied = ServerError.AUTHORIZATION_ERROR
        assert await add_topic(owner, txn, OTHER) == denied
        assert await add_topic(owner, txn, MINE, OTHER) == denied
        assert await add_topic(owner, txn, MINE + "2") == denied
        assert await add_subscription(owner, txn, OTHER, "s") == denied
        assert await add_subscription(owner, txn, MINE, "") == ServerError.NOT_ALLOWED_ERROR
        record = on.record(txn)
        assert (record.topics, record.subscriptions) == ((), ())


async def test_a_message_and_an_ack_name_no_transaction_that_did_not_add_them() -> None:
    async with stage() as on:
        owner, rival = await on.client(OWNER), await on.client(RIVAL)
        txn = await begun(owner)
        assert await add_topic(owner, txn, MINE) is None
        consumer = await rival.consumer(OTHER, "s")
        producer = await rival.producer(OTHER)
        metadata = pb.MessageMetadata(producer_name="raw", sequence_id=1, publish_time=1)
        rival.write(
            encode_send(pb.CommandSend(producer_id=producer, sequence_id=1), metadata, b"1")
        )
        await rival.receipted(producer, 1)

        sends = pb.CommandSend(producer_id=producer, sequence_id=2, **bits(txn))
        metadata.sequence_id = 2
        rival.write(encode_send(sends, metadata, b"2"))
        ledger, entry = rival.receipts[producer][1]
        acked = pb.CommandAck(
            consumer_id=consumer,
            ack_type=pb.CommandAck.Individual,
            message_id=[pb.MessageIdData(ledgerId=ledger, entryId=entry)],
            **bits(txn),
        )
        answer = await rival.request(CommandType.ACK, acked)
        assert answer.error == ServerError.TRANSACTION_NOT_FOUND
        async with asyncio.timeout(WAIT_S):
            while not rival.send_errors[producer]:
                rival.on_receipt.clear()
                await rival.on_receipt.wait()
        assert [code for code, _ in rival.send_errors[producer]] == [ServerError.NOT_ALLOWED_ERROR]
        assert await end(owner, txn) is None
        assert list(rival.receipts[producer]) == [1]


async def test_an_end_at_a_participant_comes_from_coordinators_only() -> None:
    async with stage() as on:
        owner = await on.client(OWNER)
        txn = await begun(owner)
        assert await add_topic(owner, txn, MINE) is None
        for kind, command in (
            (
                CommandType.END_TXN_ON_PARTITION,
                pb.CommandEndTxnOnPartition(**bits(txn), topic=MINE, txn_action=COMMIT),
            ),
            (
                CommandType.END_TXN_ON_SUBSCRIPTION,
                pb.CommandEndTxnOnSubscription(
                    **bits(txn),
                    subscription=pb.Subscription(topic=MINE, subscription="s"),
                    txn_action=COMMIT,
                ),
            ),
        ):
            answer = await owner.request(kind, command)
            assert answer.error == ServerError.AUTHORIZATION_ERROR


OK = None
NOT_FOUND, DENIED = ServerError.TRANSACTION_NOT_FOUND, ServerError.AUTHORIZATION_ERROR
Codes = dict[str, int | None]
_OWN: Codes = {
    "connect": OK, "begin": OK, "add topic": OK, "add subscription": OK, "send": OK, "ack": OK,
    "end on topic": DENIED, "end on subscription": DENIED, "end": OK,
}  # fmt: skip
_OF_ANOTHER: Codes = {
    **_OWN, "add topic": NOT_FOUND, "add subscription": NOT_FOUND, "end": NOT_FOUND,
}  # fmt: skip
"""SEND and ACK need the rights on the topic, as in Pulsar: whoever has them could do without the
transaction, too."""
_WITHOUT_RIGHTS: Codes = {
    **_OF_ANOTHER, "add topic": DENIED, "add subscription": DENIED, "send": DENIED, "ack": DENIED,
}  # fmt: skip
TABLE: dict[tuple[str, str | None], Codes] = {
    (OWNER, None): _OWN,
    (PROXY, OWNER): _OWN,
    (ADMIN, None): {**_OWN, "end on topic": OK, "end on subscription": OK},
    (RIVAL, None): _OF_ANOTHER,
    (PROXY, RIVAL): _OF_ANOTHER,
    (TENANT_ADMIN, None): _OF_ANOTHER,
    ("nobody", None): _WITHOUT_RIGHTS,
    (PROXY, "nobody"): _WITHOUT_RIGHTS,
}
"""What each role gets for each command, in a transaction of OWNER."""


async def refused_code(attaching: Awaitable[int]) -> tuple[int, int | None]:
    """The id of what attaches, or the error."""
    try:
        return await attaching, None
    except Refused as refused:
        return 0, refused.code


async def sent(client: RawClient, txn: Any) -> int | None:
    """The error of a message in the transaction."""
    producer, error = await refused_code(client.producer(MINE))
    if error is not None:
        return error
    command = pb.CommandSend(producer_id=producer, sequence_id=1, **bits(txn))
    metadata = pb.MessageMetadata(producer_name="raw", sequence_id=1, publish_time=1)
    client.write(encode_send(command, metadata, b"m"))
    async with asyncio.timeout(WAIT_S):
        while not client.receipts[producer] and not client.send_errors[producer]:
            client.on_receipt.clear()
            await client.on_receipt.wait()
    errors = [code for code, _ in client.send_errors[producer]]
    return errors[0] if errors else None


async def acked(client: RawClient, txn: Any, at: tuple[int, int]) -> int | None:
    """The error of an ack in the transaction."""
    consumer, error = await refused_code(client.consumer(MINE, "s"))
    if error is not None:
        return error
    ack = pb.CommandAck(consumer_id=consumer, ack_type=pb.CommandAck.Individual, **bits(txn))
    ack.message_id.add(ledgerId=at[0], entryId=at[1])
    return error_of(await client.request(CommandType.ACK, ack))


async def results(on: Stage, role: str, original: str | None) -> Codes:
    """What the role gets for each command, in a new transaction of OWNER."""
    owner = await on.client(OWNER)
    client = await on.client(role, **({"original_principal": original} if original else {}))
    txn = await begun(owner)
    assert await add_topic(owner, txn, MINE) is None
    assert await add_subscription(owner, txn, MINE, "s") is None
    producer = await owner.producer(MINE)
    owner.send(producer, 1, b"to be acked")
    await owner.receipted(producer, 1)
    at = owner.receipts[producer][1]
    connect = pb.CommandTcClientConnectRequest(tc_id=0)
    subscription = pb.Subscription(topic=MINE, subscription="s")
    on_topic = pb.CommandEndTxnOnPartition(**bits(txn), topic=MINE, txn_action=ABORT)
    on_subscription = pb.CommandEndTxnOnSubscription(
        **bits(txn), subscription=subscription, txn_action=ABORT
    )
    codes: Codes = {
        "connect": error_of(await client.request(CommandType.TC_CLIENT_CONNECT_REQUEST, connect)),
        "begin": error_of(await begun(client)),
        "add topic": await add_topic(client, txn, MINE),
        "add subscription": await add_subscription(client, txn, MINE, "s"),
        "send": await sent(client, txn),
        "ack": await acked(client, txn, at),
        "end on topic": error_of(await client.request(CommandType.END_TXN_ON_PARTITION, on_topic)),
        "end on subscription": error_of(
            await client.request(CommandType.END_TXN_ON_SUBSCRIPTION, on_subscription)
        ),
        "end": await end(client, txn, ABORT),
    }
    if codes["end"] is not None:
        assert await end(owner, txn, ABORT) is None
    for each in (client, owner):
        await each.close()
    return codes


async def test_every_command_of_transactions_for_every_kind_of_role() -> None:
    async with stage() as on:
        resources, security = on.service.resources, on.service.security
        assert security is not None
        assert security.authorizer is not None
        tenant = await resources.tenant("public")
        await resources.update_tenant("public", {**tenant, "adminRoles": [TENANT_ADMIN]})
        need = TopicNeed(parse_topic(MINE), TopicOperation.PRODUCE)
        async with asyncio.timeout(WAIT_S):
            while not security.authorizer.allowed_now(Principal(TENANT_ADMIN), need):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert {roles: await results(on, *roles) for roles in TABLE} == TABLE


async def test_a_subscription_has_a_name() -> None:
    """Without one it would be no subscription that the rules of a namespace could close."""
    async with stage() as on:
        owner = await on.client(OWNER)
        with pytest.raises(Refused) as refused:
            await owner.consumer(MINE, "")
        assert refused.value.code == ServerError.METADATA_ERROR
        with pytest.raises(Refused) as refused:
            await owner.consumer(OTHER, "")
        assert refused.value.code == ServerError.AUTHORIZATION_ERROR
