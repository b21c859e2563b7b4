"""A non-persistent topic: delivers messages to the connected consumers and stores nothing.

Receipts are sent at once and carry no position (-1:-1). Messages for which no connected consumer
has permits are dropped and counted (Pulsar's docs, "Non-persistent topics").
"""

from collections.abc import Callable, Mapping
from typing import Final

from magnetar.broker.dispatch.compacted_log import CompactedLog
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.subscription.api import Subscription
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.nonpersistent import NonPersistentSubscription
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.governed import GovernedTopic
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.broker.topic.transactions.admission import Admission
from magnetar.core.errors import (
    ConsumerBusy,
    MagnetarError,
    MetadataError,
    NotAllowed,
    PreconditionFailed,
    ServiceNotReady,
    SubscriptionNotFound,
)
from magnetar.core.hashing import bundle_hash
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.schemas.model import SchemaInfo
from magnetar.wire.events import SendRun

RECEIPT_ID: Final = (0, 0)
"""Pulsar's. Java's client would take -1:-1 for a message that the broker has dropped."""


class NonPersistentTopic(GovernedTopic):
    """One non-persistent topic or partition, served by this broker."""

    fenced: Final = False
    """There is no log that another broker could own."""

    __slots__ = (
        "counters",
        "full_name",
        "last_active_ms",
        "name",
        "producers",
        "ring_position",
        "subscriptions",
    )

    def __init__(self, name: TopicName, context: TopicContext) -> None:
        super().__init__(context)
        self.name = name
        self.full_name = str(name)
        self.ring_position = bundle_hash(self.full_name)
        self.counters = TopicCounters()
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.producers = ProducerRegistry(self.full_name, None, _keep_no_epoch, context.tasks)
        self.last_active_ms = context.clock.now_ms()

    @property
    def broken_subscriptions(self) -> Mapping[str, MagnetarError]:
        """Empty: no subscription has a cursor."""
        return {}

    @property
    def properties(self) -> Mapping[str, str]:
        """Empty: the topic stores no properties."""
        return {}

    @property
    def stored_bytes(self) -> int:
        """0: the topic stores nothing."""
        return 0

    async def add_producer(self, producer: Producer) -> None:
        """See `ProducerRegistry.add`."""
        self._check_serving()
        self.check_producers_cap(producer.name)
        await self.producers.add(producer)
        if self._closing:
            self.producers.remove(producer)
            self._check_serving()
        self.last_active_ms = self._context.clock.now_ms()

    def remove_producer(self, producer: Producer) -> None:
        """See `Topic.remove_producer`."""
        self.last_active_ms = self._context.clock.now_ms()
        self.producers.remove(producer)

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Hands the run to every subscription, then sends its receipts."""
        messages = sum(run.message_counts)
        self.counters.last_published_ms = self._context.clock.now_ms()
        producer.messages_in += messages
        producer.bytes_in += run.size_bytes
        self.counters.published(run.entries, messages, run.size_bytes, 0.0)
        for subscription in self.subscriptions.values():
            subscription.publish(run.entries)
        producer.sink.send_receipts(producer, run, *RECEIPT_ID, stored=False)

    def admission(self, run: SendRun) -> Admission:
        """Refuses transactions: there is no log that could hide a message until the commit.

        A delivery time has no effect, as in Pulsar.
        """
        return None if run.txn is None else NotAllowed("Transactions need a persistent topic")

    async def subscribe(
        self, request: SubscribeRequest, consumer: Consumer
    ) -> NonPersistentSubscription:
        """Attaches the consumer; the subscription ends with its last consumer."""
        self._check_serving()
        self.check_subscriber(request, consumer)
        self.check_consumers_cap()  # before: a refused consumer leaves no subscription
        subscription = self.subscriptions.get(request.subscription)
        if subscription is None:
            self.check_new_subscription(request.subscription)
            subscription = self._create_subscription(request.subscription, request.properties)
        try:
            await subscription.add_consumer(consumer)
        except BaseException:
            self.remove_consumer(subscription, consumer)
            raise
        # The subscription's last consumer may have left during the wait, which removed it.
        if self._closing or self.subscriptions.setdefault(subscription.name, subscription) is not (
            subscription
        ):
            subscription.remove_consumer(consumer)
            raise ServiceNotReady(f"Subscription {subscription.name} has changed, please retry")
        self.last_active_ms = self._context.clock.now_ms()
        return subscription

    async def create_subscription(self, name: str) -> NonPersistentSubscription:
        """Returns the subscription of that name, a new one if there is none."""
        return self.subscriptions.get(name) or self._create_subscription(name, {})

    def _create_subscription(
        self, name: str, properties: Mapping[str, str]
    ) -> NonPersistentSubscription:
        subscription = self.subscriptions[name] = NonPersistentSubscription(
            self.full_name,
            name,
            limits=self.limits,
            clock=self._context.clock,
            properties=properties,
        )
        return subscription

    def remove_consumer(self, subscription: Subscription, consumer: Consumer) -> None:
        """Detaches a consumer; the subscription ends with its last consumer."""
        self.last_active_ms = self._context.clock.now_ms()
        subscription.remove_consumer(consumer)
        if not subscription.consumers and self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]

    async def unsubscribe(
        self, subscription: Subscription, consumer: Consumer, *, force: bool
    ) -> None:
        """See `Topic.unsubscribe`."""
        if not (force or list(subscription.consumers) == [consumer]):
            raise MetadataError("Unconnected or shared consumer attempting to unsubscribe")
        subscription.remove_consumer(consumer)
        await self.delete_subscription(subscription.name, force=True)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """See `Topic.delete_subscription`."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} not found")
        if subscription.consumers and not force:
            raise ConsumerBusy("Subscription has active connected consumers")
        subscription.end()
        self.subscriptions.pop(name, None)

    async def initial_subscription(self, name: str) -> None:
        """Does nothing: a subscription of a non-persistent topic has no earlier entry to read."""

    async def last_message(self, compacted: CompactedLog | None) -> tuple[Position, int]:  # noqa: ARG002
        """Raises NotAllowed: the topic keeps no message."""
        raise NotAllowed("GetLastMessageId is not supported on non-persistent topics")

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Does nothing: a non-persistent topic keeps no properties."""

    def when_fenced(self, listener: Callable[[], None]) -> None:
        """Does nothing: a non-persistent topic has no log that could be fenced."""

    async def check_schema(self, schema: SchemaInfo) -> None:
        """See `Topic.check_schema`."""
        await self._context.schemas.for_consumer(self.name, schema, topic_is_idle=self.is_idle)

    def policies_changed(self) -> None:
        """See `Topic.policies_changed`."""
        self.apply_policies()
        for name in [name for name, ended in self.subscriptions.items() if ended.closed]:
            del self.subscriptions[name]

    def check_deletable(self, *, force: bool) -> None:
        """Raises PreconditionFailed while the topic is in use, unless forced."""
        if not force and not self.is_idle:
            raise PreconditionFailed("Topic has active producers/subscriptions")

    def suspend(self) -> None:
        """See `Topic.suspend`."""
        self._suspended = True
        self.producers.suspend()

    def resume(self) -> None:
        """Ends `suspend`."""
        self._suspended = False
        self.producers.resume()
        if self.gate is not None:
            self.gate.resume()

    async def close(self) -> None:
        """Disconnects all clients."""
        await self.drain()
        self.dismiss(None)

    async def drain(self) -> None:
        """Takes no more messages; clients stay attached."""
        self._closing = True
        self.producers.suspend()
        if self.gate is not None:
            self.gate.close()

    def abandon(self) -> None:
        """Disconnects all clients."""
        self._closing = True
        self.dismiss(None)

    def dismiss(self, destination: BrokerRecord | None) -> None:
        """See `Topic.dismiss`."""
        self.producers.close_all(destination)
        for subscription in list(self.subscriptions.values()):
            subscription.end(destination)


async def _keep_no_epoch(_: int) -> None:
    """Stores nothing: a non-persistent topic's epoch lives as long as the topic is loaded."""
