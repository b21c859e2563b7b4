"""Transactions at one coordinator: begin, add topics, commit several at once, abort."""

from enum import Enum
from typing import Any, Final

from magnetar.core.errors import PreconditionFailed, ServerError
from magnetar.transactions.model import NOT_OWNER_TEXT
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar_spark.sink.client.brokers import Brokers
from magnetar_spark.sink.client.errors import Refused
from magnetar_spark.sink.client.producer import Txn

ASSIGN_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"
END_TIMEOUT_S: Final = 120.0
"""How long an end is repeated; the outcome of one without an answer is kept longer."""


class Ended(Enum):
    """What the request to abort a transaction has found."""

    ABORTED = "aborted"
    COMMITTED = "committed"
    """Or it is being committed."""
    FORGOTTEN = "forgotten"
    """It has ended, long ago or on the request of another connection."""
    FOREIGN = "foreign"
    """It belongs to another role, so it may be open."""


class Coordinator:
    """The coordinator of all transactions of one execution."""

    def __init__(self, brokers: Brokers, number: int, timeout_ms: int) -> None:
        self._brokers = brokers
        self._number = number
        self._timeout_ms = timeout_ms

    @classmethod
    async def choose(cls, brokers: Brokers, seed: int, timeout_ms: int) -> "Coordinator":
        """Returns one of the coordinators, the same for the same seed.

        Raises PreconditionFailed if the cluster has no transactions.
        """
        try:
            count = await brokers.partitions(ASSIGN_TOPIC)
        except Refused as error:
            raise _off(str(error)) from error
        if not count:
            raise _off("there are no coordinators")
        return cls(brokers, seed % count, timeout_ms)

    async def begin(self) -> Txn:
        """Begins a transaction. Raises PreconditionFailed if brokers have no joint commits."""
        command = pb.CommandNewTxn(tc_id=self._number, txn_ttl_millis=self._timeout_ms)
        answer = await self._ask(CommandType.NEW_TXN, command)
        return answer.txnid_most_bits, answer.txnid_least_bits

    async def add(self, txn: Txn, *topics: str) -> None:
        """Adds topics, before the first message for them."""
        command = pb.CommandAddPartitionToTxn(
            txnid_most_bits=txn[0], txnid_least_bits=txn[1], partitions=topics
        )
        await self._ask(CommandType.ADD_PARTITION_TO_TXN, command)

    async def commit(self, lead: Txn, joined: list[Txn]) -> None:
        """Commits all of these, or none. Raises Refused if one of them has ended."""
        others = [txn for txn in joined if txn[0] != lead[0]]
        if others:
            raise PreconditionFailed(
                f"the transactions {others} have another coordinator: the number of coordinators "
                "was changed meanwhile; run the batch again"
            )
        command = pb.CommandEndTxn(
            txnid_most_bits=lead[0],
            txnid_least_bits=lead[1],
            txn_action=pb.TxnAction.COMMIT,
            joined_least_bits=[txn[1] for txn in joined],
        )
        await self._ask(CommandType.END_TXN, command, END_TIMEOUT_S)

    async def abort(self, txn: Txn) -> Ended:
        """Aborts a transaction unless it has ended."""
        command = pb.CommandEndTxn(
            txnid_most_bits=txn[0], txnid_least_bits=txn[1], txn_action=pb.TxnAction.ABORT
        )
        try:
            await self._ask(CommandType.END_TXN, command)
        except Refused as error:
            if error.number == ServerError.INVALID_TXN_STATUS:
                return Ended.COMMITTED
            if error.number == ServerError.TRANSACTION_NOT_FOUND:
                return Ended.FOREIGN if NOT_OWNER_TEXT in error.message else Ended.FORGOTTEN
            raise
        return Ended.ABORTED

    async def _ask(self, kind: int, command: Any, within_s: float | None = None) -> Any:
        """Sends a command to the coordinator of its transaction, again while it moves."""
        number = command.tc_id if kind == CommandType.NEW_TXN else command.txnid_most_bits
        topic = f"{ASSIGN_TOPIC}-partition-{number}"

        async def once() -> Any:
            connection = await self._brokers.serving(topic)
            if not connection.joint_commit:
                raise PreconditionFailed(
                    f"broker {connection.address} cannot commit several transactions at once, "
                    "which exactlyOnce needs: update all brokers of Magnetar to this release"
                )
            return await connection.request(kind, command)

        return await self._brokers.repeated(once, within_s)


def _off(reason: str) -> PreconditionFailed:
    return PreconditionFailed(
        "exactlyOnce needs transactions, which the brokers do not offer: set "
        f"transactionCoordinatorEnabled=true ({reason})"
    )
