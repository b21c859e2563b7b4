"""The commands of transactions: of clients to coordinators, and of coordinators to participants.

Java's and Go's clients retry TransactionCoordinatorNotFound only, after a new look-up of the
coordinator. So the broker answers every temporary failure with it: a coordinator that moved, too
many open transactions, a metadata store that does not answer, participants that do not answer in
time. Every retry is safe: participants are added once, and the same outcome may be requested again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from magnetar.broker.session.session import Handler, Session
from magnetar.broker.transactions.coordinator import Caller, Coordinator
from magnetar.broker.transactions.service import Transactions
from magnetar.core.errors import (
    AuthorizationError,
    InvalidTopicName,
    InvalidTxnStatus,
    MagnetarError,
    NotAllowed,
    ServerError,
    TransactionNotFound,
    drop_frames,
)
from magnetar.core.names import parse_topic
from magnetar.transactions.model import Outcome, SubscriptionInTxn, TxnId
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import error_number

ANSWER_TIMEOUT_S: Final = 25.0
"""Less than the operation timeout of clients, 30 s: they get an answer on which they retry."""

_FINAL: Final = (
    AuthorizationError,
    InvalidTopicName,
    InvalidTxnStatus,
    NotAllowed,
    TransactionNotFound,
)
"""Permanent errors: a retry would fail, too."""
_OUTCOMES: Final = {pb.TxnAction.COMMIT: Outcome.COMMIT, pb.TxnAction.ABORT: Outcome.ABORT}

_RESPONSES: Final[dict[int, tuple[pb.BaseCommand.Type.ValueType, Callable[..., Any]]]] = {
    CommandType.TC_CLIENT_CONNECT_REQUEST: (
        CommandType.TC_CLIENT_CONNECT_RESPONSE,
        pb.CommandTcClientConnectResponse,
    ),
    CommandType.NEW_TXN: (CommandType.NEW_TXN_RESPONSE, pb.CommandNewTxnResponse),
    CommandType.ADD_PARTITION_TO_TXN: (
        CommandType.ADD_PARTITION_TO_TXN_RESPONSE,
        pb.CommandAddPartitionToTxnResponse,
    ),
    CommandType.ADD_SUBSCRIPTION_TO_TXN: (
        CommandType.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        pb.CommandAddSubscriptionToTxnResponse,
    ),
    CommandType.END_TXN: (CommandType.END_TXN_RESPONSE, pb.CommandEndTxnResponse),
    CommandType.END_TXN_ON_PARTITION: (
        CommandType.END_TXN_ON_PARTITION_RESPONSE,
        pb.CommandEndTxnOnPartitionResponse,
    ),
    CommandType.END_TXN_ON_SUBSCRIPTION: (
        CommandType.END_TXN_ON_SUBSCRIPTION_RESPONSE,
        pb.CommandEndTxnOnSubscriptionResponse,
    ),
}


def refusals() -> dict[int, Callable[[Session, Any, MagnetarError], None]]:
    """Returns how each of these commands is refused: in its own response."""
    return {kind: partial(_refuse, kind) for kind in _RESPONSES}


def _refuse(kind: int, session: Session, command: Any, error: MagnetarError) -> None:
    response = _response(kind, command)
    final = isinstance(error, _FINAL) or kind in _FROM_COORDINATORS
    code = error.code if final else ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    response.error = error_number(code)
    response.message = error.message
    session.link.answer(_RESPONSES[kind][0], response)


def _response(kind: int, command: Any) -> Any:
    """Returns an empty response, with the transaction of the command if it names one."""
    response = _RESPONSES[kind][1](request_id=command.request_id)
    if hasattr(command, "txnid_most_bits"):
        response.txnid_most_bits = command.txnid_most_bits
        response.txnid_least_bits = command.txnid_least_bits
    return response


async def _connect(transactions: Transactions, session: Session, command: Any) -> Any:
    await transactions.coordinators.get(command.tc_id)
    return _response(CommandType.TC_CLIENT_CONNECT_REQUEST, command)


async def _new(transactions: Transactions, session: Session, command: Any) -> Any:
    coordinator = await transactions.coordinators.get(command.tc_id)
    txn = await coordinator.begin(caller_of(session).role, command.txn_ttl_millis)
    response = _response(CommandType.NEW_TXN, command)
    response.txnid_most_bits, response.txnid_least_bits = txn
    return response


async def _add_partitions(transactions: Transactions, session: Session, command: Any) -> Any:
    for topic in command.partitions:
        check_participant(topic)
    coordinator = await _coordinator(transactions, command)
    await coordinator.add(
        command.txnid_least_bits, caller_of(session), topics=tuple(command.partitions)
    )
    return _response(CommandType.ADD_PARTITION_TO_TXN, command)


async def _add_subscriptions(transactions: Transactions, session: Session, command: Any) -> Any:
    for used in command.subscription:
        check_participant(used.topic)
    coordinator = await _coordinator(transactions, command)
    await coordinator.add(
        command.txnid_least_bits,
        caller_of(session),
        subscriptions=[
            SubscriptionInTxn(used.topic, used.subscription) for used in command.subscription
        ],
    )
    return _response(CommandType.ADD_SUBSCRIPTION_TO_TXN, command)


async def _end(transactions: Transactions, session: Session, command: Any) -> Any:
    outcome = _outcome(command)
    coordinator = await _coordinator(transactions, command)
    joined = tuple(dict.fromkeys(command.joined_least_bits))
    await coordinator.end(command.txnid_least_bits, caller_of(session), outcome, joined)
    return _response(CommandType.END_TXN, command)


async def _end_on_partition(transactions: Transactions, session: Session, command: Any) -> Any:
    txn = TxnId(command.txnid_most_bits, command.txnid_least_bits)
    outcome = _outcome(command)
    await transactions.local.claim(command.topic)
    await transactions.local.end_on_topic(command.topic, txn, outcome)
    return _response(CommandType.END_TXN_ON_PARTITION, command)


async def _end_on_subscription(transactions: Transactions, session: Session, command: Any) -> Any:
    txn = TxnId(command.txnid_most_bits, command.txnid_least_bits)
    outcome = _outcome(command)
    topic, name = command.subscription.topic, command.subscription.subscription
    await transactions.local.claim(topic)
    await transactions.local.end_on_subscription(topic, name, txn, outcome)
    return _response(CommandType.END_TXN_ON_SUBSCRIPTION, command)


async def _coordinator(transactions: Transactions, command: Any) -> Coordinator:
    return await transactions.coordinators.get(command.txnid_most_bits)


def caller_of(session: Session) -> Caller:
    """Returns the sender of a command; behind a proxy, it has the role of the proxy's client.

    Without authentication there are no roles, and everyone may do everything.
    """
    security = session.service.security
    if security is None:
        return Caller(None, super_user=True, connection=session)
    principal = session.principal
    authorizer = security.authorizer
    return Caller(
        principal.original or principal.role,
        super_user=authorizer is not None and authorizer.is_super_user(principal),
        connection=session,
    )


def check_participant(topic: str) -> None:
    """Raises NotAllowed or InvalidTopicName unless a topic may take part in transactions."""
    name = parse_topic(topic)
    if not name.persistent:
        raise NotAllowed(f"{name} is not persistent: it cannot take part in transactions")


def _outcome(command: Any) -> Outcome:
    if not command.HasField("txn_action"):
        raise NotAllowed("The end of a transaction must say whether to commit or to abort it")
    return _OUTCOMES[command.txn_action]


_Work = Callable[[Transactions, Session, Any], Awaitable[Any]]

_FROM_COORDINATORS: Final = (
    CommandType.END_TXN_ON_PARTITION,
    CommandType.END_TXN_ON_SUBSCRIPTION,
)
_WORK: Final[dict[int, _Work]] = {
    CommandType.TC_CLIENT_CONNECT_REQUEST: _connect,
    CommandType.NEW_TXN: _new,
    CommandType.ADD_PARTITION_TO_TXN: _add_partitions,
    CommandType.ADD_SUBSCRIPTION_TO_TXN: _add_subscriptions,
    CommandType.END_TXN: _end,
    CommandType.END_TXN_ON_PARTITION: _end_on_partition,
    CommandType.END_TXN_ON_SUBSCRIPTION: _end_on_subscription,
}


def _handler(kind: int) -> Handler:
    work = _WORK[kind]

    def handle(session: Session, command: Any) -> Coroutine[Any, Any, None]:
        return _answered(kind, work, session, command)

    return handle


async def _answered(kind: int, work: _Work, session: Session, command: Any) -> None:
    try:
        transactions = session.service.transactions
        assert transactions is not None  # noqa: S101 - else these are not the handlers
        if getattr(command, "scalable", False):
            raise NotAllowed("Scalable topics are not supported in transactions: scalable is set")
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            response = await work(transactions, session, command)
    except MagnetarError as error:
        _refuse(kind, session, command, error)
        drop_frames(error)
    except TimeoutError as error:
        late = MagnetarError(f"The request is not finished after {ANSWER_TIMEOUT_S:g} s: retry")
        _refuse(kind, session, command, late)
        drop_frames(error)
    else:
        session.link.answer(_RESPONSES[kind][0], response)


HANDLERS: Final[dict[int, Handler]] = {kind: _handler(kind) for kind in _WORK}
