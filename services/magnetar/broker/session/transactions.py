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

from magnetar.broker.session.session import Handler, Session, internal_error
from magnetar.broker.transactions.coordinator import Caller, Coordinator
from magnetar.broker.transactions.coordinators import Coordinators
from magnetar.broker.transactions.service import ANSWER_TIMEOUT_S, Transactions
from magnetar.core.deadlines import Deadlines
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
from magnetar.core.log import get_logger
from magnetar.core.names import parse_topic
from magnetar.transactions.model import Outcome, SubscriptionInTxn, TxnId
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType, command_name
from magnetar.wire.encoder import error_number

log = get_logger("magnetar.session")

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
    """Returns an empty response, with the transaction of the command if it names one.

    A refusal of NEW_TXN names the coordinator, too. Java's client hands a response to the handler
    of the coordinator that the response names: coordinator 0 without one. The handler that has sent
    the request would wait until its timeout, and would never look its coordinator up again.
    """
    response = _RESPONSES[kind][1](request_id=command.request_id)
    if kind == CommandType.NEW_TXN:
        response.txnid_most_bits = command.tc_id
    elif hasattr(command, "txnid_most_bits"):
        response.txnid_most_bits = command.txnid_most_bits
        response.txnid_least_bits = command.txnid_least_bits
    return response


class Request:
    """A command of a client to a coordinator, until it is answered: once, and in time."""

    __slots__ = ("_deadlines", "_kind", "_size_bytes", "command", "session", "txn")

    def __init__(self, kind: int, session: Session, command: Any, deadlines: Deadlines) -> None:
        """Counts the command as one that waits. Raises TooManyRequests."""
        self._size_bytes = command.ByteSize()
        session.begin_wait(self._size_bytes)
        self._kind = kind
        self._deadlines: Deadlines | None = deadlines
        self.session = session
        self.command = command
        self.txn: TxnId | None = None
        """The transaction that the command has begun."""
        deadlines.add(self._late)

    def answered(self, error: MagnetarError | None) -> bool:
        """Answers the command, unless its deadline has passed; returns whether this answered it."""
        if self._deadlines is None:
            return False
        self._deadlines.remove(self._late)
        self._deadlines = None
        self.session.end_wait(self._size_bytes)
        if error is not None:
            _refuse(self._kind, self.session, self.command, error)
            return True
        kind, command = _RESPONSES[self._kind][0], self.command
        if self._kind == CommandType.TC_CLIENT_CONNECT_REQUEST:
            self.session.link.answer(kind, _response(self._kind, command))
        else:
            txn = self.txn or (command.txnid_most_bits, command.txnid_least_bits)
            self.session.link.transaction_answer(kind, command.request_id, txn)
        return True

    def _late(self) -> None:
        self.answered(_late())


def _connect(coordinator: Coordinator, request: Request) -> None:
    request.answered(None)


def _new(coordinator: Coordinator, request: Request) -> None:
    owner = caller_of(request.session).role
    timeout_ms = request.command.txn_ttl_millis
    request.txn = coordinator.request_begin(owner, timeout_ms, request.answered)


def _add_partitions(coordinator: Coordinator, request: Request) -> None:
    command = request.command
    topics = tuple(command.partitions)
    for topic in topics:
        check_participant(topic)
    caller = caller_of(request.session)
    coordinator.request_add(command.txnid_least_bits, caller, topics, (), request.answered)


def _add_subscriptions(coordinator: Coordinator, request: Request) -> None:
    command = request.command
    for used in command.subscription:
        check_participant(used.topic)
        if not used.subscription:
            raise NotAllowed("Empty subscription name")
    coordinator.request_add(
        command.txnid_least_bits,
        caller_of(request.session),
        (),
        [SubscriptionInTxn(used.topic, used.subscription) for used in command.subscription],
        request.answered,
    )


def _end(coordinator: Coordinator, request: Request) -> None:
    command = request.command
    caller, outcome = caller_of(request.session), _outcome(command)
    joined = tuple(dict.fromkeys(command.joined_least_bits))
    number = command.txnid_least_bits

    def ended(error: MagnetarError | None) -> None:
        if request.answered(error) and error is None:
            coordinator.outcome_sent(number, request.session)

    coordinator.request_end(number, caller, outcome, ended, joined)


_Work = Callable[[Coordinator, Request], None]
_WORK: Final[dict[int, _Work]] = {
    CommandType.TC_CLIENT_CONNECT_REQUEST: _connect,
    CommandType.NEW_TXN: _new,
    CommandType.ADD_PARTITION_TO_TXN: _add_partitions,
    CommandType.ADD_SUBSCRIPTION_TO_TXN: _add_subscriptions,
    CommandType.END_TXN: _end,
}
"""The commands of clients to a coordinator. They answer by a callback, without a task each."""


def _to_coordinator(kind: int) -> Handler:
    work = _WORK[kind]
    names_coordinator = kind in (CommandType.TC_CLIENT_CONNECT_REQUEST, CommandType.NEW_TXN)

    def handle(session: Session, command: Any) -> None:
        transactions = session.service.transactions
        assert transactions is not None  # noqa: S101 - else these are not the handlers
        try:
            if getattr(command, "scalable", False):
                raise NotAllowed(
                    "Scalable topics are not supported in transactions: scalable is set"
                )
            id_ = command.tc_id if names_coordinator else command.txnid_most_bits
            request = Request(kind, session, command, transactions.answers)
        except MagnetarError as error:
            _refuse(kind, session, command, error)
            drop_frames(error)
            return
        coordinator = transactions.coordinators.loaded(id_)
        if coordinator is not None:
            _begin(work, coordinator, request)
        else:
            loading = _when_loaded(work, transactions.coordinators, request, id_)
            session.tasks.start(loading, command_name(kind))

    return handle


def _begin(work: _Work, coordinator: Coordinator, request: Request) -> None:
    try:
        work(coordinator, request)
    except MagnetarError as error:
        request.answered(error)
        drop_frames(error)
    except Exception as error:
        log.exception("command failed", peer=request.session.link.address)
        request.answered(MagnetarError(internal_error(error)))


async def _when_loaded(work: _Work, coordinators: Coordinators, request: Request, id_: int) -> None:
    """Begins a request once its coordinator is loaded; the request has a deadline of its own."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            coordinator = await coordinators.get(id_)
    except MagnetarError as error:
        request.answered(error)
        drop_frames(error)
    except TimeoutError as error:
        request.answered(_late())
        drop_frames(error)
    except Exception as error:
        log.exception("coordinator not loaded", coordinator=id_)
        request.answered(MagnetarError(f"Internal error: {error!r}"))
    else:
        _begin(work, coordinator, request)


def _late() -> MagnetarError:
    return MagnetarError(f"The request is not finished after {ANSWER_TIMEOUT_S:g} s: retry")


async def _end_on_partition(transactions: Transactions, command: Any) -> Any:
    txn = TxnId(command.txnid_most_bits, command.txnid_least_bits)
    outcome = _outcome(command)
    await transactions.local.claim(command.topic)
    await transactions.local.end_on_topic(command.topic, txn, outcome)
    return _response(CommandType.END_TXN_ON_PARTITION, command)


async def _end_on_subscription(transactions: Transactions, command: Any) -> Any:
    txn = TxnId(command.txnid_most_bits, command.txnid_least_bits)
    outcome = _outcome(command)
    topic, name = command.subscription.topic, command.subscription.subscription
    await transactions.local.claim(topic)
    await transactions.local.end_on_subscription(topic, name, txn, outcome)
    return _response(CommandType.END_TXN_ON_SUBSCRIPTION, command)


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


_FROM_COORDINATORS: Final[dict[int, Callable[[Transactions, Any], Awaitable[Any]]]] = {
    CommandType.END_TXN_ON_PARTITION: _end_on_partition,
    CommandType.END_TXN_ON_SUBSCRIPTION: _end_on_subscription,
}


def _from_coordinator(kind: int) -> Handler:
    def handle(session: Session, command: Any) -> Coroutine[Any, Any, None]:
        return _answered(kind, session, command)

    return handle


async def _answered(kind: int, session: Session, command: Any) -> None:
    transactions = session.service.transactions
    assert transactions is not None  # noqa: S101 - else these are not the handlers
    try:
        if getattr(command, "scalable", False):
            raise NotAllowed("Scalable topics are not supported in transactions: scalable is set")
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            response = await _FROM_COORDINATORS[kind](transactions, command)
    except MagnetarError as error:
        _refuse(kind, session, command, error)
        drop_frames(error)
    except TimeoutError as error:
        _refuse(kind, session, command, _late())
        drop_frames(error)
    else:
        session.link.answer(_RESPONSES[kind][0], response)


HANDLERS: Final[dict[int, Handler]] = {
    **{kind: _to_coordinator(kind) for kind in _WORK},
    **{kind: _from_coordinator(kind) for kind in _FROM_COORDINATORS},
}
