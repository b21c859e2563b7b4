"""A non-persistent topic: what is published goes to who is there, and is kept nowhere.

Receipts come at once and carry no position (-1:-1). What no connected consumer has permits for is
dropped and counted (Pulsar's docs, "Non-persistent topics").
"""

from typing import Final

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.schema.model import SchemaInfo
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.nonpersistent import NonPersistentSubscription
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.governed import GovernedTopic
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.errors import (
    ConsumerBusy,
    MetadataError,
    PreconditionFailed,
    ServiceNotReady,
    SubscriptionNotFound,
)
from magnetar.core.hashing import bundle_hash
from magnetar.core.names import TopicName
from magnetar.wire.events import SendRun

NO_POSITION: Final = -1


class NonPersistentTopic(GovernedTopic):
    """One non-persistent topic or partition, served by this broker."""

    fenced: Final = False
    """Nobody else can own what is kept nowhere."""

    __slots__ = (
        "counters",
        "full_name",
        "last_active_ms",
        "name",
        "place",
        "producers",
        "subscriptions",
    )

    def __init__(self, name: TopicName, context: TopicContext) -> None:
        super().__init__(context)
        self.name = name
        self.full_name = str(name)
        self.place = bundle_hash(self.full_name)
        self.counters = TopicCounters()
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.producers = ProducerRegistry(self.full_name, None, _forget_epoch, context.tasks)
        self.last_active_ms = context.clock.now_ms()

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
        self.last_active_ms = self._context.clock.now_ms()
        self.producers.remove(producer)

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Hands the run to every subscription, then answers it."""
        messages = sum(run.message_counts)
        self.counters.last_published_ms = self._context.clock.now_ms()
        producer.messages_in += messages
        producer.bytes_in += run.size_bytes
        self.counters.published(run.entries, messages, run.size_bytes, 0.0)
        for subscription in self.subscriptions.values():
            subscription.publish(run.entries)
        producer.sink.send_receipts(producer, run, NO_POSITION, NO_POSITION)

    async def subscribe(
        self, request: SubscribeRequest, consumer: Consumer
    ) -> NonPersistentSubscription:
        """Attaches the consumer; the subscription lives as long as the topic is loaded."""
        self._check_serving()
        self.check_subscriber(request, consumer)
        subscription = self.subscriptions.get(request.subscription)
        if subscription is None:
            self.check_new_subscription(request.subscription)
            subscription = await self.create_subscription(request.subscription)
        self.check_consumers_cap()
        try:
            await subscription.add_consumer(consumer)
        except BaseException:
            self.remove_consumer(subscription, consumer)
            raise
        # Its last consumer may have left while this one waited for that: it is out of the list.
        if self._closing or self.subscriptions.setdefault(subscription.name, subscription) is not (
            subscription
        ):
            subscription.remove_consumer(consumer)
            raise ServiceNotReady(f"Subscription {subscription.name} has changed, please retry")
        self.last_active_ms = self._context.clock.now_ms()
        return subscription

    async def create_subscription(self, name: str) -> NonPersistentSubscription:
        subscription = NonPersistentSubscription(
            self.full_name,
            name,
            limits=self.limits,
            clock=self._context.clock,
        )
        return self.subscriptions.setdefault(name, subscription)

    def remove_consumer(self, subscription: NonPersistentSubscription, consumer: Consumer) -> None:
        self.last_active_ms = self._context.clock.now_ms()
        subscription.remove_consumer(consumer)
        if not subscription.consumers and self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]

    async def unsubscribe(
        self, subscription: NonPersistentSubscription, consumer: Consumer, *, force: bool
    ) -> None:
        """A consumer ends its subscription; MetadataError while others are attached."""
        if not force and any(other is not consumer for other in subscription.consumers):
            raise MetadataError("Unconnected or shared consumer attempting to unsubscribe")
        subscription.remove_consumer(consumer)
        await self.delete_subscription(subscription.name, force=True)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Raises SubscriptionNotFound, or ConsumerBusy where consumers are attached."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} not found")
        if subscription.consumers and not force:
            raise ConsumerBusy("Subscription has active connected consumers")
        await subscription.close()
        self.subscriptions.pop(name, None)

    async def check_schema(self, schema: SchemaInfo) -> None:
        await self._context.schemas.for_consumer(self.name, schema, topic_is_idle=self.is_idle)

    def policies_changed(self) -> None:
        """Called after a change that may concern this topic (`policies.telling`)."""
        self.apply_policies()

    def check_deletable(self, *, force: bool) -> None:
        """Raises PreconditionFailed while the topic is in use, unless forced."""
        if not force and not self.is_idle:
            raise PreconditionFailed("Topic has active producers/subscriptions")

    def suspend(self) -> None:
        """Takes nothing for a while; nobody is told."""
        self._resting = True
        self.producers.rest()

    def resume(self) -> None:
        """Goes on after `suspend`."""
        self._resting = False
        self.producers.resume()
        if self.gate is not None:
            self.gate.resume()

    async def close(self) -> None:
        """Sends everyone away."""
        await self.drain()
        self.dismiss(None)

    async def drain(self) -> None:
        """Takes nothing more; nobody is told yet."""
        self._closing = True
        self.producers.rest()
        if self.gate is not None:
            self.gate.close()

    def abandon(self) -> None:
        """As `close`."""
        self._closing = True
        self.dismiss(None)

    def dismiss(self, destination: BrokerRecord | None) -> None:
        """Sends everyone away, to `destination` where that is known."""
        self.producers.close_all(destination)
        for subscription in list(self.subscriptions.values()):
            subscription.end(destination)


async def _forget_epoch(_: int) -> None:
    """A non-persistent topic's epoch lives as long as the topic is loaded."""
