"""A durable or non-durable subscription of a persistent topic: one cursor, one dispatcher.

It lets consumers in, turns their commands into cursor and dispatcher calls, and moves the cursor
for seeks and for the administrator. The type is that of the consumers attached; it may change only
while none is. What a consumer may be told is raised as `MagnetarError`, with Pulsar's texts.

Acknowledgements are answered when the cursor is durable (`ack` with `on_done`), else not at all;
`ack_one` is the path of the plain single ack.
Source: Pulsar's `PersistentSubscription`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from magnetar.broker.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single import ExclusiveDispatcher, FailoverDispatcher
from magnetar.broker.lifecycle.expiry import older_end
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.rates.dispatching import DispatchThrottle
from magnetar.broker.subscription import cursor_moves
from magnetar.broker.subscription.admission import check_type
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.subscription.stats import GoneConsumers, SubscriptionStats, total
from magnetar.broker.topic.counters import RATE_PERIOD_S
from magnetar.core.collecting import collecting
from magnetar.core.errors import (
    ConsumerNotFound,
    MagnetarError,
    NotAllowed,
    ServiceNotReady,
)
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger

log = get_logger("magnetar.subscription")

AckPosition = tuple[int, int, int | None, int]
"""(ledger id, entry id, ack set or None, batch size)."""
OnDone = Callable[[MagnetarError | None], None]

_DISPATCHERS: Final[dict[SubType, type[Dispatcher]]] = {
    SubType.Exclusive: ExclusiveDispatcher,
    SubType.Failover: FailoverDispatcher,
    SubType.Shared: SharedDispatcher,
    SubType.Key_Shared: KeySharedDispatcher,
}


class PersistentSubscription:
    """See the module."""

    __slots__ = (
        "__weakref__",
        "_context",
        "_expired_before",
        "_gone",
        "_mark_delete_moved_ms",
        "_mark_delete_seen",
        "_moving",
        "clock",
        "closed",
        "cursor",
        "dispatcher",
        "expired_rate",
        "expired_total",
        "last_expire_ms",
        "last_expired",
        "ledger",
        "limits",
        "name",
        "resting",
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
    ) -> None:
        self.topic = topic
        self.name = name
        self.ledger = ledger
        self.cursor = cursor
        self.limits = limits
        self.clock = clock
        self.dispatcher: Dispatcher | None = None
        self.throttle: DispatchThrottle | None = None
        self.closed = False
        self.resting = False
        self.expired_total = 0
        self.last_expired = 0
        self.last_expire_ms = 0
        self.expired_rate = 0.0
        self._expired_before = 0
        self._mark_delete_seen = cursor.mark_delete
        self._mark_delete_moved_ms = 0
        self._gone = GoneConsumers()
        self._moving = asyncio.Lock()
        self._context = DispatchContext(topic, ledger, cursor, limits, clock, tasks)

    @property
    def type(self) -> SubType | None:
        """The type of the consumers attached, or of the last ones; None before the first."""
        return self.dispatcher.type if self.dispatcher else None

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self.dispatcher.consumers if self.dispatcher else ()

    @property
    def is_connected(self) -> bool:
        return bool(self.consumers)

    # -- what policies say

    def set_limits(self, limits: SubscriptionLimits) -> None:
        """Other limits, at once; consumers that are attached stay."""
        self.limits = limits
        self._context = replace(self._context, limits=limits)
        if self.dispatcher is not None:
            self.dispatcher.set_limits(limits)

    def rates_changed(self) -> None:
        """`throttle` is another, or asks other limiters: they hold from now on."""
        if self.dispatcher is not None:
            throttle = self.throttle
            self.dispatcher.throttle = throttle if throttle and throttle.needed else None
            self.dispatcher.dispatch()

    # -- consumers

    async def add_consumer(self, consumer: Consumer) -> None:
        """Attaches a consumer, after a seek that is under way; raises what to tell the client."""
        async with self._moving:
            if self.closed:
                raise ServiceNotReady("Subscription is fenced")
            wanted = consumer.spec.sub_type
            dispatcher = self.dispatcher
            if dispatcher is not None and dispatcher.consumers:
                check_type(dispatcher.type, wanted)
                if wanted is SubType.Exclusive:
                    await self._evict_dead(dispatcher)
                    if self.closed:
                        raise ServiceNotReady("Subscription is fenced")
            elif dispatcher is None or dispatcher.type is not wanted:
                dispatcher = _DISPATCHERS[wanted](self._context)
                if self.dispatcher is not None:
                    self.dispatcher.close()
                dispatcher.resting = self.resting
                self.dispatcher = dispatcher
                self.rates_changed()
            consumer.attached = True
            try:
                dispatcher.add_consumer(consumer)
            except MagnetarError:
                consumer.attached = False
                raise
            self.cursor.last_active_ms = self.clock.now_ms()

    async def _evict_dead(self, dispatcher: Dispatcher) -> None:
        """Lets a new exclusive consumer in where the old one's connection turns out to be dead."""
        for consumer in list(dispatcher.consumers):
            if not await consumer.sink.is_alive():
                self.remove_consumer(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detaches a consumer; what it held goes to others, or back. Idempotent."""
        if self.dispatcher is not None and consumer.attached:
            consumer.attached = False
            self._gone.add(consumer)
            self.dispatcher.remove_consumer(consumer)
            self.cursor.last_active_ms = self.clock.now_ms()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """FLOW: the consumer has room for so many more messages."""
        if self.dispatcher is not None and consumer.attached:
            self.dispatcher.flow(consumer, permits)

    def on_writable(self, consumer: Consumer) -> None:  # noqa: ARG002 - one dispatcher serves all
        """The consumer's connection drained."""
        self.wake()

    def wake(self) -> None:
        """Something may be handed over."""
        if self.dispatcher is not None:
            self.dispatcher.dispatch()

    # -- acknowledgement and redelivery

    def ack_one(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Acknowledges one whole entry; no answer is wanted."""
        if not consumer.attached:
            return  # sent before the client knew that a seek has sent it away
        self.cursor.ack(ledger_id, entry_id)
        consumer.last_acked_ms = self.clock.now_ms()
        dispatcher = self.dispatcher
        if dispatcher is not None:
            dispatcher.settle(consumer, ledger_id, entry_id)
            dispatcher.woken()
            if self.ledger.terminated_at is not None:
                dispatcher.tell_end()

    def ack(
        self,
        consumer: Consumer,
        positions: Sequence[AckPosition],
        cumulative: bool = False,
        on_done: OnDone | None = None,
    ) -> None:
        """Acknowledges; `on_done` hears None once that is durable, or why it was refused."""
        consumer.last_acked_ms = self.clock.now_ms()
        error: MagnetarError | None = None
        try:
            if not consumer.attached:
                raise ConsumerNotFound("Consumer not found")
            if cumulative:
                self._ack_cumulative(positions)
            else:
                self._ack_individually(consumer, positions)
        except MagnetarError as refused:
            error = refused
        dispatcher = self.dispatcher
        if dispatcher is not None:
            dispatcher.woken()
            if self.ledger.terminated_at is not None:
                dispatcher.tell_end()
        if on_done is not None:
            if error is not None:
                on_done(error)
            else:
                self.cursor.when_durable(on_done)

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
                if left is not None:  # None: the ack named no message
                    dispatcher.settle_part(consumer, ledger_id, entry_id, left.bit_count())

    def _ack_cumulative(self, positions: Sequence[AckPosition]) -> None:
        if self.type is not None and self.type.individual_only:
            raise NotAllowed("Cumulative acknowledgement is not allowed on shared subscriptions")
        if len(positions) != 1:
            raise NotAllowed("Cumulative acknowledgement takes one message id")
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
        """Sends again: on shared types the positions named, else all that is unacknowledged."""
        if self.dispatcher is not None and consumer.attached:
            self.dispatcher.redeliver(consumer, positions, epoch)

    # -- moving the cursor

    async def seek(
        self, position: Position, ack_set: int | None = None, batch_size: int = 0
    ) -> None:
        """The next message delivered is that at `position`; all consumers must reattach.

        `ack_set` (bits of the batch still to be delivered) seeks into a batch. A seek is one step,
        also if the caller is cancelled: consumers attach before it or after it.
        """
        await self._context.tasks.finish(self._seek(position, ack_set, batch_size), "seek")

    async def _seek(self, position: Position, ack_set: int | None, batch_size: int) -> None:
        async with self._moving:
            compacted = any(each.compacted for each in self.consumers)
            self._disconnect()
            await self.cursor.reset(position, before_kept=compacted)
            if ack_set:
                self.cursor.ack_batch(position.ledger_id, position.entry_id, ack_set, batch_size)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """The next message delivered is the first that was published at or after that time."""
        await self.seek(await cursor_moves.position_of_time(self.ledger, publish_time_ms))

    async def skip(self, entries: int) -> None:
        """Acknowledges the oldest `entries` unacknowledged entries."""
        target = await cursor_moves.nth_unacked(self.ledger, self.cursor, entries)
        if target is not None:
            self._ack_up_to(target)

    async def clear_backlog(self) -> None:
        """Acknowledges everything there is."""
        self._ack_up_to(self.ledger.last_confirmed)

    async def expire(self, age_s: float) -> bool:
        """Acknowledges what was published more than `age_s` ago; whether there was anything."""
        before_ms = self.clock.judged_ms() - int(age_s * 1000)
        return self.expire_up_to(await older_end(self.ledger, before_ms, self.cursor.mark_delete))

    def expire_up_to(self, target: Position | None) -> bool:
        """Acknowledges everything up to `target`, if given; whether there was anything."""
        self.last_expire_ms, self.last_expired = self.clock.now_ms(), 0
        if target is None or target <= self.cursor.mark_delete:
            return False
        self.last_expired = self._ack_up_to(target)
        self.expired_total += self.last_expired
        return True

    def evict_up_to(self, target: Position) -> int:
        """Acknowledges everything up to `target` for a backlog quota; how many entries."""
        return self._ack_up_to(target)

    async def peek(self, nth: int) -> Entry | None:
        """The nth unacknowledged entry, counted from 1."""
        position = await cursor_moves.nth_unacked(self.ledger, self.cursor, nth, exact=True)
        return None if position is None else await self.ledger.read_entry(position)

    def _ack_up_to(self, position: Position) -> int:
        """How many entries that acknowledged."""
        before = self.cursor.backlog
        if position > self.cursor.mark_delete:
            self.cursor.ack_cumulative(position)
            if self.dispatcher is not None:
                self.dispatcher.settle_up_to(position)
        return before - self.cursor.backlog

    # -- the end

    def rest(self) -> None:
        """Hands over nothing for a while; acknowledgements are taken. Consumers are not told."""
        self.resting = True
        if self.dispatcher is not None:
            self.dispatcher.resting = True

    def resume(self) -> None:
        """Goes on after `rest`."""
        self.resting = False
        if self.dispatcher is not None:
            self.dispatcher.resting = False
            self.dispatcher.dispatch()

    def end(self, destination: BrokerRecord | None = None) -> None:
        """Disconnects all consumers; they look the topic up again, or go to `destination`.

        Idempotent.
        """
        self.closed = True
        self._disconnect(destination)
        if self.dispatcher is not None:
            self.dispatcher.close()
        if self.throttle is not None:
            self.throttle.close()
        collecting.closed(self)

    def topic_terminated(self) -> None:
        """The topic takes no more messages: drained consumers are told."""
        if self.dispatcher is not None:
            self.dispatcher.dispatch()

    def _disconnect(self, destination: BrokerRecord | None = None) -> None:
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.sink.close_consumer(consumer.spec.consumer_id, destination)

    # -- what is told of it

    def update_rates(self) -> None:
        """Call once every RATE_PERIOD_S (Pulsar: once a minute)."""
        self.expired_rate = (self.expired_total - self._expired_before) / RATE_PERIOD_S
        self._expired_before = self.expired_total
        now_s = self.clock.monotonic()
        for consumer in self.consumers:
            consumer.rates.update(consumer, now_s)
        self._note_mark_delete()

    def stats(self) -> SubscriptionStats:
        """The subscription's part of `topics stats`."""
        self._note_mark_delete()
        cursor, dispatcher = self.cursor, self.dispatcher
        stats = SubscriptionStats(
            msg_backlog=cursor.backlog,
            backlog_size=cursor.backlog_bytes_estimate,
            msg_backlog_no_delayed=cursor.backlog,
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
        if dispatcher is not None:
            dispatcher.fill_stats(stats)
            consumers = [dispatcher.consumer_stats(each) for each in dispatcher.consumers]
            total(stats, consumers, self._gone)
        return stats

    def state(self) -> dict[str, object]:
        """The dispatcher's inside, for diagnosis."""
        return self.dispatcher.state() if self.dispatcher is not None else {}

    def _note_mark_delete(self) -> None:
        if self.cursor.mark_delete != self._mark_delete_seen:
            self._mark_delete_seen = self.cursor.mark_delete
            self._mark_delete_moved_ms = self.clock.now_ms()
