"""A durable or non-durable subscription of a persistent topic: one cursor, one dispatcher.

It attaches consumers, turns their commands into cursor and dispatcher calls, and moves the cursor
for seeks and for the administrator. Its type is that of the attached consumers, and changes only
while there are none. Refusals are raised as `MagnetarError`, with Pulsar's texts.

`ack` with `on_done` is answered once the ack is durable, any other ack is not answered; `ack_one`
is the fast path of a single ack.
Source: Pulsar's `PersistentSubscription`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from magnetar.broker.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.dispatch.by_type import DISPATCHERS
from magnetar.broker.dispatch.filtering import EntryFilters, FilterCounts
from magnetar.broker.lifecycle.expiry import older_end
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.rates.dispatch_rate import DispatchThrottle
from magnetar.broker.subscription import cursor_moves
from magnetar.broker.subscription.ack_admission import check_stored
from magnetar.broker.subscription.admission import check_type
from magnetar.broker.subscription.api import AckPosition, OnDone
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.detachment import closed_afterwards
from magnetar.broker.subscription.history import History
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.subscription.stats import GoneConsumers, SubscriptionStats, total
from magnetar.broker.subscription.transactions import SubscriptionTransactions
from magnetar.broker.topic.counters import RATE_PERIOD_S
from magnetar.broker.transactions.api import TransactionRecords
from magnetar.core.errors import (
    ConsumerNotFound,
    MagnetarError,
    NotAllowed,
    PreconditionFailed,
    ServiceNotReady,
)
from magnetar.core.garbage import garbage_policy
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position_set import PositionSet
from magnetar.policies.filters import FilterInvalid
from magnetar.transactions.model import Outcome, TxnId

log = get_logger("magnetar.subscription")


class PersistentSubscription:
    """A `Subscription` of a persistent topic."""

    __slots__ = (
        "__weakref__",
        "_context",
        "_expired_before",
        "_filter_counts",
        "_gone",
        "_mark_delete_moved_ms",
        "_mark_delete_seen",
        "_moving",
        "_records",
        "_transactions",
        "clock",
        "closed",
        "cursor",
        "delayed",
        "dispatcher",
        "expired_rate",
        "expired_total",
        "history",
        "last_expire_ms",
        "last_expired",
        "ledger",
        "limits",
        "name",
        "suspended",
        "throttle",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        name: str,
        ledger: ManagedLedger,
        cursor: Cursor,
        *,
        limits: SubscriptionLimits,
        clock: SteadyClock,
        tasks: TaskSet,
        records: TransactionRecords | None = None,
    ) -> None:
        self.topic = topic
        self.name = name
        self.ledger = ledger
        self.cursor = cursor
        self.limits = limits
        self.clock = clock
        self.dispatcher: Dispatcher | None = None
        self.throttle: DispatchThrottle | None = None
        self.delayed: PositionSet | None = None
        """The entries of the topic that are delayed; None if there never was one."""
        self.closed = False
        self.suspended = False
        self.expired_total = 0
        self.last_expired = 0
        self.last_expire_ms = 0
        self.expired_rate = 0.0
        self._expired_before = 0
        self._mark_delete_seen = cursor.mark_delete
        self._mark_delete_moved_ms = 0
        self._filter_counts: FilterCounts | None = None
        self._gone = GoneConsumers()
        self.history: History | None = None
        """Created when the subscription first delivers or passes messages."""
        self._moving = asyncio.Lock()
        self._context = DispatchContext(topic, ledger, cursor, limits, clock, tasks)
        self._records = records
        self._transactions: SubscriptionTransactions | None = None
        if cursor.pending is not None:
            self.transactions.recover()

    @property
    def type(self) -> SubType | None:
        """The type of the attached consumers, or of the last ones; None before the first."""
        return self.dispatcher.type if self.dispatcher else None

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The attached consumers."""
        return self.dispatcher.consumers if self.dispatcher else ()

    @property
    def durable(self) -> bool:
        """Whether the subscription outlives its consumers."""
        return self.cursor.durable

    @property
    def mark_delete(self) -> Position:
        """The cursor's mark-delete position."""
        return self.cursor.mark_delete

    @property
    def backlog(self) -> int:
        """Unacknowledged entries."""
        return self.cursor.backlog

    @property
    def backlog_bytes(self) -> int:
        """The estimated size of the backlog."""
        return self.cursor.backlog_bytes_estimate

    @property
    def unused(self) -> bool:
        """Whether no consumer was attached, and nothing expired, since the topic was opened."""
        return self.dispatcher is None and not self.last_expire_ms

    @property
    def properties(self) -> Mapping[str, str]:
        """The cursor's properties."""
        return self.cursor.properties

    def set_limits(self, limits: SubscriptionLimits) -> None:
        """See `Subscription.set_limits`."""
        filtered = limits.entry_filters != self.limits.entry_filters
        self.limits = limits
        self._context = replace(self._context, limits=limits)
        if filtered:
            self._filters_changed()
        if self.dispatcher is not None:
            self.dispatcher.set_limits(limits)

    def set_delayed(self, delayed: PositionSet) -> None:
        """Sets the entries of the topic that are delayed."""
        self.delayed = delayed
        if self.dispatcher is not None:
            self.dispatcher.set_delayed(delayed)

    def released(self, positions: PositionSet) -> None:
        """Delivers entries that are delayed no more, if they would have been delivered before."""
        if self.dispatcher is not None:
            self.dispatcher.released(positions)

    @property
    def delayed_count(self) -> int:
        """The unacked entries that are delayed; 0 for types that deliver in order."""
        if not self.delayed or (self.type is not None and not self.type.individual_only):
            return 0
        return self.delayed.unacked_in(self.cursor)

    def delays(self, position: Position) -> bool:
        """Whether the subscription has not delivered an entry because it is delayed."""
        if not self.delayed or (self.type is not None and not self.type.individual_only):
            return False
        return position in self.delayed and not self.cursor.is_done(*position)

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replaces the properties; raises PreconditionFailed if filters cannot use them."""
        spec = self.limits.entry_filters
        try:
            if spec is not None:
                spec.predicate(properties)
        except FilterInvalid as error:
            raise PreconditionFailed(str(error), http_status=400) from error
        await self.cursor.set_properties(properties)
        if spec is not None:
            self._filters_changed()

    def _filters(self) -> EntryFilters | None:
        """Returns the filters of new entries, None without any; raises FilterInvalid."""
        spec = self.limits.entry_filters
        predicate = None if spec is None else spec.predicate(self.cursor.properties)
        if predicate is None:
            return None
        if self._filter_counts is None:
            self._filter_counts = FilterCounts()
        return EntryFilters(predicate, self.cursor, self._filter_counts)

    def _filters_changed(self) -> None:
        """Applies changed filters. If they cannot be used, consumers are disconnected.

        They attach again and get the reason. Otherwise they would get messages that the filters
        were meant to reject.
        """
        if self.dispatcher is None:
            return
        try:
            self.dispatcher.set_filters(self._filters())
        except FilterInvalid as error:
            log.warning("filters cannot be used, consumers are disconnected", topic=self.topic,
                        subscription=self.name, error=str(error))  # fmt: skip
            self._disconnect()

    def rates_changed(self) -> None:
        """Applies a changed `throttle` to the dispatcher.

        A limiter that changes or ends wakes a dispatcher that it held back.
        """
        if self.dispatcher is not None:
            throttle = self.throttle
            self.dispatcher.throttle = throttle if throttle and throttle.needed else None

    async def add_consumer(self, consumer: Consumer) -> None:
        """See `Subscription.add_consumer`. Waits for a seek that is under way."""
        async with self._moving:
            if self.closed:
                raise ServiceNotReady("Subscription is fenced")
            sub_type = consumer.spec.sub_type
            dispatcher = self.dispatcher
            if dispatcher is not None and dispatcher.consumers:
                check_type(dispatcher.type, sub_type)
                if sub_type is SubType.Exclusive:
                    await self._evict_dead(dispatcher)
                    if self.closed:
                        raise ServiceNotReady("Subscription is fenced")
            elif dispatcher is None or dispatcher.type is not sub_type:
                dispatcher = DISPATCHERS[sub_type](self._context)
                if self.dispatcher is not None:
                    self.dispatcher.close()
                dispatcher.suspended = self.suspended
                if self.delayed is not None:
                    dispatcher.set_delayed(self.delayed)
                self.dispatcher = dispatcher
                self.rates_changed()
            try:
                dispatcher.set_filters(self._filters())
            except FilterInvalid as error:
                raise NotAllowed(f"Subscription {self.name}: {error}") from error
            consumer.attached = True
            try:
                dispatcher.add_consumer(consumer)
            except MagnetarError:
                consumer.attached = False
                raise
            self.cursor.last_active_ms = self.clock.now_ms()

    async def _evict_dead(self, dispatcher: Dispatcher) -> None:
        """Detaches consumers with a dead connection, to make room for a new exclusive one."""
        for consumer in list(dispatcher.consumers):
            if not await consumer.sink.is_alive():
                self.remove_consumer(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """See `Subscription.remove_consumer`."""
        if self.dispatcher is not None and consumer.attached:
            consumer.attached = False
            self._gone.add(consumer)
            self.dispatcher.remove_consumer(consumer)
            self.cursor.last_active_ms = self.clock.now_ms()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """See `Subscription.flow`."""
        if self.dispatcher is not None and consumer.attached:
            self.dispatcher.flow(consumer, permits)

    def on_writable(self, consumer: Consumer) -> None:  # noqa: ARG002 - one dispatcher serves all
        """See `Subscription.on_writable`."""
        self.wake()

    def wake(self) -> None:
        """Dispatches the entries that consumers can take now."""
        if self.dispatcher is not None:
            self.dispatcher.dispatch()

    def ack_one(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """See `Subscription.ack_one`."""
        if not consumer.attached:
            return  # sent before the client learned that a seek closed its consumer
        self.cursor.ack(ledger_id, entry_id)
        consumer.last_acked_ms = self.clock.now_ms()
        dispatcher = self.dispatcher
        if dispatcher is not None:
            dispatcher.settle(consumer, ledger_id, entry_id)
            dispatcher.woken()
            if self.ledger.terminated_at is not None:
                dispatcher.announce_end()

    def ack(
        self,
        consumer: Consumer,
        positions: Sequence[AckPosition],
        cumulative: bool = False,
        on_done: OnDone | None = None,
    ) -> None:
        """See `Subscription.ack`."""
        consumer.last_acked_ms = self.clock.now_ms()
        error: MagnetarError | None = None
        try:
            if not consumer.attached:
                raise ConsumerNotFound("Consumer not found")
            check_stored(positions, self.ledger.last_confirmed, self.name)
            if cumulative:
                self._ack_cumulative(positions)
            else:
                self._ack_individually(consumer, positions)
        except MagnetarError as refused:
            error = refused
        if (dispatcher := self.dispatcher) is not None:
            dispatcher.woken()
            if self.ledger.terminated_at is not None:
                dispatcher.announce_end()
        if error is not None and on_done is not None:
            on_done(error)
        elif on_done is not None:
            self.cursor.when_durable(on_done)

    @property
    def transactions(self) -> SubscriptionTransactions:
        """The acks of transactions. A subscription without them keeps no state for them."""
        if self._transactions is None:
            self._transactions = SubscriptionTransactions(
                self, self._records, self.clock, self._context.tasks
            )
        return self._transactions

    @property
    def transactional(self) -> bool:
        """Whether the subscription may have had a transaction since it was opened."""
        return self._transactions is not None

    def ack_in_transaction(
        self,
        consumer: Consumer,
        txn: TxnId,
        positions: Sequence[AckPosition],
        cumulative: bool,
        on_done: OnDone,
    ) -> None:
        """See `Subscription.ack_in_transaction`."""
        consumer.last_acked_ms = self.clock.now_ms()
        self.transactions.ack(consumer, txn, positions, cumulative, on_done)

    async def end_transaction(self, txn: TxnId, outcome: Outcome) -> None:
        """See `Participant.end_transaction`."""
        await self.transactions.end_transaction(txn, outcome)

    def _ack_individually(self, consumer: Consumer, positions: Sequence[AckPosition]) -> None:
        dispatcher, cursor = self.dispatcher, self.cursor
        for ledger_id, entry_id, ack_set, batch_size in positions:
            if ack_set:
                whole = cursor.ack_batch(ledger_id, entry_id, ack_set, batch_size)
            else:
                cursor.ack(ledger_id, entry_id)
                whole = True
            if dispatcher is None:
                continue
            if whole:
                dispatcher.settle(consumer, ledger_id, entry_id)
            else:
                left = cursor.remaining_batch(ledger_id, entry_id)
                if left == 0:  # open transactions have acked the rest
                    dispatcher.withhold(consumer, ledger_id, entry_id)
                elif left is not None:  # None: the ack named no message
                    dispatcher.settle_part(consumer, ledger_id, entry_id, left.bit_count())

    def check_cumulative(self, positions: Sequence[AckPosition]) -> None:
        """Raises NotAllowed unless these positions may be acked cumulatively."""
        if self.type is not None and self.type.individual_only:
            raise NotAllowed("Cumulative acknowledgement is not allowed on shared subscriptions")
        if len(positions) != 1:
            raise NotAllowed("Cumulative acknowledgement takes one message id")

    def _ack_cumulative(self, positions: Sequence[AckPosition]) -> None:
        self.check_cumulative(positions)
        ledger_id, entry_id, ack_set, batch_size = positions[0]
        position = Position(ledger_id, entry_id)
        if ack_set:
            self.cursor.ack_batch_cumulative(position, ack_set, batch_size)
        else:
            self.cursor.ack_cumulative(position)

    def redeliver(
        self,
        consumer: Consumer,
        positions: list[tuple[int, int]] | None = None,
        epoch: int | None = None,
    ) -> None:
        """See `Subscription.redeliver`. Only shared types redeliver single positions."""
        if self.dispatcher is not None and consumer.attached:
            self.dispatcher.redeliver(consumer, positions, epoch)

    async def seek(
        self, position: Position, ack_set: int | None = None, batch_size: int = 0,
        compacted: bool = False,
    ) -> None:  # fmt: skip
        """See `Subscription.seek`. `ack_set` and `batch_size` seek into a batch.

        `compacted`: the position may be before the first kept entry, since an artifact has those.
        A seek runs to its end even if the caller is cancelled; consumers attach before or after it.
        """
        seeking = self._seek(position, ack_set, batch_size, compacted)
        await self._context.tasks.finish(seeking, "seek")

    async def _seek(self, at: Position, ack_set: int | None, size: int, compacted: bool) -> None:
        async with self._moving:
            compacted = compacted or any(consumer.compacted for consumer in self.consumers)
            with closed_afterwards(self.consumers, self.remove_consumer):
                before = self.cursor.mark_delete
                await self.cursor.reset(at, before_kept=compacted)
                self._passed("seek", before)
                if ack_set:
                    self.cursor.ack_batch(*at, ack_set, size)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """See `Subscription.seek_to_time`."""
        await self.seek(await cursor_moves.position_of_time(self.ledger, publish_time_ms))

    async def skip(self, entries: int) -> None:
        """Acknowledges the oldest `entries` unacknowledged entries."""
        if target := await cursor_moves.nth_unacked(self.ledger, self.cursor, entries):
            self._ack_up_to(target, "skipped")

    async def clear_backlog(self) -> None:
        """Acknowledges all entries."""
        self._ack_up_to(self.ledger.last_confirmed, "skipped")

    async def expire(self, age_s: float) -> bool:
        """Acknowledges entries published more than `age_s` ago; returns whether there were any."""
        before_ms = self.clock.judged_ms() - int(age_s * 1000)
        return self.expire_up_to(await older_end(self.ledger, before_ms, self.cursor.mark_delete))

    def expire_up_to(self, target: Position | None) -> bool:
        """Acknowledges entries up to `target`, if given; returns whether there were any."""
        self.last_expire_ms, self.last_expired = self.clock.now_ms(), 0
        if target is None or target <= self.cursor.mark_delete:
            return False
        self.last_expired = self._ack_up_to(target, "expired")
        self.expired_total += self.last_expired
        return True

    def evict_up_to(self, target: Position) -> int:
        """Acknowledges entries up to `target` for a backlog quota; returns how many."""
        return self._ack_up_to(target, "evicted")

    async def peek(self, nth: int) -> Entry | None:
        """Returns the nth unacknowledged entry, counted from 1; None if there are fewer."""
        position = await cursor_moves.nth_unacked(self.ledger, self.cursor, nth, exact=True)
        return None if position is None else await self.ledger.read_entry(position)

    def _passed(self, cause: str, before: Position) -> None:
        """Records that mark-delete has moved from `before` without a consumer's acks."""
        if self.cursor.mark_delete > before:
            history = self.history = self.history or History()
            history.passed(cause, before, self.cursor.mark_delete, self.clock.now_ms())

    def _ack_up_to(self, position: Position, cause: str) -> int:
        """Acknowledges entries up to `position`; returns how many.

        Entries behind an open transaction stay: no consumer could have read them yet.
        """
        if self.ledger.horizon is not None:
            position = min(position, self.ledger.last_visible)
        before, mark = self.cursor.backlog, self.cursor.mark_delete
        if position > mark:
            self.cursor.ack_cumulative(position)
            self._passed(cause, mark)
            if self.dispatcher is not None:
                self.dispatcher.settle_up_to(position)
        return before - self.cursor.backlog

    def suspend(self) -> None:
        """Pauses dispatch without notifying consumers; acks still count."""
        self.suspended = True
        if self.dispatcher is not None:
            self.dispatcher.suspended = True

    def resume(self) -> None:
        """Ends `suspend`."""
        self.suspended = False
        if self.dispatcher is not None:
            self.dispatcher.suspended = False
            self.dispatcher.dispatch()

    def end(self, destination: BrokerRecord | None = None) -> None:
        """See `Subscription.end`."""
        self.closed = True
        self._disconnect(destination)
        if self.dispatcher is not None:
            self.dispatcher.close()
        if self.throttle is not None:
            self.throttle.close()
        if self._transactions is not None:
            self._transactions.close()
        garbage_policy.closed(self)

    def discard(self) -> None:
        """Frees a reader's cursor at once: it may reconnect under this name and get another."""
        if not self.cursor.durable:
            self.end()
            self.ledger.forget_cursor(self.cursor)

    def topic_terminated(self) -> None:
        """Notifies drained consumers that the topic takes no more messages."""
        if self.dispatcher is not None:
            self.dispatcher.dispatch()

    def _disconnect(self, destination: BrokerRecord | None = None) -> None:
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.sink.close_consumer(consumer.spec.consumer_id, destination)

    def update_rates(self) -> None:
        """See `Subscription.update_rates`. (Pulsar does it once a minute.)"""
        self.expired_rate = (self.expired_total - self._expired_before) / RATE_PERIOD_S
        self._expired_before = self.expired_total
        now_s, delivering = self.clock.monotonic(), False
        for consumer in self.consumers:
            consumer.rates.update(consumer, now_s)
            delivering = delivering or consumer.rates.out > 0
        if delivering:
            self.history = self.history or History()
            self.history.noted(self.clock.now_ms(), self.cursor.read_position)
        self._note_mark_delete()

    def stats(self) -> SubscriptionStats:
        """The subscription's part of `topics stats`."""
        self._note_mark_delete()
        cursor, dispatcher, delayed = self.cursor, self.dispatcher, self.delayed_count
        stats = SubscriptionStats(
            msg_backlog=cursor.backlog,
            backlog_size=cursor.backlog_bytes_estimate,
            msg_backlog_no_delayed=cursor.backlog - delayed,
            msg_delayed=delayed,
            type=self.type.name if self.type is not None else "None",
            msg_rate_expired=self.expired_rate,
            msg_expired=self.last_expired,
            total_msg_expired=self.expired_total,
            last_expire_timestamp=self.last_expire_ms,
            last_mark_delete_advanced_timestamp=self._mark_delete_moved_ms,
            is_durable=cursor.durable,
            durable=cursor.durable,
            non_contiguous_deleted_messages_ranges=cursor.ranges_count,
            subscription_properties=dict(cursor.properties),
        )
        if self.throttle is not None:
            self.throttle.fill_stats(stats)
        if self._filter_counts is not None:
            self._filter_counts.fill_stats(stats)
        if dispatcher is not None:
            dispatcher.fill_stats(stats)
            consumers = [dispatcher.consumer_stats(consumer) for consumer in dispatcher.consumers]
            total(stats, consumers, self._gone)
        return stats

    def state(self) -> dict[str, object]:
        """Returns the dispatcher's state, for diagnosis."""
        return self.dispatcher.state() if self.dispatcher is not None else {}

    def _note_mark_delete(self) -> None:
        if self.cursor.mark_delete != self._mark_delete_seen:
            self._mark_delete_seen = self.cursor.mark_delete
            self._mark_delete_moved_ms = self.clock.now_ms()
