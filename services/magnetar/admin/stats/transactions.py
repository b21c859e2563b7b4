"""The documents of coordinators and transactions, with Pulsar's field names.

As in Pulsar, a field without a value is absent.
"""

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.transactions.coordinator import Coordinator
from magnetar.transactions.model import SubscriptionInTxn, TransactionRecord, TxnId

NO_PARTICIPANTS: Mapping[str | SubscriptionInTxn, object] = {}

READY = "Ready"
"""A coordinator that is served is ready; Pulsar's other states are those of a log in recovery."""


class CoordinatorStats(TypedDict):
    """Pulsar's TransactionCoordinatorStats."""

    state: str
    leastSigBits: int
    lowWaterMark: int
    ongoingTxnSize: int
    recoverStartTime: int
    recoverEndTime: int


class TransactionMetadata(TypedDict):
    """Pulsar's TransactionMetadata."""

    txnId: str
    status: str
    openTimestamp: int
    timeoutAt: int
    owner: NotRequired[str | None]
    producedPartitions: Mapping[str, object]
    ackedPartitions: Mapping[str, Mapping[str, object]]


def coordinator_stats(coordinator: Coordinator) -> CoordinatorStats:
    """Returns the state of a coordinator."""
    active = coordinator.active
    oldest = next(iter(active), None)
    return {
        "state": READY,
        "leastSigBits": coordinator.last_number,
        "lowWaterMark": 0 if oldest is None else oldest.least - 1,
        "ongoingTxnSize": len(active),
        "recoverStartTime": coordinator.recovery_began_ms,
        "recoverEndTime": coordinator.recovery_ended_ms,
    }


def transaction_metadata(
    txn: TxnId,
    record: TransactionRecord,
    participants: Mapping[str | SubscriptionInTxn, object] = NO_PARTICIPANTS,
) -> TransactionMetadata:
    """Returns a transaction with its participants, under the names that the client gave.

    `participants` has what topics and subscriptions know of it (`in_buffer_stats`,
    `in_pending_ack_stats`); the others have an empty object.
    """
    subscriptions: dict[str, dict[str, object]] = {}
    for pair in record.subscriptions:
        subscriptions.setdefault(pair.topic, {})[pair.name] = participants.get(pair, {})
    metadata: TransactionMetadata = {
        "txnId": str(txn),
        "status": record.state.value,
        "openTimestamp": record.opened_ms,
        # Pulsar's field is the length of the timeout, whatever its name says.
        "timeoutAt": record.deadline_ms - record.opened_ms,
        "producedPartitions": {topic: participants.get(topic, {}) for topic in record.topics},
        "ackedPartitions": subscriptions,
    }
    if record.owner is not None:
        metadata["owner"] = record.owner
    return metadata


def in_buffer_stats(topic: PersistentTopic, txn: TxnId) -> Mapping[str, object] | None:
    """Returns an open transaction of a topic, as Pulsar's TransactionInBufferStats."""
    open_txn = topic.transactions.in_buffer(txn) if topic.transactional else None
    if open_txn is None:
        return None
    stats: dict[str, object] = {"aborted": open_txn.aborted}
    if open_txn.start_position is not None:
        stats["startPosition"] = open_txn.start_position
    return stats


def in_pending_ack_stats(
    subscription: PersistentSubscription, txn: TxnId
) -> Mapping[str, object] | None:
    """Returns an open transaction of a subscription, as Pulsar's TransactionInPendingAckStats."""
    pending = subscription.cursor.pending
    if pending is None or txn not in pending.by_txn:
        return None
    position = subscription.transactions.cumulative_of(txn)
    return {} if position is None else {"cumulativeAckPosition": position}


class BufferStatsDocument(TypedDict):
    """Pulsar's TransactionBufferStats. No snapshots: each abort is stored at once."""

    state: str
    maxReadPosition: str
    lastSnapshotTimestamps: int
    lowWaterMarks: NotRequired[Mapping[str, int]]
    ongoingTxnSize: int
    recoverStartTime: int
    recoverEndTime: int
    totalAbortedTransactions: int
    snapshotType: str


class PendingAckStatsDocument(TypedDict):
    """Pulsar's TransactionPendingAckStats."""

    state: str
    lowWaterMarks: NotRequired[Mapping[str, int]]
    ongoingTxnSize: int
    recoverStartTime: int
    recoverEndTime: int


def buffer_stats(topic: PersistentTopic, *, low_water_marks: bool) -> BufferStatsDocument:
    """Returns the transactions of a topic. A record decides, so no low water marks are needed."""
    stats = topic.transactions.stats()
    document: BufferStatsDocument = {
        "state": stats.state,
        "maxReadPosition": stats.max_read_position,
        "lastSnapshotTimestamps": 0,
        "ongoingTxnSize": stats.open_count,
        "recoverStartTime": stats.recovery_started_ms,
        "recoverEndTime": stats.recovery_ended_ms,
        "totalAbortedTransactions": stats.aborted_total,
        "snapshotType": "None",
    }
    if low_water_marks:
        document["lowWaterMarks"] = {}
    return document


def pending_ack_stats(
    subscription: PersistentSubscription, *, low_water_marks: bool
) -> PendingAckStatsDocument:
    """Returns the transactions of a subscription. Its acks are loaded with its cursor."""
    stats = subscription.transactions.stats()
    document: PendingAckStatsDocument = {
        "state": stats.state,
        "ongoingTxnSize": stats.open_count,
        "recoverStartTime": 0,
        "recoverEndTime": 0,
    }
    if low_water_marks:
        document["lowWaterMarks"] = {}
    return document
