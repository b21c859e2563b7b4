"""A persistent topic: a managed ledger, its producers and its subscriptions.

A publish takes the path `session → publish → ManagedLedger.append → (fsync) → receipt`, a run of
messages at a time, without a task or a future: the ledger calls the completions in order. If an
append fails, every producer is disconnected: a later message must not be stored before an earlier
one that the client resends.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from magnetar.broker.dispatch.compacted_log import CompactedLog
from magnetar.broker.lifecycle.limits import KEEPS_ALL, placement_of, quorums_of, retention_of
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.subscription.api import Subscription
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.cursor_moves import position_of_time
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.deduplication.deduplication import Deduplication
from magnetar.broker.topic.deduplication.sequences import NONE, ProducerSequence
from magnetar.broker.topic.deduplication.switch import DeduplicationSwitch
from magnetar.broker.topic.delayed.delaying import DelayingTopic
from magnetar.broker.topic.last_message import find_last_message
from magnetar.broker.topic.message_index import next_index
from magnetar.broker.topic.own_properties import (
    EPOCH_PROPERTY,
    INDEX_PROPERTY,
    check_keys,
    without_own,
)
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.broker.topic.publish_completion import PublishCompletion
from magnetar.broker.topic.subscribe import SubscribeRequest, SubscriptionExists
from magnetar.broker.topic.throttles import DispatchThrottles
from magnetar.broker.topic.transactions.admission import Admission
from magnetar.broker.topic.transactions.topic_transactions import TopicTransactions
from magnetar.broker.topic.transactions.watermark import Watermark
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
from magnetar.managed_ledger.appender import OnAppended
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import PAYLOAD_CURSORS
from magnetar.policies.admission import BOOKIE_AFFINITY
from magnetar.policies.lifecycle import PERSISTENCE, RETENTION
from magnetar.schemas.model import SchemaInfo
from magnetar.wire.events import SendRun

log = get_logger("magnetar.topic")


class PersistentTopic(DelayingTopic):
    """A persistent topic or partition that this broker serves."""

    __slots__ = (
        "_next_index",
        "_tasks",
        "_throttles",
        "_transactions",
        "counters",
        "deduplication",
        "deduplication_switch",
        "full_name",
        "last_active_ms",
        "loaded_ms",
        "name",
        "producers",
        "ring_position",
        "subscriptions",
    )

    def __init__(
        self, name: TopicName, managed_ledger: ManagedLedger, context: TopicContext
    ) -> None:
        super().__init__(managed_ledger, context)
        self.name = name
        self.full_name = str(name)
        self.ring_position = bundle_hash(self.full_name)
        self.counters = TopicCounters()
        self.subscriptions: dict[str, PersistentSubscription] = {}
        self.last_active_ms = self.loaded_ms = context.clock.now_ms()
        self._throttles = DispatchThrottles(name, context, self.counters)
        self._tasks = context.tasks
        self._next_index = 0
        self._transactions: TopicTransactions | None = None
        epoch = managed_ledger.properties.get(EPOCH_PROPERTY)
        self.producers = ProducerRegistry(
            self.full_name, None if epoch is None else int(epoch), self._store_epoch, self._tasks
        )
        self.deduplication: Deduplication | None = None
        self.deduplication_switch = DeduplicationSwitch(
            self, context.deduplication, context.clock, self._tasks
        )
        managed_ledger.when_settled(self._cursor_settled)
        for cursor in managed_ledger.cursors.values():
            if cursor.name not in PAYLOAD_CURSORS:
                self.subscriptions[cursor.name] = self._subscription(cursor.name)

    @property
    def transactions(self) -> TopicTransactions:
        """The topic's transactions. A topic without them keeps no state for them."""
        if self._transactions is None:
            context = self._context
            self._transactions = TopicTransactions(
                *(self.name, self.managed_ledger, context.transactions, context.clock),
                *(self._tasks, self.resume_gate),
            )
        return self._transactions

    @property
    def transactional(self) -> bool:
        """Whether the topic has had a transaction since it was opened, or had some before."""
        return self._transactions is not None

    def admission(self, run: SendRun) -> Admission:
        """See `Topic.admission`."""
        if run.deliver_at_ms and (delay := self._admission_of_delay(run)) is not None:
            return delay
        return None if run.txn is None else self.transactions.admission(run.txn)

    async def recover(self) -> None:
        """Restores the state in memory that producers need; call it before any attaches.

        Those are the ids of deduplication, delays, open transactions, the message index (PIP-70).
        """
        await self.load_delays()
        await self.deduplication_switch.load()
        if Watermark.of(self.managed_ledger) is not None:
            self.transactions.recover()
        if self._context.stamp is not None and self._context.stamp.index:
            self._next_index = await next_index(self.managed_ledger)
            self.managed_ledger.trim_properties = lambda: {INDEX_PROPERTY: str(self._next_index)}

    async def add_producer(self, producer: Producer) -> None:
        """See `ProducerRegistry.add`; also raises TopicTerminated and ServiceNotReady."""
        self._check_serving()
        if self.managed_ledger.terminated:
            raise TopicTerminated("Topic was already terminated")
        self.check_producers_cap(producer.name)
        producer.last_sequence = partial(self._last_sequence_id, producer.name)
        await self.producers.add(producer)
        if self.deduplication is not None:
            try:
                await self.deduplication.attach(producer)
            except BaseException:
                self.producers.remove(producer)
                raise
        if self._closing or self.managed_ledger.terminated:
            self.producers.remove(producer)
            self._check_serving()
            raise TopicTerminated("Topic was already terminated")
        self.last_active_ms = self._context.clock.now_ms()

    def remove_producer(self, producer: Producer) -> None:
        """See `Topic.remove_producer`."""
        self.last_active_ms = self._context.clock.now_ms()
        self.producers.remove(producer)

    def _last_sequence_id(self, name: str) -> int:
        return NONE if self.deduplication is None else self.deduplication.last_sequence_id(name)

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Appends the run; the producer gets its receipts once the run is durable."""
        if self.deduplication is not None:
            self.deduplication.publish(producer, run)
        else:
            self.append(producer, run)

    def append(
        self,
        producer: Producer,
        run: SendRun,
        sequence: ProducerSequence | None = None,
        recorded: int = NONE,
    ) -> None:
        """See `DeduplicatedTopic.append`; without `sequence`, deduplication is off."""
        if self._context.stamp is not None:
            self._next_index = self._context.stamp(run, self._next_index)
        producer.pending_runs += 1
        completion: OnAppended = PublishCompletion(self, producer, run, sequence, recorded)
        if run.txn is not None:
            completion = self.transactions.appending(run.txn, len(run.entries), completion)
        if run.deliver_at_ms:
            completion = self._delaying(run, completion)
        self.managed_ledger.append(run.entries, completion)

    def publish_failed(self, error: MagnetarError) -> None:
        """Disconnects every producer: clients then resend messages without a receipt in order."""
        is_new = self.counters.failed(str(error), self.now_ms())
        if self.producers and is_new:  # not for every run behind the first
            log.warning("append failed", topic=self.full_name, error=str(error))
        self.producers.close_all()

    async def _store_epoch(self, epoch: int) -> None:
        self._check_serving()
        await self.managed_ledger.set_properties({EPOCH_PROPERTY: str(epoch)})

    async def subscribe(
        self, request: SubscribeRequest, consumer: Consumer
    ) -> PersistentSubscription:
        """See `Topic.subscribe`."""
        self._check_serving()
        self.check_subscriber(request, consumer)
        subscription = self.subscriptions.get(request.subscription)
        if subscription is None:
            self.check_consumers_cap()  # a refused consumer leaves no subscription
            subscription = await self._new_subscription(request)
        if request.durable != subscription.cursor.durable:  # or another client's, created meanwhile
            raise _exists(request.subscription, durable=subscription.cursor.durable)
        try:
            self.check_consumers_cap()
            await subscription.add_consumer(consumer)
            self._check_serving()
            self.check_consumers_cap(attached=True)  # others may have attached during the wait
        except BaseException:
            self.remove_consumer(subscription, consumer)
            raise
        self.last_active_ms = self._context.clock.now_ms()
        return subscription

    async def initial_subscription(self, name: str) -> None:
        """Creates a producer's initial subscription if it is missing; raises NotAllowed."""
        if name in self.subscriptions:
            return
        if not self.makes_subscriptions:
            raise NotAllowed(
                "Could not create the initial subscription due to the auto subscription creation "
                "is not allowed."
            )
        await self.create_subscription(name, EARLIEST, {})

    async def create_subscription(
        self,
        name: str,
        start: Position,
        properties: Mapping[str, str],
        *,
        before_kept: bool = False,
    ) -> PersistentSubscription:
        """Creates a durable subscription whose first entry is the first at or after `start`."""
        self._check_serving()
        if not name:
            raise PreconditionFailed("Empty subscription name")
        if name in self.subscriptions:
            raise SubscriptionExists("Subscription already exists for topic")
        self.check_new_subscription(name)
        self._being_created |= {name}
        opening = partial(
            self.managed_ledger.open_cursor,
            name, initial=start, properties=properties, before_kept=before_kept,
        )  # fmt: skip
        creating = self._create_subscription(name, opening)
        return await self._tasks.finish(creating, f"create subscription {name}")

    async def restore_subscription(self, name: str) -> PersistentSubscription:
        """Returns a durable subscription, and reads its cursor again if that failed before.

        Raises SubscriptionNotFound, and CursorCorrupt if the cursor is still unreadable.
        """
        self._check_serving()
        self._being_created |= {name}
        opening = partial(self.managed_ledger.restore_cursor, name)
        try:
            restoring = self._create_subscription(name, opening)
            return await self._tasks.finish(restoring, f"restore subscription {name}")
        except NotFound as error:
            raise SubscriptionNotFound(f"Subscription {name} not found") from error

    async def _create_subscription(
        self, name: str, opening: Callable[[], Awaitable[Cursor]]
    ) -> PersistentSubscription:
        """Opens the cursor and creates its subscription in one step.

        A cursor without a subscription would hold data back unnoticed.
        """
        try:
            cursor = await opening()
        finally:
            self._being_created -= {name}
        # A closing topic gets no subscription, a suspended one does. A deletion may have ended the
        # cursor meanwhile.
        if self._closing or self.managed_ledger.cursors.get(name) is not cursor:
            raise self._not_serving()
        # Two first consumers may have raced through the await: both get the same subscription.
        subscription = self.subscriptions.get(name)
        if subscription is None or subscription.cursor is not cursor:
            if subscription is not None:
                subscription.end()  # a reader's of the same name, without a durable cursor
            self.subscriptions[name] = subscription = self._subscription(name, cursor)
        self._check_serving()
        return subscription

    async def _new_subscription(self, request: SubscribeRequest) -> PersistentSubscription:
        name, compacted = request.subscription, request.spec.read_compacted
        if request.durable:
            if not request.auto_create and name not in self.broken_subscriptions:
                raise SubscriptionNotFound("Subscription does not exist")
            start = EARLIEST if request.from_earliest else LATEST
            return await self.create_subscription(
                name, start, request.properties, before_kept=compacted
            )
        self.check_new_subscription(name)
        ledger = self.managed_ledger
        start = request.start or (EARLIEST if request.from_earliest else LATEST)
        if request.rollback_s:
            since_ms = self._context.clock.now_ms() - request.rollback_s * 1000
            start = await position_of_time(ledger, since_ms)
            self._check_serving()
            if name in self.subscriptions:
                return self.subscriptions[name]
        if name in self.broken_subscriptions:
            raise _exists(name, durable=True)
        cursor = ledger.new_non_durable_cursor(name, start, before_kept=compacted)
        self.subscriptions[name] = subscription = self._subscription(name, cursor)
        return subscription

    def remove_consumer(self, subscription: Subscription, consumer: Consumer) -> None:
        """Detaches a consumer; a non-durable subscription ends with its last consumer."""
        self.last_active_ms = self._context.clock.now_ms()
        subscription.remove_consumer(consumer)
        if not subscription.durable and not subscription.consumers:
            if self.subscriptions.get(subscription.name) is subscription:
                del self.subscriptions[subscription.name]
            subscription.discard()

    async def unsubscribe(
        self, subscription: Subscription, consumer: Consumer, *, force: bool
    ) -> None:
        """See `Topic.unsubscribe`."""
        self._check_serving()
        if not (force or list(subscription.consumers) == [consumer]):
            raise MetadataError("Unconnected or shared consumer attempting to unsubscribe")
        subscription.remove_consumer(consumer)
        await self.delete_subscription(subscription.name, force=True)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """See `Topic.delete_subscription`. Also deletes one whose cursor cannot be read."""
        self._check_serving()
        subscription = self.subscriptions.get(name)
        if subscription is None and name not in self.broken_subscriptions:
            raise SubscriptionNotFound(f"Subscription {name} not found")
        if subscription is not None:
            if subscription.consumers and not force:
                raise ConsumerBusy("Subscription has active connected consumers")
            subscription.end()  # before any await, so that no consumer can attach any more
        await self._tasks.finish(self._delete_subscription(name), f"delete subscription {name}")

    async def _delete_subscription(self, name: str) -> None:
        """Deletes the cursor and its subscription in one step.

        The ended subscription keeps its name until then, so that none gets the dying cursor.
        """
        try:
            await self.managed_ledger.delete_cursor(name)
        except NotFound as error:
            self._forget(name)
            raise SubscriptionNotFound(f"Subscription {name} not found") from error
        except Exception:
            subscription = self.subscriptions.get(name)
            if subscription is not None and self.managed_ledger.cursor_in_doubt(name):
                subscription.end()  # its successor is created once the store has answered
            elif subscription is not None and subscription.closed:
                self._cursor_settled(name)
            raise
        self._forget(name)

    def _forget(self, name: str) -> None:
        """Removes the subscription of a deleted cursor, even one that replaced the ended one."""
        subscription = self.subscriptions.get(name)
        cursor = self.managed_ledger.cursors.get(name)
        if subscription is not None and subscription.cursor is not cursor:
            del self.subscriptions[name]
            subscription.end()

    def _cursor_settled(self, name: str) -> None:
        """Replaces an ended subscription once it is certain whether its cursor exists."""
        ended = self.subscriptions.pop(name, None)
        if ended is not None:
            ended.end()
            if name in self.managed_ledger.cursors:
                self.subscriptions[name] = self._subscription(name)

    @property
    def broken_subscriptions(self) -> Mapping[str, MagnetarError]:
        """Subscriptions with unreadable cursors, by name, with the reason.

        They hold back all data until they are deleted.
        """
        broken = self.managed_ledger.broken_cursors
        return {name: error for name, (_, error) in broken.items() if name not in PAYLOAD_CURSORS}

    @property
    def properties(self) -> Mapping[str, str]:
        """The log's properties without those of the broker."""
        return without_own(self.managed_ledger.properties)

    @property
    def stored_bytes(self) -> int:
        """The size of the log."""
        return self.managed_ledger.bytes_total

    def _subscription(self, name: str, cursor: Cursor | None = None) -> PersistentSubscription:
        subscription = PersistentSubscription(
            self.full_name,
            name,
            self.managed_ledger,
            cursor or self.managed_ledger.cursors[name],
            limits=self.limits,
            clock=self._context.clock,
            tasks=self._tasks,
            records=self._context.transactions,
        )
        if self.delays is not None and (delayed := self.delays.delayed) is not None:
            subscription.set_delayed(delayed)
        subscription.suspended = not self.serving
        self._throttles.apply(subscription)
        return subscription

    async def last_message(self, compacted: CompactedLog | None) -> tuple[Position, int]:
        """See `Topic.last_message`."""
        return await find_last_message(self.managed_ledger, compacted)

    async def check_schema(self, schema: SchemaInfo) -> None:
        """Registers a consumer's schema on an idle topic, else checks it; see
        `Topic.check_schema`."""
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
        """Returns the wall-clock time."""
        return self._context.clock.now_ms()

    def judged_ms(self) -> int:
        """Returns the time for computing ages; see `core.steady_clock`."""
        return self._context.clock.judged_ms()

    @property
    def fenced(self) -> bool:
        """Whether another broker owns the log, so that this instance must be closed."""
        return self.managed_ledger.fenced

    def when_fenced(self, listener: Callable[[], None]) -> None:
        """Calls `listener` once another broker owns the log."""
        self.managed_ledger.when_fenced(listener)

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Adds or replaces properties. Raises PreconditionFailed for one of the broker's own."""
        check_keys(properties)
        await self.managed_ledger.set_properties(dict(properties))

    async def delete_property(self, key: str) -> None:
        """Deletes a property if it exists; raises as `set_properties` does."""
        check_keys((key,))
        await self.managed_ledger.delete_property(key)

    def policies_changed(self) -> None:
        """See `Topic.policies_changed`."""
        value, ledger = self.policies.value, self.managed_ledger
        retention, quorums = KEEPS_ALL, quorums_of(value(PERSISTENCE))
        if self.policies.known:
            retention = retention_of(value(RETENTION))
        ledger.quorums = quorums
        ledger.tenure.placement = placement_of(value(BOOKIE_AFFINITY))
        if retention != ledger.retention:
            ledger.set_retention(retention.size_bytes, retention.time_ms)
        self.apply_policies()
        self.deduplication_switch.policies_changed()
        if self.delays is not None:
            self.delays.policies_changed()
        self._throttles.policies_changed()
        for subscription in self.subscriptions.values():
            self._throttles.apply(subscription)

    async def terminate(self) -> Position:
        """Ends publishing for good; returns the position of the last message."""
        return await self._tasks.finish(self._terminate(), f"terminate {self.full_name}")

    async def _terminate(self) -> Position:
        position = await self.managed_ledger.terminate()
        self.producers.close_all()  # they get the reason when they reconnect
        for subscription in self.subscriptions.values():
            subscription.topic_terminated()
        return position

    def suspend(self) -> None:
        """See `Topic.suspend`."""
        self._suspended = True
        self.producers.suspend()
        for subscription in self.subscriptions.values():
            subscription.suspend()

    def resume(self) -> None:
        """Ends `suspend`."""
        self._suspended = False
        self.producers.resume()
        self.resume_gate()
        for subscription in list(self.subscriptions.values()):
            subscription.resume()

    async def close(self) -> None:
        """See `Topic.close`."""
        try:
            await self.drain()
        finally:
            self.dismiss(None)

    async def drain(self) -> None:
        """See `Topic.drain`.

        Earlier messages are stored and receipted, so that producers do not resend them; messages
        that arrive meanwhile are not taken. Nothing more is dispatched. Acks count until the cursor
        is closed; a later ack is dropped, and gets an error if it requests a receipt.
        """
        self._closing = True
        self._stop_publishing()
        self.deduplication_switch.end()
        if self.delays is not None:
            self.delays.end()
        for subscription in self.subscriptions.values():
            subscription.suspend()
        if self._transactions is not None:
            await self._transactions.close()
        await self.managed_ledger.close()

    def abandon(self) -> None:
        """See `Topic.abandon`."""
        self._closing = True
        self._stop_publishing()
        self.deduplication_switch.end()
        if self.delays is not None:
            self.delays.end()
        if self._transactions is not None:
            self._transactions.abandon()
        self.managed_ledger.abandon()
        self.dismiss(None)

    def _stop_publishing(self) -> None:
        """Takes no more messages and drops those that wait for a rate; clients resend them."""
        self.producers.suspend()
        if self.gate is not None:
            self.gate.close()

    def dismiss(self, destination: BrokerRecord | None) -> None:
        """See `Topic.dismiss`."""
        for subscription in list(self.subscriptions.values()):
            subscription.end(destination)
        self.producers.close_all(destination)

    def check_deletable(self, *, force: bool) -> None:
        """See `Topic.check_deletable`."""
        in_use = self.subscriptions or self.broken_subscriptions or len(self.producers)
        if not force and in_use:
            raise PreconditionFailed("Topic has active producers/subscriptions")


def _exists(subscription: str, *, durable: bool) -> NotAllowed:
    return NotAllowed(
        f"Durable subscription with name {subscription} already exists."
        if durable
        else f"NonDurable subscription with the same name already exists: {subscription}"
    )


def as_persistent(topic: Topic | None) -> PersistentTopic | None:
    """Returns the topic if it is persistent, else None."""
    return topic if isinstance(topic, PersistentTopic) else None


def require_persistent(topic: Topic, refusal: str) -> PersistentTopic:
    """Returns the topic if it is persistent, else raises NotAllowed with Pulsar's refusal."""
    persistent = as_persistent(topic)
    if persistent is None:
        raise NotAllowed(refusal)
    return persistent
