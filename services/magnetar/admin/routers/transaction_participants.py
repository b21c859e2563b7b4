"""`/admin/v3/transactions`: the topics and subscriptions that take part in transactions.

The owner of the topic serves these routes. Field names and statuses are Pulsar's: 503 while
transactions are off, 404 for an unknown transaction, 405 for statistics of logs, which do not exist
here. Pulsar answers 200 for an unknown transaction, as if it were not aborted.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.placement import any_broker, at_owner
from magnetar.admin.context import (
    number_of,
    persistent_topic,
    refuse_broken,
    refuse_partitioned,
    service_of,
    subscription_not_found,
    text_of,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer
from magnetar.admin.http.descriptions import AUTHORITATIVE, described, query
from magnetar.admin.http.routes import Routes
from magnetar.admin.routers.transactions import transactions_of
from magnetar.admin.stats.transactions import (
    buffer_stats,
    in_buffer_stats,
    in_pending_ack_stats,
    pending_ack_stats,
)
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import NotAllowed, NotFound
from magnetar.core.ids import Position
from magnetar.transactions.model import Outcome, TransactionRecord, TxnId
from magnetar.transactions.records import StoredRecords

router = Routes(prefix="/admin/v3/transactions", tags=("transactions",), placement=at_owner)

_TOPIC: Final = "/{tenant:name}/{namespace:name}/{topic:name}"
_SUBSCRIPTION: Final = _TOPIC + "/{subscription:name}"
_TXN: Final = "/{most:number}/{least:number}"
_MARKS: Final = query("lowWaterMarks", "boolean", "Pulsar's low water marks: none are needed")
_SEGMENTS: Final = query("segmentStats", "boolean", "Pulsar's snapshot segments: there are none")


async def _topic(request: Request) -> PersistentTopic:
    """Returns the topic in the path. Raises NotFound, NotAllowed and ServiceNotReady."""
    transactions_of(request)
    service, name = service_of(request), topic_of(request)
    await refuse_partitioned(
        service, name, f"{name} is partitioned: transactions take part in its partitions"
    )
    return await persistent_topic(service, name, "Get the transactions")


async def _subscription(request: Request) -> PersistentSubscription:
    topic, name = await _topic(request), text_of(request, "subscription")
    refuse_broken(topic, name)
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise subscription_not_found(name, topic.name)
    return subscription


def _txn(request: Request) -> TxnId:
    return TxnId(number_of(request, "most"), number_of(request, "least"))


async def _record(request: Request, txn: TxnId) -> TransactionRecord:
    """Returns the record of a transaction that is not open here; raises NotFound without one."""
    record = await StoredRecords(service_of(request).store, enabled=True).record(txn)
    if record is None:
        raise NotFound(f"Transaction {txn} was never begun, or its outcome is not kept any more")
    return record


@router.get(
    f"/transactionBufferStats{_TOPIC}",
    summary="The transactions of a topic",
    openapi_extra=described(_MARKS, _SEGMENTS, AUTHORITATIVE),
)
async def transaction_buffer_stats(request: Request) -> Response:
    topic, marks = await _topic(request), bodies.flag(request, "lowWaterMarks")
    return answer(buffer_stats(topic, low_water_marks=marks))


@router.get(
    f"/transactionInBufferStats{_TOPIC}{_TXN}",
    summary="A transaction in a topic",
    openapi_extra=described(AUTHORITATIVE),
)
async def transaction_in_buffer_stats(request: Request) -> Response:
    topic, txn = await _topic(request), _txn(request)
    if (stats := in_buffer_stats(topic, txn)) is not None:
        return answer(stats)
    record = await _record(request, txn)
    return answer({"aborted": record.state.outcome is Outcome.ABORT})


@router.get(
    f"/pendingAckStats{_SUBSCRIPTION}",
    summary="The transactions of a subscription",
    openapi_extra=described(_MARKS, AUTHORITATIVE),
)
async def get_pending_ack_stats(request: Request) -> Response:
    subscription = await _subscription(request)
    marks = bodies.flag(request, "lowWaterMarks")
    return answer(pending_ack_stats(subscription, low_water_marks=marks))


@router.get(
    f"/transactionInPendingAckStats{_SUBSCRIPTION}{_TXN}",
    summary="A transaction in a subscription",
    openapi_extra=described(AUTHORITATIVE),
)
async def transaction_in_pending_ack_stats(request: Request) -> Response:
    subscription, txn = await _subscription(request), _txn(request)
    if (stats := in_pending_ack_stats(subscription, txn)) is not None:
        return answer(stats)
    await _record(request, txn)
    return answer({})


@router.get(
    f"/positionStatsInPendingAck{_SUBSCRIPTION}/{{ledger:number}}/{{entry:number}}",
    summary="The state of a message in a subscription's transactions",
    openapi_extra=described(
        query("batchIndex", "integer", "A message of the entry's batch"), AUTHORITATIVE
    ),
)
async def position_stats_in_pending_ack(request: Request) -> Response:
    subscription = await _subscription(request)
    position = Position(number_of(request, "ledger"), number_of(request, "entry"))
    index = bodies.number(request, "batchIndex", -1)
    state = subscription.transactions.state_of(position, None if index < 0 else index)
    return answer({"state": state})


_NO_LOG: Final = "Transactions of a {} are stored with it, not in a managed ledger of their own"


@router.get(
    f"/transactionBufferInternalStats{_TOPIC}",
    summary="Refused: a topic's transactions have no managed ledger",
    openapi_extra=described(query("metadata", "boolean", "No effect"), AUTHORITATIVE),
)
@any_broker
async def transaction_buffer_internal_stats(request: Request) -> Response:
    transactions_of(request)
    raise NotAllowed(_NO_LOG.format("topic"))


@router.get(
    f"/pendingAckInternalStats{_SUBSCRIPTION}",
    summary="Refused: a subscription's transactions have no managed ledger",
    openapi_extra=described(query("metadata", "boolean", "No effect"), AUTHORITATIVE),
)
@any_broker
async def pending_ack_internal_stats(request: Request) -> Response:
    transactions_of(request)
    raise NotAllowed(_NO_LOG.format("subscription"))
