"""A subscription of a non-persistent topic: delivers entries to connected consumers or drops them.

There is no cursor and nothing is read again, so acks and redeliveries have no effect. An entry is
dropped and counted if no consumer has permits for it and room on its connection. Messages carry the
id 0:0, as in Pulsar.
Source: Pulsar's `NonPersistentSubscription` and its dispatchers.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.broker.dispatch.active import choose_active
from magnetar.broker.dispatch.active_news import ActiveNews
from magnetar.broker.dispatch.filtering import FilterCounts, judge
from magnetar.broker.dispatch.metadata import count_and_key, message_count
from magnetar.broker.dispatch.selector import RingSelector, Selector, new_selector
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.subscription.admission import check_key_shared, check_room, check_type
from magnetar.broker.subscription.api import AckPosition, OnDone
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import KeySharedSpec, SubType
from magnetar.broker.subscription.stats import (
    GoneConsumers,
    SubscriptionStats,
    consumer_stats,
    total,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import ConsumerBusy, NotAllowed, ServiceNotReady
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.log import get_logger
from magnetar.managed_ledger.entry import Entry
from magnetar.policies.filters import FilterInvalid, Predicate
from magnetar.transactions.model import TxnId

LEDGER_ID: Final = 0
ENTRY_ID: Final = 0

log = get_logger("magnetar.subscription")


class NonPersistentSubscription:
    """A `Subscription` of a non-persistent topic."""

    def __init__(
        self,
        topic: str,
        name: str,
        *,
        limits: SubscriptionLimits,
        clock: Clock,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self.name = name
        self.limits = limits
        self.clock = clock
        self.properties: Mapping[str, str] = dict(properties or {})
        """Those of the consumer that created the subscription; parameters of entry filters."""
        self.type: SubType | None = None
        self.consumers: list[Consumer] = []
        self.active: Consumer | None = None
        self.dropped = 0
        self.drop_rate = 0.0
        self.closed = False
        self._levels: list[list[Consumer]] = []
        self._policy = KeySharedSpec()
        self._selector: Selector = RingSelector(limits.ring_points)
        self._filter = self._predicate()
        self._filter_counts = FilterCounts()
        self._gone = GoneConsumers()
        self._news = ActiveNews(lambda consumer: consumer is self.active)
        self._rated = (0, clock.monotonic())

    @property
    def durable(self) -> bool:
        """False: the subscription ends with its last consumer."""
        return False

    @property
    def mark_delete(self) -> Position:
        """EARLIEST: the subscription keeps no position."""
        return EARLIEST

    @property
    def backlog(self) -> None:
        """None: the subscription keeps no position."""
        return None

    @property
    def backlog_bytes(self) -> int:
        """0: the subscription keeps no position."""
        return 0

    @property
    def unused(self) -> bool:
        """False: the subscription exists only while it has consumers."""
        return False

    def set_limits(self, limits: SubscriptionLimits) -> None:
        """Replaces the limits; attached consumers stay.

        The subscription ends if its filters cannot be used: its consumers attach again and get the
        reason. Otherwise they would get messages that the filters were meant to reject.
        """
        self.limits = limits
        try:
            self._filter = self._predicate()
        except FilterInvalid as error:
            log.warning("filters cannot be used, consumers are disconnected", topic=self.topic,
                        subscription=self.name, error=str(error))  # fmt: skip
            self.end()

    async def add_consumer(self, consumer: Consumer) -> None:
        """See `Subscription.add_consumer`."""
        if self.closed:
            raise ServiceNotReady("Subscription is fenced")
        sub_type = consumer.spec.sub_type
        if self.consumers and self.type is not None:
            check_type(self.type, sub_type)
        if sub_type is SubType.Exclusive:
            for other in list(self.consumers):
                if not await other.sink.is_alive():
                    self.remove_consumer(other)
            if self.closed:  # deleted during the wait
                raise ServiceNotReady("Subscription is fenced")
            if self.consumers:
                raise ConsumerBusy("Exclusive consumer is already connected")
        check_room(self.limits.max_consumers, len(self.consumers))
        if sub_type is SubType.Key_Shared:
            policy = consumer.spec.key_shared or KeySharedSpec()
            if self.consumers:
                check_key_shared(self._policy, policy)
            else:
                self._policy = policy
                self._selector = new_selector(policy, self.limits.ring_points)
            self._selector.add(consumer)
        self.type = sub_type
        self.consumers.append(consumer)
        if sub_type is SubType.Failover:
            self._news.joined(consumer)
        self._changed()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detaches a consumer. Idempotent."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self._news.left(consumer)
            self._gone.add(consumer)
            if self.type is SubType.Key_Shared:
                self._selector.remove(consumer)
            self._changed()

    def _changed(self) -> None:
        by_level: dict[int, list[Consumer]] = {}
        for consumer in self.consumers:
            by_level.setdefault(consumer.spec.priority_level, []).append(consumer)
        self._levels = [by_level[level] for level in sorted(by_level)]
        before = self.active
        single = self.type in (SubType.Exclusive, SubType.Failover)
        self.active = (
            choose_active(self.topic, self.consumers) if single and self.consumers else None
        )
        if self.type is SubType.Failover and self.active is not before:
            self._news.changed(self.consumers)

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Adds permits of a consumer."""
        self._news.hears(consumer)
        consumer.permits += permits
        consumer.last_flow_ms = self.clock.now_ms()
        consumer.first_flow_ms = consumer.first_flow_ms or consumer.last_flow_ms

    def ack_one(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Does nothing: nothing is stored."""

    def ack(
        self,
        consumer: Consumer,  # noqa: ARG002
        positions: Sequence[AckPosition],  # noqa: ARG002
        cumulative: bool = False,  # noqa: ARG002
        on_done: OnDone | None = None,
    ) -> None:
        """Reports success at once: nothing is stored."""
        if on_done is not None:
            on_done(None)

    def ack_in_transaction(
        self,
        consumer: Consumer,  # noqa: ARG002 - no state to change
        txn: TxnId,  # noqa: ARG002
        positions: Sequence[AckPosition],  # noqa: ARG002
        cumulative: bool,  # noqa: ARG002
        on_done: OnDone,
    ) -> None:
        """Refuses: an ack that nothing keeps cannot wait for a commit."""
        on_done(NotAllowed("Transactions need a persistent topic"))

    def redeliver(
        self,
        consumer: Consumer,
        positions: list[tuple[int, int]] | None = None,  # noqa: ARG002
        epoch: int | None = None,
    ) -> None:
        """Redelivers nothing, since nothing is stored; later deliveries carry the epoch."""
        if epoch is not None:
            consumer.epoch = epoch

    def on_writable(self, consumer: Consumer) -> None:
        """Does nothing: entries that did not fit were dropped."""

    def publish(self, entries: Sequence[bytes]) -> None:
        """Hands entries to the consumers that can take them now; drops the rest."""
        out: dict[Consumer, list[Delivery]] = {}
        for data in entries:
            entry = Entry(LEDGER_ID, ENTRY_ID, data)
            ack_set = None
            if self._filter is not None:
                total_count, bits = judgement = judge(data, self._filter)
                self._filter_counts.add(judgement)
                if not bits:
                    continue
                if bits != (1 << total_count) - 1:
                    ack_set = bits
            if self.type is SubType.Key_Shared:
                count, key = count_and_key(entry)
                consumer = self._selector.select(self._selector.hash_of(key))
            else:
                count = message_count(entry)
                consumer = self._next()
            if consumer is None or not consumer.available:
                self.dropped += count
                continue
            consumer.permits -= count if ack_set is None else ack_set.bit_count()
            out.setdefault(consumer, []).append(Delivery(entry, count, 0, ack_set))
        now_ms = self.clock.now_ms()
        for consumer, deliveries in out.items():
            consumer.messages_out += sum([delivery.message_count for delivery in deliveries])
            consumer.bytes_out += sum([len(delivery.entry.data) for delivery in deliveries])
            consumer.last_consumed_ms = now_ms
            consumer.first_sent_ms = consumer.first_sent_ms or now_ms
            consumer.sink.deliver(consumer.spec.consumer_id, deliveries, consumer.epoch)

    def _next(self) -> Consumer | None:
        if self.type is not SubType.Shared:
            return self.active
        for level in self._levels:
            for index, consumer in enumerate(level):
                if consumer.available:
                    level.append(level.pop(index))
                    return consumer
        return None

    async def seek(
        self,
        position: Position,  # noqa: ARG002
        ack_set: int | None = None,  # noqa: ARG002
    ) -> None:
        """Raises NotAllowed: the subscription keeps no position."""
        raise NotAllowed("Seek is not supported on non-persistent topics")

    async def seek_to_time(self, publish_time_ms: int) -> None:  # noqa: ARG002
        """Raises NotAllowed: the subscription keeps no position."""
        raise NotAllowed("Seek is not supported on non-persistent topics")

    async def clear_backlog(self) -> None:
        """Does nothing: the subscription keeps no position."""

    def discard(self) -> None:
        """Does nothing: a consumer that is just attaching may still use the subscription."""

    def end(self, destination: BrokerRecord | None = None) -> None:
        """See `Subscription.end`."""
        self.closed = True
        self._disconnect(destination)

    def _disconnect(self, destination: BrokerRecord | None = None) -> None:
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.sink.close_consumer(consumer.spec.consumer_id, destination)

    def update_rates(self) -> None:
        """See `Subscription.update_rates`."""
        now_s = self.clock.monotonic()
        for consumer in self.consumers:
            consumer.rates.update(consumer, now_s)
        dropped, since_s = self._rated
        if now_s > since_s:
            self.drop_rate = (self.dropped - dropped) / (now_s - since_s)
            self._rated = (self.dropped, now_s)

    def _predicate(self) -> Predicate | None:
        """Returns the filter by the policy and the properties, None without any.

        Raises FilterInvalid if they cannot be used together.
        """
        spec = self.limits.entry_filters
        return None if spec is None else spec.predicate(self.properties)

    def stats(self) -> SubscriptionStats:
        """The subscription's part of `topics stats`."""
        stats = SubscriptionStats(
            type=self.type.name if self.type is not None else "None",
            is_durable=False,
            durable=False,
            msg_drop_rate=self.drop_rate,
            subscription_properties=dict(self.properties),
        )
        self._filter_counts.fill_stats(stats)
        if self.active is not None:
            stats.active_consumer_name = self.active.name
        consumers = [consumer_stats(consumer) for consumer in self.consumers]
        if self.type is SubType.Key_Shared:
            stats.key_shared_mode = self._policy.mode.name
            stats.allow_out_of_order_delivery = self._policy.allow_out_of_order
            owned = self._selector.ranges()
            for consumer, part in zip(self.consumers, consumers, strict=True):
                part.key_hash_range_arrays = owned.get(consumer, [])
        total(stats, consumers, self._gone)
        return stats
