"""The transaction coordinators of a cluster: found by lookup, used in turn.

A coordinator is served by the broker of its partition of the assign topic. A request that fails
because the broker has changed is sent again, to the new broker, until the timeout.
"""

import itertools
from typing import Any, Final

from magnetar.client.context import Context
from magnetar.client.errors import (
    CoordinatorNotFound,
    InvalidTransactionState,
    ServerFailed,
    TransactionLost,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    TransactionsDisabled,
    server_error,
)
from magnetar.client.network.connection import Connection
from magnetar.client.network.retry import retrying
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

ASSIGN_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"
TC_CONNECT_VERSION: Final = 19
"""Brokers from this protocol version on are asked to load a coordinator before its use."""

TxnId = tuple[int, int]


class Coordinators:
    """Sends requests to the transaction coordinators."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._count = 0
        self._turns = itertools.count()
        self._connections: dict[int, Connection] = {}
        self.left = False
        """Whether the client has left their cluster: in the next, the ids name other transactions.
        """

    async def _coordinator_count(self) -> int:
        if not self._count:
            count = await self._context.lookup.partitions(ASSIGN_TOPIC, create=False)
            if not count:
                raise TransactionsDisabled("The cluster has no transaction coordinators")
            self._count = count
        return self._count

    async def _connection(self, coordinator: int) -> Connection:
        connection = self._connections.get(coordinator)
        if connection is not None and not connection.closed:
            return connection
        topic = f"{ASSIGN_TOPIC}-partition-{coordinator}"
        connection = await self._context.lookup.connection(topic)
        if connection.protocol_version >= TC_CONNECT_VERSION:
            connect = pb.CommandTcClientConnectRequest(request_id=0, tc_id=coordinator)
            answer = await connection.request(
                CommandType.TC_CLIENT_CONNECT_REQUEST,
                connect,
                self._context.options.operation_timeout_s,
            )
            _check(answer, connection)
        self._connections[coordinator] = connection
        return connection

    async def _request(self, coordinator: int, command_type: int, message: Any, what: str) -> Any:
        options = self._context.options
        sent = False

        async def once() -> Any:
            nonlocal sent
            self._check_cluster(command_type, what, sent=sent)
            connection = await self._connection(coordinator)
            self._check_cluster(command_type, what, sent=sent)
            repeated, sent = sent, True
            try:
                answer = await connection.request(
                    command_type, message, options.operation_timeout_s
                )
                _check(answer, connection)
            except CoordinatorNotFound:
                # Also the answer of a coordinator that has failed, or took too long, after it has
                # written the end. So it does not say that the request had no effect.
                self._connections.pop(coordinator, None)
                raise
            except TransactionNotFound as error:
                if repeated and command_type == CommandType.END_TXN:
                    raise TransactionOutcomeUnknown(
                        f"{what} was requested before without a final answer, and the transaction "
                        "is not known any more: it may have succeeded"
                    ) from error
                raise
            return answer

        return await retrying(
            once, what=what, timeout_s=options.operation_timeout_s, random=self._context.random,
            backoff_max_s=options.backoff_max_s,
        )  # fmt: skip

    def _check_cluster(self, command_type: int, what: str, *, sent: bool) -> None:
        if not self.left:
            return
        if sent and command_type == CommandType.END_TXN:
            raise TransactionOutcomeUnknown(
                f"{what} was requested in a cluster that the client has left: it may have succeeded"
            )
        raise TransactionLost(f"{what} is not possible: the client has switched to another cluster")

    async def begin(self, timeout_s: float) -> TxnId:
        """Starts a transaction and returns its id (most bits, least bits)."""
        count = await self._coordinator_count()
        coordinator = next(self._turns) % count
        message = pb.CommandNewTxn(
            request_id=0, tc_id=coordinator, txn_ttl_millis=round(timeout_s * 1000)
        )
        answer = await self._request(
            coordinator, CommandType.NEW_TXN, message, "The begin of a transaction"
        )
        return answer.txnid_most_bits, answer.txnid_least_bits

    async def add_topic(self, txn: TxnId, topic: str) -> None:
        """Records that the transaction produces to a topic or partition."""
        most, least = txn
        message = pb.CommandAddPartitionToTxn(
            request_id=0, txnid_most_bits=most, txnid_least_bits=least, partitions=[topic]
        )
        await self._request(
            most, CommandType.ADD_PARTITION_TO_TXN, message, "Adding a topic to a transaction"
        )

    async def add_subscription(self, txn: TxnId, topic: str, subscription: str) -> None:
        """Records that the transaction acknowledges messages of a subscription."""
        most, least = txn
        message = pb.CommandAddSubscriptionToTxn(
            request_id=0, txnid_most_bits=most, txnid_least_bits=least
        )
        message.subscription.add(topic=topic, subscription=subscription)
        await self._request(
            most,
            CommandType.ADD_SUBSCRIPTION_TO_TXN,
            message,
            "Adding a subscription to a transaction",
        )

    async def end(self, txn: TxnId, *, commit: bool) -> None:
        """Commits or aborts a transaction."""
        most, least = txn
        message = pb.CommandEndTxn(
            request_id=0,
            txnid_most_bits=most,
            txnid_least_bits=least,
            txn_action=pb.COMMIT if commit else pb.ABORT,
        )
        what = "The commit" if commit else "The abort"
        await self._request(most, CommandType.END_TXN, message, what)


def _check(answer: Any, connection: Connection) -> None:
    """Raises the error that an answer of a coordinator carries."""
    if not answer.HasField("error"):
        return
    error = server_error(answer.error, answer.message, broker=connection.address)
    if isinstance(error, (CoordinatorNotFound, TransactionNotFound, InvalidTransactionState)):
        raise error
    if isinstance(error, ServerFailed):
        raise error
    raise ServerFailed(answer.message, broker=connection.address, code=answer.error)
