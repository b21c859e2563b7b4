"""`/admin/v3/transactions`: the coordinators, and the transactions that are open.

The broker that serves a coordinator serves the routes about it; other brokers redirect there.
Answers and statuses are Pulsar's: 503 while transactions are off, 404 for an unknown coordinator or
transaction.
"""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import answers_of_peers
from magnetar.admin.cluster.participants import stats_of
from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.placement import any_broker, at_owner, planned
from magnetar.admin.context import number_of, service_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import AUTHORITATIVE, described, query
from magnetar.admin.http.routes import Handler, Routes
from magnetar.admin.rights import caller
from magnetar.admin.stats.transactions import (
    CoordinatorStats,
    TransactionMetadata,
    coordinator_stats,
    transaction_metadata,
)
from magnetar.broker.transactions.assignment import (
    ASSIGN_TOPIC,
    COORDINATORS_MAX,
    assign_partition,
)
from magnetar.broker.transactions.coordinator import Caller, Coordinator
from magnetar.broker.transactions.service import ANSWER_TIMEOUT_S, Transactions
from magnetar.core.errors import (
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
)
from magnetar.transactions.model import Outcome, TxnId

router = Routes(prefix="/admin/v3/transactions", tags=("transactions",), placement=at_owner)

OFF: Final = "This Broker is not configured with transactionCoordinatorEnabled=true."
_STATS: Final = "/admin/v3/transactions/coordinatorStats"
_SLOW: Final = "/admin/v3/transactions/slowTransactions"
_TXN: Final = "{most:number}/{least:number}"
_ID: Final = query("coordinatorId", "integer", "Only this coordinator")


def transactions_of(request: Request) -> Transactions:
    """Returns the transactions of the broker; raises ServiceNotReady while they are off."""
    transactions = service_of(request).transactions
    if transactions is None:
        raise ServiceNotReady(OFF)
    return transactions


def _coordinator_id(request: Request) -> int | None:
    """Returns the coordinator that a request is about, None for all."""
    for name in ("most", "coordinator"):
        if name in request.path_params:
            return number_of(request, name)
    if "coordinatorId" in request.query_params:
        return bodies.number(request, "coordinatorId", 0)
    return None


async def _at_coordinator(peers: Peers, request: Request, handler: Handler) -> Response:
    """Serves a request at the coordinator's broker; one about all of them on this broker."""
    id_ = _coordinator_id(request)
    if id_ is None or service_of(request).transactions is None:
        return await handler(request)
    await _check_exists(request, id_)
    return await peers.at_topic_owner(assign_partition(id_), request, handler)


async def _check_exists(request: Request, id_: int) -> None:
    count = await transactions_of(request).coordinator_count()
    if not 0 <= id_ < count:
        raise NotFound(f"Transaction coordinator not found! coordinator id : {id_}")


async def _coordinator(request: Request, id_: int) -> Coordinator:
    transactions = transactions_of(request)
    await _check_exists(request, id_)
    try:
        return await transactions.coordinators.get(id_)
    except TransactionCoordinatorNotFound as error:
        raise ServiceNotReady(error.message) from error


@router.get("/coordinators", summary="The coordinators, and the broker of each")
@any_broker
async def coordinators(request: Request) -> Response:
    transactions, service = transactions_of(request), service_of(request)
    listed: list[dict[str, object]] = []
    for id_ in range(await transactions.coordinator_count()):
        located = await service.ownership.locate(assign_partition(id_), authoritative=False)
        record = located.broker or service.record
        url = record.urls.service_url or record.urls.service_url_tls
        listed.append({"id": id_, "brokerServiceUrl": url})
    return answer(listed)


@router.get(
    "/coordinatorStats",
    summary="The state of one coordinator, or of all by id",
    openapi_extra=described(_ID, AUTHORITATIVE),
)
@planned(_at_coordinator)
async def get_coordinator_stats(request: Request) -> Response:
    id_ = _coordinator_id(request)
    if id_ is not None:
        return answer(coordinator_stats(await _coordinator(request, id_)))
    transactions = transactions_of(request)
    stats: dict[str, CoordinatorStats] = {
        str(number): coordinator_stats(coordinator)
        for number, coordinator in sorted(transactions.coordinators.serving.items())
    }
    for part in await answers_of_peers(request, _STATS):
        stats |= msgspec.json.decode(part.body, type=dict[str, CoordinatorStats])
    return answer(stats)


@router.get(
    f"/transactionMetadata/{_TXN}",
    summary="A transaction that has not ended, with its participants",
    openapi_extra=described(AUTHORITATIVE),
)
@planned(_at_coordinator)
async def get_transaction_metadata(request: Request) -> Response:
    txn = _txn_of(request)
    record = (await _coordinator(request, txn.most)).active.get(txn)
    # Others do not learn which transactions there are.
    await caller.require_owner(request, None if record is None else record.owner)
    if record is None:
        raise NotFound(f"Transaction {txn} not found")
    return answer(transaction_metadata(txn, record, await stats_of(request, txn, record)))


@router.get(
    "/slowTransactions/{timeout:number}",
    summary="Transactions with a timeout of more than so many ms, by id",
    openapi_extra=described(_ID, AUTHORITATIVE),
)
@planned(_at_coordinator)
async def slow_transactions(request: Request) -> Response:
    id_, timeout_ms = _coordinator_id(request), number_of(request, "timeout")
    if id_ is not None:
        return answer(_slow(await _coordinator(request, id_), timeout_ms))
    slow: dict[str, TransactionMetadata] = {}
    for coordinator in transactions_of(request).coordinators.serving.values():
        slow |= _slow(coordinator, timeout_ms)
    for part in await answers_of_peers(request, f"{_SLOW}/{timeout_ms}"):
        slow |= msgspec.json.decode(part.body, type=dict[str, TransactionMetadata])
    return answer(slow)


def _slow(coordinator: Coordinator, timeout_ms: int) -> dict[str, TransactionMetadata]:
    return {
        str(txn): transaction_metadata(txn, record)
        for txn, record in coordinator.active.items()
        if record.deadline_ms - record.opened_ms > timeout_ms
    }


@router.post(
    f"/abortTransaction/{_TXN}",
    summary="Abort a transaction",
    openapi_extra=described(AUTHORITATIVE),
)
@planned(_at_coordinator)
async def abort_transaction(request: Request) -> Response:
    txn = _txn_of(request)
    coordinator = await _coordinator(request, txn.most)
    # Each request counts as its own connection, so a repeated one succeeds.
    admin = Caller(None, super_user=True, connection=request)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await coordinator.end(txn.least, admin, Outcome.ABORT)
    except TimeoutError as error:
        raise ServiceNotReady(
            f"Transaction {txn} is not aborted everywhere after {ANSWER_TIMEOUT_S:g} s: some of "
            "its topics and subscriptions do not answer. Repeat the request, or see "
            "transactionMetadata: once its status is ABORTING, the broker completes the abort"
        ) from error
    return done()


@router.post(
    "/transactionCoordinator/replicas",
    summary="Increase the number of coordinators",
    openapi_extra=described(body="The new number of coordinators", example=32),
)
@any_broker
async def set_coordinator_count(request: Request) -> Response:
    transactions, service = transactions_of(request), service_of(request)
    count = await bodies.parse(request, int, plain=True)
    if count is None or not 1 <= count <= COORDINATORS_MAX:
        raise PreconditionFailed(
            f"The number of transaction coordinators must be 1 to {COORDINATORS_MAX}",
            http_status=406,
        )
    if count <= await transactions.coordinator_count():
        raise PreconditionFailed(
            "Number of transaction coordinators should be more than the current number of "
            "transaction coordinator",
            http_status=406,
        )
    await service.resources.grow_partitions(ASSIGN_TOPIC, count)
    return done()


@router.get(
    "/coordinatorInternalStats/{coordinator:number}",
    summary="Refused: a coordinator has no managed ledger",
    openapi_extra=described(query("metadata", "boolean", "No effect")),
)
@any_broker
async def coordinator_internal_stats(request: Request) -> Response:
    transactions_of(request)
    raise NotAllowed("Transactions are recorded in the metadata store, not in a managed ledger")


def _txn_of(request: Request) -> TxnId:
    return TxnId(number_of(request, "most"), number_of(request, "least"))
