"""A transaction: messages and acknowledgments that count together or not at all.

    async with client.transaction() as txn:
        await producer.send(result, transaction=txn)
        await consumer.ack(message, transaction=txn)

The end of the block commits, after all sends and acknowledgments have succeeded. An exception in
the block, or a failed operation, aborts.
"""

import asyncio
from collections.abc import Coroutine
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Self

from magnetar.client.errors import (
    ClientError,
    InvalidTransactionState,
    TransactionHasFailures,
    TransactionLost,
    TransactionNotFound,
)
from magnetar.client.transaction.coordinators import Coordinators, TxnId
from magnetar.core.log import get_logger

if TYPE_CHECKING:
    from types import TracebackType

    from magnetar.client.producer.producer import Producer

log = get_logger("magnetar.client.transaction")


class TransactionState(Enum):
    """The states of a transaction, as the client knows them."""

    OPEN = auto()
    COMMITTING = auto()
    ABORTING = auto()
    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()
    """The request to end it was not answered: the coordinator decides, at last by its timeout."""


class Transaction:
    """One transaction."""

    def __init__(self, coordinators: Coordinators, wire_id: TxnId, timeout_s: float) -> None:
        self._coordinators = coordinators
        self.wire_id = wire_id
        """The most and least significant bits of the id."""
        self.state = TransactionState.OPEN
        self._expires_at = asyncio.get_running_loop().time() + timeout_s
        self._topics: dict[str, asyncio.Task[None]] = {}
        self._subscriptions: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._operations: set[asyncio.Future[Any]] = set()
        self._failure: BaseException | None = None

    def __str__(self) -> str:
        most, least = self.wire_id
        return f"({most},{least})"

    def _check_open(self) -> None:
        if self.state is not TransactionState.OPEN:
            raise InvalidTransactionState(
                f"Transaction {self} is {self.state.name.lower()}: begin another"
            )
        if self._coordinators.left:
            raise TransactionLost(
                f"Transaction {self} began in a cluster that the client has left, which aborts it"
            )
        if asyncio.get_running_loop().time() >= self._expires_at:
            raise InvalidTransactionState(f"The timeout of transaction {self} has passed")

    # -- operations ----------------------------------------------------------------------------

    def has_topic(self, topic: str) -> bool:
        """Whether the coordinator knows that the transaction produces to a topic."""
        self._check_open()
        task = self._topics.get(topic)
        return task is not None and task.done() and task.exception() is None

    async def enlist(self, producer: "Producer[Any]") -> None:
        """Prepares all partitions of a producer for `send_nowait` in this transaction."""
        for topic in producer.lane_topics:
            await self.enlist_topic(topic)

    async def enlist_topic(self, topic: str) -> None:
        """Records a topic or partition at the coordinator, once."""
        self._check_open()
        task = self._topics.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._coordinators.add_topic(self.wire_id, topic), name=f"transaction {self}"
            )
            self._topics[topic] = task
            self.track(task)
        await asyncio.shield(task)
        self._check_open()

    async def enlist_subscription(self, topic: str, subscription: str) -> None:
        """Records a subscription at the coordinator, once."""
        self._check_open()
        key = (topic, subscription)
        task = self._subscriptions.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._coordinators.add_subscription(self.wire_id, topic, subscription),
                name=f"transaction {self}",
            )
            self._subscriptions[key] = task
            self.track(task)
        await asyncio.shield(task)
        self._check_open()

    def track(self, operation: "asyncio.Future[Any]") -> None:
        """Makes the end of the transaction wait for an operation, and fail with it."""
        self._operations.add(operation)
        operation.add_done_callback(self._done)

    def _done(self, operation: "asyncio.Future[Any]") -> None:
        self._operations.discard(operation)
        if operation.cancelled():
            self._failure = self._failure or asyncio.CancelledError()
        elif (error := operation.exception()) is not None:
            self._failure = self._failure or error

    async def run(self, operation: "Coroutine[Any, Any, None]") -> None:
        """Runs an acknowledgment as an operation of the transaction."""
        task = asyncio.get_running_loop().create_task(operation, name=f"transaction {self}")
        self.track(task)
        await asyncio.shield(task)

    # -- end -----------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commits after all operations have succeeded.

        If one has failed, aborts and raises TransactionHasFailures. If the coordinator does not
        answer, the outcome is unknown; `commit` may be called again.
        """
        if self.state is not TransactionState.UNKNOWN:
            self._check_open()
        await self._settled()
        if self._failure is not None:
            failure = self._failure
            await self.abort()
            raise TransactionHasFailures(
                f"Transaction {self} was aborted, because an operation failed: {failure}"
            ) from failure
        await self._end(commit=True)

    async def abort(self) -> None:
        """Aborts: no message of the transaction is visible, and its acknowledgments are void."""
        if self.state in (TransactionState.ABORTED, TransactionState.COMMITTED):
            self._check_open()
        await self._settled()
        await self._end(commit=False)

    async def _settled(self) -> None:
        while self._operations:
            await asyncio.wait(list(self._operations))

    async def _end(self, *, commit: bool) -> None:
        repeated = self.state is TransactionState.UNKNOWN
        self.state = TransactionState.COMMITTING if commit else TransactionState.ABORTING
        try:
            await self._coordinators.end(self.wire_id, commit=commit)
        except (TransactionLost, TransactionNotFound):
            # A former request may have ended it, with either outcome.
            self.state = TransactionState.UNKNOWN if repeated else TransactionState.ABORTED
            raise
        except InvalidTransactionState:
            self.state = TransactionState.ABORTED if commit else TransactionState.COMMITTED
            raise
        except BaseException:
            self.state = TransactionState.UNKNOWN
            raise
        self.state = TransactionState.COMMITTED if commit else TransactionState.ABORTED

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        await end_block(self, error)


async def end_block(transaction: Transaction, error: BaseException | None) -> None:
    """Commits a transaction at the end of a block, or aborts it after an exception."""
    if transaction.state is not TransactionState.OPEN:
        return  # the block has ended it itself
    if error is None:
        try:
            await transaction.commit()
        except asyncio.CancelledError:
            # Before the commit was requested: the messages would stay locked until the timeout.
            if transaction.state is TransactionState.OPEN:
                await _abort(transaction)
            raise
        return
    await _abort(transaction)


async def _abort(transaction: Transaction) -> None:
    try:
        # Later, the coordinator has aborted it itself.
        async with asyncio.timeout_at(transaction._expires_at):
            await transaction.abort()
    except (ClientError, TimeoutError) as failed:
        log.warning("transaction not aborted", transaction=str(transaction), error=str(failed))


class OpeningTransaction:
    """What `Client.transaction` returns: `await` it, or use it in `async with`."""

    def __init__(self, begin: Any) -> None:
        self._begin = begin
        self._transaction: Transaction | None = None

    async def begun(self) -> Transaction:
        """Returns the transaction, which the caller ends."""
        transaction: Transaction = await self._begin()
        return transaction

    def __await__(self) -> Any:
        return self.begun().__await__()

    async def __aenter__(self) -> Transaction:
        self._transaction = await self._begin()
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        if self._transaction is not None:
            await end_block(self._transaction, error)
