"""Decides by a transaction's record about its entries, messages and acks. Pure.

A record is deleted only after every participant has made the outcome durable. So a missing record
means commit to a participant that has stored no abort.
"""

from typing import Final

from magnetar.broker.transactions.api import Outcome, TransactionRecord, TxnId, TxnState
from magnetar.core.errors import InvalidTopicName, MagnetarError, NotAllowed, TransactionNotFound
from magnetar.core.names import TopicName, parse_topic

ENDED_TEXT: Final = "Transaction [{}] has been ended. Please use a new transaction to send message."


def outcome_of(record: TransactionRecord | None) -> Outcome | None:
    """Returns the outcome of a transaction with entries here; None while it is open."""
    return Outcome.COMMIT if record is None else record.state.outcome


def send_refusal(
    txn: TxnId, record: TransactionRecord | None, topic: TopicName
) -> MagnetarError | None:
    """Returns why a topic must not store a message of the transaction, None if it may."""
    if record is None or record.state is not TxnState.OPEN:
        return NotAllowed(ENDED_TEXT.format(txn))
    if not any(_names(name, topic) for name in record.topics):
        return NotAllowed(f"Transaction {txn} has not added the topic {topic}")
    return None


def ack_refusal(
    txn: TxnId, record: TransactionRecord | None, topic: TopicName, subscription: str
) -> MagnetarError | None:
    """Returns why a subscription must not keep an ack of the transaction, None if it may."""
    if record is None or record.state is not TxnState.OPEN:
        return TransactionNotFound(f"Transaction {txn} is not open")
    if not any(
        added.name == subscription and _names(added.topic, topic) for added in record.subscriptions
    ):
        return TransactionNotFound(
            f"Transaction {txn} has not added the subscription {subscription} of {topic}"
        )
    return None


def _names(name: str, topic: TopicName) -> bool:
    try:
        return parse_topic(name) == topic
    except InvalidTopicName:
        return False
