"""Exclusive and Failover: delivers all entries to one active consumer, in order.

The dispatcher keeps no state per message: the read position tells what was sent, and the cursor
what was acknowledged. A redelivery rewinds to behind the mark-delete position and skips entries
that were acknowledged individually. A client that counts epochs gets the new epoch with each
message after the rewind, and drops messages that were sent before it.

`active.choose_active` chooses the active consumer of a Failover subscription. When a consumer
joins, also the first, the hand-over waits for `failover_switch_delay_s`. Consumers that attach
together, after an unload for instance, thus settle who is active before entries are sent twice, and
acks under way arrive. When the active consumer leaves, the next one is active at once. Sources:
Pulsar's `AbstractDispatcherSingleActiveConsumer`, `PersistentDispatcherSingleActiveConsumer`.
"""

import asyncio
from collections.abc import Iterable, Sequence

from magnetar.broker.dispatch.active import choose_active
from magnetar.broker.dispatch.active_news import ActiveNews
from magnetar.broker.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.dispatch.facts import DispatchFacts
from magnetar.broker.dispatch.metadata import kept_messages, message_count, sticky_key_of
from magnetar.broker.dispatch.selector import RangeSelector
from magnetar.broker.subscription.admission import check_room
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.core.errors import ConsumerBusy
from magnetar.core.ids import Position
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.pending_acks import Txn, TxnAcks


class SingleActiveDispatcher(Dispatcher):
    """Delivers to `active`; the other consumers stand by."""

    active: Consumer | None = None
    _switch: asyncio.TimerHandle | None = None
    _bypassed: frozenset[Txn] = frozenset()
    """The transactions that had acks when the active consumer took over, less those it acks in."""

    def remove_consumer(self, consumer: Consumer) -> None:
        """See `Dispatcher.remove_consumer`."""
        self.consumers.remove(consumer)
        was_active = consumer is self.active
        if was_active:
            self.active = None
        if not self.consumers:
            self._cancel_switch()
            self.reader.close()
        else:
            self._pick(wait=not was_active)

    def _pick(self, *, wait: bool) -> None:
        """Chooses the active consumer and hands over to it."""
        chosen = self._choose()
        if chosen is self.active:
            return
        self.active = chosen
        self.reader.close()
        if self._switch is not None:
            return  # the scheduled hand-over is to the consumer that is active then
        if wait and self.limits.failover_switch_delay_s > 0:
            self._switch = asyncio.get_running_loop().call_later(
                self.limits.failover_switch_delay_s, self._hand_over
            )
        else:
            self._hand_over()

    def _choose(self) -> Consumer:
        return self.consumers[0]

    def _hand_over(self) -> None:
        self._switch = None
        if self.active is None:
            return
        self.reader.source = self.active.compacted or self.ledger
        self.reader.open(self.dispatch)
        pending = self.cursor.pending
        self._bypassed = frozenset() if pending is None else frozenset(pending.by_txn)
        self.rewind()
        self._tell_active()
        self.dispatch()

    def _tell_active(self) -> None:
        """Notifies the consumers which one is active; Exclusive consumers need no notice."""

    def _cancel_switch(self) -> None:
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None

    def _step(self, entries_max: int) -> int:
        consumer = self.active
        if consumer is None or self._switch is not None:
            return 0
        permits = consumer.permits
        if permits <= 0 or not consumer.sink.writable:
            return 0
        affordable = max(1, int(permits / consumer.average_messages))
        taken = self.reader.take(min(entries_max, affordable))
        if not taken:
            return 0
        entries = self._wanted(self._deliverable(taken))
        if not entries:
            return len(taken)
        deliveries = []
        left = permits
        for entry in entries:
            count = message_count(entry)
            if count == 1:
                deliveries.append(Delivery(entry, 1))
                left -= 1
            else:
                ack_set = self._ack_set_of(entry)
                deliveries.append(Delivery(entry, count, 0, ack_set))
                left -= count if ack_set is None else ack_set.bit_count()
            if left <= 0:
                break
        self._return(taken, entries, len(deliveries))
        consumer.permits = left
        self._count_out(consumer, deliveries, permits - left)
        return len(taken)

    def _ack_set_of(self, entry: Entry) -> int | None:
        """The bits of the messages of a batch that the consumer gets; None for all.

        A reader does not get messages that were compacted out, because not all clients drop them. A
        durable subscription gets them, as from Pulsar: without them, a client that acknowledges
        individually could never acknowledge the whole batch.
        """
        remaining = self.cursor.remaining_batch(entry.ledger_id, entry.entry_id)
        if self.cursor.durable or self.reader.source is self.ledger:
            return remaining
        kept = kept_messages(entry)
        if kept is None or remaining is None:
            return remaining if kept is None else kept
        return kept & remaining or remaining

    def _wanted(self, entries: list[Entry]) -> list[Entry]:
        """The entries among these that the active consumer gets."""
        return entries

    def settle(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Does nothing: the cursor has the state."""

    def settle_part(
        self, consumer: Consumer, ledger_id: int, entry_id: int, remaining: int
    ) -> None:
        """Does nothing: the cursor has the state."""

    def settle_up_to(self, position: Position) -> None:
        """See `Dispatcher.settle_up_to`."""
        self.reader.skip_up_to(position)
        self.dispatch()

    def withhold(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Does nothing: the cursor has the state."""

    def committed(self, acks: TxnAcks) -> None:  # noqa: ARG002 - the cursor has them
        """Continues behind a cumulative ack."""
        self.settle_up_to(self.cursor.mark_delete)

    def _first(self, acks: TxnAcks) -> tuple[int, int] | None:
        """Returns the first entry that is delivered again if these acks are dropped."""
        if acks.cumulative is not None:
            return self.reader.source.next_position(self.cursor.mark_delete)
        return min(acks.keys, default=None)

    def joined(self, consumer: Consumer, txn: Txn) -> None:
        """See `Dispatcher.joined`."""
        if self._bypassed and consumer is self.active:
            self._bypassed -= {txn}

    def bypassed(self, txn: Txn, acks: TxnAcks) -> Sequence[Consumer]:
        """See `Dispatcher.bypassed`."""
        first = self._first(acks)
        if txn not in self._bypassed or first is None or self._switch is not None:
            return ()
        if self.active is None or first >= self.cursor.read_position:
            return ()
        return (self.active,)

    def aborted(self, acks: TxnAcks) -> None:
        """Rewinds to the first of the entries; later ones come again too, as from Pulsar."""
        first = self._first(acks)
        if self.active is None or self._switch is not None or first is None:
            return  # the hand-over rewinds
        if first < self.cursor.read_position:
            self.reader.rewind(Position(*first))
        self.dispatch()

    def redeliver(
        self,
        consumer: Consumer,
        positions: Iterable[tuple[int, int]] | None,  # noqa: ARG002 - order forbids single ones
        epoch: int | None,
    ) -> None:
        """See `Dispatcher.redeliver`."""
        if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
            consumer.epoch = epoch
        if consumer is not self.active or self._switch is not None:
            return
        self.rewind()
        self.dispatch()

    def close(self) -> None:
        """See `Dispatcher.close`."""
        self._cancel_switch()
        super().close()

    def fill_stats(self, stats: SubscriptionStats) -> None:
        """See `Dispatcher.fill_stats`."""
        super().fill_stats(stats)
        if self.active is not None:
            stats.active_consumer_name = self.active.name

    def facts(self) -> DispatchFacts:
        """See `Dispatcher.facts`."""
        facts = super().facts()
        facts.active = None if self.active is None else self.active.label
        facts.switching = self._switch is not None
        return facts

    def state(self) -> dict[str, object]:
        """See `Dispatcher.state`."""
        return {
            "active": self.active.name if self.active else None,
            "switching": self._switch is not None,
            "buffered": self.reader.buffered,
            "reading": self.reader.reading,
        }


class ExclusiveDispatcher(SingleActiveDispatcher):
    """Admits one consumer.

    A consumer that requests ranges of key hashes (a reader with `keyHashRange`) gets only those.
    """

    type = SubType.Exclusive
    _ranges: RangeSelector | None = None

    def add_consumer(self, consumer: Consumer) -> None:
        """See `Dispatcher.add_consumer`."""
        if self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        self._ranges = None
        if consumer.spec.key_shared is not None and consumer.spec.key_shared.ranges:
            self._ranges = RangeSelector()
            self._ranges.add(consumer)
        self.consumers.append(consumer)
        self._pick(wait=False)

    def _wanted(self, entries: list[Entry]) -> list[Entry]:
        ranges = self._ranges
        if ranges is None:
            return entries
        return [entry for entry in entries if ranges.select(ranges.hash_of(sticky_key_of(entry)))]


class FailoverDispatcher(SingleActiveDispatcher):
    """Admits many consumers, one of which is active."""

    type = SubType.Failover

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._news = ActiveNews(self._is_active)

    def add_consumer(self, consumer: Consumer) -> None:
        """See `Dispatcher.add_consumer`."""
        check_room(self.limits.max_consumers, len(self.consumers))
        self.consumers.append(consumer)
        self._news.joined(consumer)
        self._pick(wait=True)

    def remove_consumer(self, consumer: Consumer) -> None:
        """See `Dispatcher.remove_consumer`."""
        self._news.left(consumer)
        super().remove_consumer(consumer)

    def close(self) -> None:
        """See `Dispatcher.close`."""
        self._news.close()
        super().close()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """See `Dispatcher.flow`."""
        self._news.hears(consumer)
        super().flow(consumer, permits)

    def _is_active(self, consumer: Consumer) -> bool | None:
        """None while a hand-over is scheduled, which notifies all consumers."""
        return None if self._switch is not None else consumer is self.active

    def _choose(self) -> Consumer:
        return choose_active(self.context.topic, self.consumers)

    def _tell_active(self) -> None:
        self._news.changed(self.consumers)
