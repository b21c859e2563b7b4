"""The topics and subscriptions of this broker as participants of transactions."""

from magnetar.broker.ownership.api import Ownership
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.registry import TopicRegistry
from magnetar.broker.transactions.api import Participant
from magnetar.core.errors import (
    InvalidTopicName,
    NotAllowed,
    ServiceNotReady,
    SubscriptionNotFound,
    TopicNotFound,
)
from magnetar.core.names import TopicName, parse_topic
from magnetar.managed_ledger.errors import CursorCorrupt
from magnetar.managed_ledger.record import PAYLOAD_CURSORS
from magnetar.transactions.model import Outcome, TxnId


class LocalParticipants:
    """Ends transactions in the topics that this broker serves (`Participants`).

    A topic that is not open is opened: an abort must be durable before the transaction's record is
    deleted, and only the topic's entries show in which transactions it takes part.
    """

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    def end_on_topic_at_once(self, topic: str, txn: TxnId, outcome: Outcome) -> bool:
        """See `Participants`. Only for a topic that this broker serves and has open."""
        name = parse_topic(topic)
        if not self.owns(name):
            return False
        opened = self._topics.loaded(name)
        if not isinstance(opened, PersistentTopic) or opened.fenced:
            return False
        return opened.transactions.end_at_once(txn, outcome)

    async def end_on_topic(self, topic: str, txn: TxnId, outcome: Outcome) -> None:
        """See `Participants`. Raises ServiceNotReady if another broker serves the topic."""
        opened = await self._open(topic)
        if opened is not None:
            await _end(opened.transactions, txn, outcome)

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, outcome: Outcome
    ) -> None:
        """See `Participants`. Raises ServiceNotReady if another broker serves the topic."""
        opened = await self._open(topic)
        if opened is None:
            return
        subscribed: Participant | None = opened.subscriptions.get(subscription)
        if subscribed is None and subscription in opened.broken_subscriptions:
            subscribed = await _restored(opened, subscription)
        if subscribed is not None:
            await _end(subscribed, txn, outcome)
        elif _has_cursor(opened, subscription):
            raise ServiceNotReady(f"Subscription {subscription} of {topic} is being opened")
        else:
            # It was deleted, unless a later owner of the topic has created it.
            await opened.managed_ledger.tenure.confirm()

    async def claim(self, topic: str) -> None:
        """Claims the topic if no broker owns it, for a request of a coordinator's broker.

        Raises ServiceNotReady if another broker serves the topic.
        """
        name = parse_topic(topic)
        if not self.owns(name):
            located = await self._topics.ownership.locate(name, authoritative=True)
            if located.broker is not None:
                raise ServiceNotReady(f"The topic {name} is served by another broker")

    def owns(self, name: TopicName) -> bool:
        """Whether this broker serves the topic now."""
        return self._topics.ownership.owns(name)

    @property
    def ownership(self) -> Ownership:
        """Finds the brokers of other topics."""
        return self._topics.ownership

    async def _open(self, topic: str) -> PersistentTopic | None:
        """Returns the topic, None if it does not exist (any more)."""
        try:
            name = parse_topic(topic)
        except InvalidTopicName:
            return None
        try:
            opened = await self._topics.get_or_open(name, create=False)
        except (TopicNotFound, NotAllowed) as error:
            # While its namespace or partitioned topic is being deleted, the topic cannot be opened.
            # That deletion may fail and leave the topic, with entries that have no outcome yet.
            if await self._topics.exists(name):
                text = f"Topic {name} cannot be opened now: {error.message}"
                raise ServiceNotReady(text) from error
            return None
        return opened if isinstance(opened, PersistentTopic) else None


async def _restored(topic: PersistentTopic, name: str) -> Participant | None:
    """Reads the cursor of a subscription again; returns None if it has been deleted meanwhile.

    Nothing else might: consumers that wait for the end of the transaction do not attach. Raises
    ServiceNotReady if it is still unreadable.
    """
    try:
        return await topic.restore_subscription(name)
    except SubscriptionNotFound:
        return None
    except CursorCorrupt as error:
        raise ServiceNotReady(f"Subscription {name} of {topic.full_name}: {error}") from error


def _has_cursor(topic: PersistentTopic, name: str) -> bool:
    """Whether the subscription's cursor exists: it may have acks before it has a subscription."""
    return name not in PAYLOAD_CURSORS and name in topic.managed_ledger.cursors


async def _end(participant: Participant, txn: TxnId, outcome: Outcome) -> None:
    await participant.end_transaction(txn, outcome)
