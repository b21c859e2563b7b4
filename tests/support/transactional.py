"""Transactions of a raw client, which follows look-ups and repeats what may be repeated."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

from tests.support.raw_client import RawClient, Received, Refused

from magnetar.broker.transactions.assignment import ASSIGN_TOPIC, assign_partition
from magnetar.core.errors import ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_send

WITHIN_S: Final = 60.0
"""How long a request is repeated on errors that pass."""
PAUSE_S: Final = 0.1
TIMEOUT_MS: Final = 120_000
SHARED: Final = 1
RETRIED: Final = (
    ServerError.TRANSACTION_COORDINATOR_NOT_FOUND,
    ServerError.SERVICE_NOT_READY,
)

Txn = tuple[int, int]


class EndRefused(Exception):
    """END_TXN was refused for good."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class TransactionalClient:
    """Connections to the brokers of a cluster, by the address that look-ups give."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        """`addresses` are those of some brokers."""
        self._addresses = addresses
        self._connections: dict[tuple[str, int], RawClient] = {}

    async def __aenter__(self) -> "TransactionalClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            await connection.close()

    async def _connected(self, address: tuple[str, int]) -> RawClient:
        connection = self._connections.get(address)
        if connection is None or connection.lost.is_set():
            connection = self._connections[address] = await RawClient.connect(*address)
        return connection

    async def at(self, topic: str) -> RawClient:
        """Returns a connection to the broker that serves the topic."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                for address in self._addresses:
                    try:
                        found = await self._look_up(address, topic)
                    except (OSError, TimeoutError):
                        continue
                    if found is not None:
                        return found
                await asyncio.sleep(PAUSE_S)

    async def _look_up(self, address: tuple[str, int], topic: str) -> RawClient | None:
        authoritative = False
        for _ in range(20):
            connection = await self._connected(address)
            command = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
            answer = await connection.request(CommandType.LOOKUP, command)
            if answer.response == pb.CommandLookupTopicResponse.Failed:
                return None
            url = urlsplit(answer.brokerServiceUrl)
            assert url.hostname is not None
            assert url.port is not None
            address, authoritative = (url.hostname, url.port), answer.authoritative
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return await self._connected(address)
        return None

    async def _attached(
        self, topic: str, attach: Callable[[RawClient], Awaitable[int]]
    ) -> tuple[RawClient, int]:
        """Attaches a producer or consumer, again while the topic moves."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                connection = await self.at(topic)
                try:
                    return connection, await attach(connection)
                except (OSError, TimeoutError):
                    await asyncio.sleep(PAUSE_S)
                except Refused as error:
                    if error.code != ServerError.SERVICE_NOT_READY:
                        raise
                    await asyncio.sleep(PAUSE_S)

    async def coordinators(self) -> int:
        """Returns the number of coordinators."""
        connection = await self._connected(self._addresses[0])
        command = pb.CommandPartitionedTopicMetadata(topic=str(ASSIGN_TOPIC))
        answer = await connection.request(CommandType.PARTITIONED_METADATA, command)
        return int(answer.partitions)

    async def _coordinate(self, coordinator: int, kind: int, command: Any) -> Any:
        """Sends a command to a coordinator, again while it moves. Raises EndRefused."""
        topic = str(assign_partition(coordinator))
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    answer = await (await self.at(topic)).request(kind, command)
                except (OSError, TimeoutError):
                    await asyncio.sleep(PAUSE_S)
                    continue
                if not answer.HasField("error"):
                    return answer
                if answer.error not in RETRIED:
                    raise EndRefused(answer.error, answer.message)
                await asyncio.sleep(PAUSE_S)

    async def begin(self, coordinator: int = 0, timeout_ms: int = TIMEOUT_MS) -> Txn:
        """Begins a transaction at the coordinator."""
        command = pb.CommandNewTxn(txn_ttl_millis=timeout_ms, tc_id=coordinator)
        answer = await self._coordinate(coordinator, CommandType.NEW_TXN, command)
        return answer.txnid_most_bits, answer.txnid_least_bits

    async def add(self, txn: Txn, *topics: str) -> None:
        """Adds topics to the transaction."""
        command = pb.CommandAddPartitionToTxn(
            txnid_most_bits=txn[0], txnid_least_bits=txn[1], partitions=topics
        )
        await self._coordinate(txn[0], CommandType.ADD_PARTITION_TO_TXN, command)

    async def add_subscription(self, txn: Txn, topic: str, subscription: str) -> None:
        """Adds a subscription to the transaction."""
        used = [pb.Subscription(topic=topic, subscription=subscription)]
        command = pb.CommandAddSubscriptionToTxn(
            txnid_most_bits=txn[0], txnid_least_bits=txn[1], subscription=used
        )
        await self._coordinate(txn[0], CommandType.ADD_SUBSCRIPTION_TO_TXN, command)

    async def end(self, txn: Txn, *, commit: bool) -> None:
        """Ends the transaction; repeats the request on other connections. Raises EndRefused."""
        command = pb.CommandEndTxn(
            txnid_most_bits=txn[0],
            txnid_least_bits=txn[1],
            txn_action=pb.TxnAction.COMMIT if commit else pb.TxnAction.ABORT,
        )
        await self._coordinate(txn[0], CommandType.END_TXN, command)

    async def send(self, topic: str, txn: Txn | None, *payloads: bytes, key: str = "") -> None:
        """Sends the messages by a new producer; returns once they have their receipts."""
        connection, producer = await self._attached(topic, lambda to: to.producer(topic))
        for number, payload in enumerate(payloads):
            metadata = pb.MessageMetadata(
                producer_name="raw", sequence_id=number, publish_time=int(time.time() * 1000)
            )
            if key:
                metadata.partition_key = key
            command = pb.CommandSend(producer_id=producer, sequence_id=number)
            if txn is not None:
                command.txnid_most_bits, command.txnid_least_bits = txn
            connection.write(encode_send(command, metadata, payload))
        await connection.receipted(producer, len(payloads))
        await connection.request(
            CommandType.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=producer)
        )

    async def receive(
        self, topic: str, count: int, subscription: str = "s"
    ) -> tuple[RawClient, int, list[Received]]:
        """Takes messages by a new consumer; returns its connection, its id, and the messages.

        Without messages to take, it only creates the subscription.
        """
        connection, consumer = await self._attached(
            topic, lambda to: to.consumer(topic, subscription, kind=SHARED)
        )
        if not count:
            close = pb.CommandCloseConsumer(consumer_id=consumer)
            await connection.request(CommandType.CLOSE_CONSUMER, close)
            return connection, consumer, []
        connection.flow(consumer, 1_000)
        taken = [await connection.receive(consumer) for _ in range(count)]
        return connection, consumer, taken

    async def ack(
        self, connection: RawClient, consumer: int, txn: Txn, received: list[Received]
    ) -> None:
        """Acks messages in the transaction."""
        command = pb.CommandAck(
            consumer_id=consumer,
            ack_type=pb.CommandAck.Individual,
            txnid_most_bits=txn[0],
            txnid_least_bits=txn[1],
        )
        for each in received:
            command.message_id.add(ledgerId=each.ledger_id, entryId=each.entry_id)
        answer = await connection.request(CommandType.ACK, command)
        assert not answer.HasField("error"), answer.message
