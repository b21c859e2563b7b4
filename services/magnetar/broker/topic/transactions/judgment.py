"""Why a topic or a subscription refuses a transaction, given its record. Pure.

`magnetar.transactions.model.outcome_of` decides about entries that are stored already.
"""

from typing import Final

from magnetar.core.errors import InvalidTopicName, MagnetarError, NotAllowed, TransactionNotFound
from magnetar.core.names import TopicName, parse_topic
from magnetar.transactions.model import TransactionRecord, TxnId, TxnState

ENDED_TEXT: Final = "Transaction [{}] has been ended. Please use a new transaction to send message."


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
