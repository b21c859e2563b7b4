"""A persistent topic: a managed ledger, its producers and its subscriptions.

A publish goes `session → publish → ManagedLedger.append → (fsync) → receipt`, a run of messages at
a time, without a task or a future: the completion is called by the ledger in order. Where an append
fails, every producer is sent away, because a client that resends after an error must not find that
a later message of it got in first.
"""

from collections.abc import Mapping
from typing import Final

from magnetar.broker.entry_stamp import last_index
from magnetar.broker.lifecycle.limits import KEEPS_ALL, quorums_of, retention_of
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.schema.model import SchemaInfo
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.cursor_moves import position_of_time
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.completion import PublishCompletion
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.governed import GovernedTopic, dispatch_rate, limiter_for, throttle
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.broker.topic.subscribe import SubscribeRequest, SubscriptionExists
from magnetar.core.errors import (
    ConsumerBusy,
    MagnetarError,
    MetadataError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    SubscriptionNotFound,
    TopicTerminated,
)
from magnetar.core.hashing import bundle_hash
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.policies.lifecycle import PERSISTENCE, RETENTION
from magnetar.policies.rates import DISPATCH_RATE
from magnetar.wire.events import SendRun

log = get_logger("magnetar.topic")

EPOCH_PROPERTY: Final = "pulsar.topic.epoch"


class PersistentTopic(GovernedTopic):
    """One topic or one partition, served by this broker."""

    __slots__ = (
        "_dispatch_limiter",
        "_next_index",
        "_tasks",
        "counters",
        "full_name",
        "last_active_ms",
        "loaded_ms",
        "managed_ledger",
        "name",
        "place",
        "producers",
        "subscriptions",
    )

    def __init__(
        self, name: TopicName, managed_ledger: ManagedLedger, context: TopicContext
    ) -> None:
        super().__init__(context)
        self.name = name
        self.full_name = str(name)
        self.place = bundle_hash(self.full_name)
        self.managed_ledger = managed_ledger
        self.counters = TopicCounters()
        self.subscriptions: dict[str, PersistentSubscription] = {}
        self.last_active_ms = self.loaded_ms = context.clock.now_ms()
        self._dispatch_limiter: RateLimiter | None = None
        self._tasks = context.tasks
        self._next_index = 0
        epoch = managed_ledger.properties.get(EPOCH_PROPERTY)
        self.producers = ProducerRegistry(
            self.full_name, None if epoch is None else int(epoch), self._store_epoch, self._tasks
        )
        managed_ledger.when_settled(self._cursor_settled)
        for cursor in managed_ledger.cursors.values():
            self.subscriptions[cursor.name] = self._subscription(cursor.name)

    async def recover_index(self) -> None:
        """Goes on counting messages where the last stored entry left off (PIP-70)."""
        position = await self.last_readable()
        if self._context.stamp is not None and position is not None:
            entry = await self.managed_ledger.read_entry(position)
            self._next_index = last_index(entry.data) + 1

    # -- publishing ------------------------------------------------------------------------

    async def add_producer(self, producer: Producer) -> None:
        """See `ProducerRegistry.add`; also raises TopicTerminated and ServiceNotReady."""
        self._check_serving()
        if self.managed_ledger.terminated:
            raise TopicTerminated("Topic was already terminated")
        self.check_producers_cap(producer.name)
        await self.producers.add(producer)
        if self._closing or self.managed_ledger.terminated:
            self.producers.remove(producer)
            self._check_serving()
            raise TopicTerminated("Topic was already terminated")
        self.last_active_ms = self._context.clock.now_ms()

    def remove_producer(self, producer: Producer) -> None:
        """The client closed it or its connection is gone."""
        self.last_active_ms = self._context.clock.now_ms()
        self.producers.remove(producer)

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Appends the run; its receipts are sent once it is durable."""
        if self._context.stamp is not None:
            self._next_index = self._context.stamp(run, self._next_index)
        producer.pending_runs += 1
        self.managed_ledger.append(run.entries, PublishCompletion(self, producer, run))

    def publish_failed(self, error: MagnetarError) -> None:
        """Sends every producer away, so that all resend in order from what was not receipted."""
        self.counters.publish_errors += 1
        if self.producers:  # told once, not for every run that waited behind the first
            log.warning("append failed", topic=self.full_name, error=str(error))
        self.producers.close_all()

    async def _store_epoch(self, epoch: int) -> None:
        self._check_serving()
        await self.managed_ledger.set_properties({EPOCH_PROPERTY: str(epoch)})

    # -- subscriptions ---------------------------------------------------------------------

    async def subscribe(
        self, request: SubscribeRequest, consumer: Consumer
    ) -> PersistentSubscription:
        """Attaches the consumer, creating the subscription where that is asked and allowed."""
        self._check_serving()
        self.check_subscriber(request, consumer)
        subscription = self.subscriptions.get(request.subscription)
        if subscription is None:
            subscription = await self._new_subscription(request)
        elif request.durable != subscription.cursor.durable:
            raise NotAllowed(
                f"Durable subscription with name {request.subscription} already exists."
                if subscription.cursor.durable
                else f"NonDurable subscription with the same name already exists: "
                f"{request.subscription}"
            )
        try:
            self.check_consumers_cap()
            await subscription.add_consumer(consumer)
            self._check_serving()
        except BaseException:
            self.remove_consumer(subscription, consumer)
            raise
        self.last_active_ms = self._context.clock.now_ms()
        return subscription

    async def create_subscription(
        self,
        name: str,
        start: Position,
        properties: Mapping[str, str],
        *,
        before_kept: bool = False,
    ) -> PersistentSubscription:
        """A durable subscription that reads first what is at or behind `start`."""
        self._check_serving()
        if not name:
            raise PreconditionFailed("Empty subscription name")
        if name in self.subscriptions:
            raise SubscriptionExists("Subscription already exists for topic")
        self.check_new_subscription(name)
        return await self._tasks.finish(
            self._create_subscription(name, start, properties, before_kept),
            f"create subscription {name}",
        )

    async def _create_subscription(
        self, name: str, start: Position, properties: Mapping[str, str], before_kept: bool
    ) -> PersistentSubscription:
        """The cursor and its subscription as one step.

        Without the subscription, the cursor would hold data back and nobody could see it.
        """
        cursor = await self.managed_ledger.open_cursor(
            name, initial=start, properties=properties, before_kept=before_kept
        )
        # A topic that closes is left alone; one that rests has it when it goes on. A deletion may
        # have ended the cursor meanwhile.
        if self._closing or self.managed_ledger.cursors.get(name) is not cursor:
            raise self._not_serving()
        # Two first consumers may have raced through the await: both get the one subscription.
        subscription = self.subscriptions.get(name)
        if subscription is None or subscription.cursor is not cursor:
            if subscription is not None:
                subscription.end()  # a reader's of the same name: it has no durable cursor
            self.subscriptions[name] = subscription = self._subscription(name, cursor)
        self._check_serving()
        return subscription

    async def _new_subscription(self, request: SubscribeRequest) -> PersistentSubscription:
        name, compacted = request.subscription, request.spec.read_compacted
        if request.durable:
            if not request.auto_create:
                raise SubscriptionNotFound("Subscription does not exist")
            start = EARLIEST if request.from_earliest else LATEST
            try:
                return await self.create_subscription(
                    name, start, request.properties, before_kept=compacted
                )
            except SubscriptionExists:
                return self.subscriptions[name]
        self.check_new_subscription(name)
        ledger = self.managed_ledger
        start = request.start or (EARLIEST if request.from_earliest else LATEST)
        if request.rollback_s:
            since_ms = self._context.clock.now_ms() - request.rollback_s * 1000
            start = await position_of_time(ledger, since_ms)
            self._check_serving()
            if name in self.subscriptions:
                return self.subscriptions[name]
        cursor = ledger.new_non_durable_cursor(name, start, before_kept=compacted)
        subscription = self._subscription(name, cursor)
        self.subscriptions[name] = subscription
        return subscription

    def remove_consumer(self, subscription: PersistentSubscription, consumer: Consumer) -> None:
        """The client closed it or its connection is gone."""
        self.last_active_ms = self._context.clock.now_ms()
        subscription.remove_consumer(consumer)
        if not subscription.cursor.durable and not subscription.consumers:
            if self.subscriptions.get(subscription.name) is subscription:
                del self.subscriptions[subscription.name]
            subscription.end()
            # At once: a reader that comes back under this name gets a cursor of its own.
            self.managed_ledger.forget_cursor(subscription.cursor)

    async def unsubscribe(
        self, subscription: PersistentSubscription, consumer: Consumer, *, force: bool
    ) -> None:
        """A consumer ends its subscription; MetadataError while others are attached."""
        self._check_serving()
        if not force and any(other is not consumer for other in subscription.consumers):
            raise MetadataError("Unconnected or shared consumer attempting to unsubscribe")
        subscription.remove_consumer(consumer)
        await self.delete_subscription(subscription.name, force=True)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Raises SubscriptionNotFound, or ConsumerBusy where consumers are attached.

        Also deletes one whose cursor cannot be read.
        """
        self._check_serving()
        subscription = self.subscriptions.get(name)
        if subscription is None and name not in self.broken_subscriptions:
            raise SubscriptionNotFound(f"Subscription {name} not found")
        if subscription is not None:
            if subscription.consumers and not force:
                raise ConsumerBusy("Subscription has active connected consumers", http_status=412)
            subscription.end()  # before any await: nobody attaches any more
        await self._tasks.finish(self._delete_subscription(name), f"delete subscription {name}")

    async def _delete_subscription(self, name: str) -> None:
        """The cursor and its subscription as one step.

        The ended subscription keeps its name until then: nobody gets a cursor that is going.
        """
        try:
            await self.managed_ledger.delete_cursor(name)
        except NotFound as error:
            self._forget(name)
            raise SubscriptionNotFound(f"Subscription {name} not found") from error
        except Exception:
            subscription = self.subscriptions.get(name)
            if subscription is not None and self.managed_ledger.cursor_in_doubt(name):
                subscription.end()  # until the store has answered
            elif subscription is not None and subscription.closed:
                self._cursor_settled(name)
            raise
        self._forget(name)

    def _forget(self, name: str) -> None:
        """Its cursor is gone, and so is the subscription, also one that replaced the ended one."""
        subscription = self.subscriptions.get(name)
        cursor = self.managed_ledger.cursors.get(name)
        if subscription is not None and subscription.cursor is not cursor:
            del self.subscriptions[name]
            subscription.end()

    def _cursor_settled(self, name: str) -> None:
        """It is known whether the cursor of an ended subscription exists: both go on, or none."""
        ended = self.subscriptions.pop(name, None)
        if ended is not None:
            ended.end()
            if name in self.managed_ledger.cursors:
                self.subscriptions[name] = self._subscription(name)

    @property
    def broken_subscriptions(self) -> Mapping[str, MagnetarError]:
        """Why their cursors cannot be read; they hold back all data until they are deleted."""
        broken = self.managed_ledger.broken_cursors
        return {name: error for name, (_, error) in broken.items()} if broken else {}

    def _subscription(self, name: str, cursor: Cursor | None = None) -> PersistentSubscription:
        subscription = PersistentSubscription(
            self.full_name,
            name,
            self.managed_ledger,
            cursor or self.managed_ledger.cursors[name],
            limits=self.limits,
            clock=self._context.clock,
            tasks=self._tasks,
        )
        subscription.resting = not self.serving
        throttle(self, subscription, self._dispatch_limiter)
        return subscription

    async def last_readable(self) -> Position | None:
        """The last entry that the topic holds; None where it holds none."""
        ledger = self.managed_ledger
        last = ledger.last_confirmed
        if last.entry_id < 0 and ledger.entries_total:
            last = ledger.previous_position(ledger.next_position(last))
        return last if last.entry_id >= 0 and last > ledger.first_position else None

    # -- schema ----------------------------------------------------------------------------

    async def check_schema(self, schema: SchemaInfo) -> None:
        """A consumer's schema: added to an idle topic, else checked. Raises IncompatibleSchema."""
        idle = (
            not len(self.producers)
            and not any(
                consumer.spec.has_schema
                for subscription in self.subscriptions.values()
                for consumer in subscription.consumers
            )
            and not self.managed_ledger.entries_total
        )
        await self._context.schemas.for_consumer(self.name, schema, topic_is_idle=idle)

    def now_ms(self) -> int:
        return self._context.clock.now_ms()

    def judged_ms(self) -> int:
        """The time by which is judged how old things are: `core.steady_clock`."""
        return self._context.clock.judged_ms()

    # -- life ------------------------------------------------------------------------------

    @property
    def fenced(self) -> bool:
        """Whether another owner has the log now: this instance is of no use any more."""
        return self.managed_ledger.fenced

    def policies_changed(self) -> None:
        """Called after a change that may concern this topic (`policies.telling`)."""
        value, ledger = self.policies.value, self.managed_ledger
        retention, quorums = KEEPS_ALL, quorums_of(value(PERSISTENCE))
        if self.policies.known:
            retention = retention_of(value(RETENTION))
        ledger.quorums = quorums
        if retention != ledger.retention:
            ledger.set_retention(retention.size_bytes, retention.time_ms)
        self.apply_policies()
        self._dispatch_limiter = limiter_for(
            self._dispatch_limiter, dispatch_rate(value(DISPATCH_RATE)), self
        )
        for subscription in self.subscriptions.values():
            throttle(self, subscription, self._dispatch_limiter)

    async def terminate(self) -> Position:
        """No message is taken from now on. Returns the last position."""
        return await self._tasks.finish(self._terminate(), f"terminate {self.full_name}")

    async def _terminate(self) -> Position:
        position = await self.managed_ledger.terminate()
        self.producers.close_all()  # they hear why when they come back
        for subscription in self.subscriptions.values():
            subscription.topic_terminated()
        return position

    def suspend(self) -> None:
        """Takes no messages and sends none for a while; nobody is told."""
        self._resting = True
        self.producers.rest()
        for subscription in self.subscriptions.values():
            subscription.rest()

    def resume(self) -> None:
        """Goes on after `suspend`."""
        self._resting = False
        self.producers.resume()
        if self.gate is not None:
            self.gate.resume()
        for subscription in list(self.subscriptions.values()):
            subscription.resume()

    async def close(self) -> None:
        """Makes what is known durable, and sends everyone away."""
        try:
            await self.drain()
        finally:
            self.dismiss(None)

    async def drain(self) -> None:
        """Makes what is known durable; nobody is told yet.

        What producers had sent is stored and receipted, so that they do not send it again. What
        they send meanwhile is not taken. Consumers get nothing more. What they ack counts until
        their cursor is closed; a later ack is dropped, and gets an error if it asks for a receipt.
        """
        self._closing = True
        self._take_no_more()
        for subscription in self.subscriptions.values():
            subscription.rest()
        await self.managed_ledger.close()

    def abandon(self) -> None:
        """Another broker may have the topic: nothing is written, everyone is sent away."""
        self._closing = True
        self._take_no_more()
        self.managed_ledger.abandon()
        self.dismiss(None)

    def _take_no_more(self) -> None:
        """What producers send from now on, or what waits for a rate, they send again elsewhere."""
        self.producers.rest()
        if self.gate is not None:
            self.gate.close()

    def dismiss(self, destination: BrokerRecord | None) -> None:
        """Sends everyone away, to `destination` where that is known."""
        for subscription in list(self.subscriptions.values()):
            subscription.end(destination)
        self.producers.close_all(destination)

    def check_deletable(self, *, force: bool) -> None:
        """Raises PreconditionFailed while the topic is in use, unless forced."""
        in_use = self.subscriptions or self.broken_subscriptions or len(self.producers)
        if not force and in_use:
            raise PreconditionFailed("Topic has active producers/subscriptions")
