"""Exclusive and Failover: one active consumer gets everything, in order.

Nothing is remembered per message: the read position says what was sent, and the cursor what was
acknowledged. A redelivery is a rewind to behind the mark-delete position; entries acknowledged one
by one in between are left out. A client that counts epochs gets the new epoch with each message
after the rewind and drops what was on its way before it.

`active.choose_active` says who is active in Failover. When a consumer joins, the first included, a
hand-over waits for `failover_switch_delay_s`: consumers that attach together, after an unload for
instance, settle who is active before one is sent what another will be sent again, and acks under
way arrive. When the active one leaves there is nobody to wait for: the next has its turn at once.
Sources: Pulsar's `AbstractDispatcherSingleActiveConsumer`,
`PersistentDispatcherSingleActiveConsumer`.
"""

import asyncio
from collections.abc import Iterable

from magnetar.broker.dispatch.active import choose_active
from magnetar.broker.dispatch.active_news import ActiveNews
from magnetar.broker.dispatch.base import DispatchContext, Dispatcher
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


class SingleActiveDispatcher(Dispatcher):
    """Streams to `active`; the other consumers wait for their turn."""

    active: Consumer | None = None
    _switch: asyncio.TimerHandle | None = None

    def remove_consumer(self, consumer: Consumer) -> None:
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
            return  # that hand-over will be to whoever is chosen then
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
        self.rewind()
        self._tell_active()
        self.dispatch()

    def _tell_active(self) -> None:
        """Exclusive consumers need not be told."""

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
        wanted = max(1, int(permits / consumer.average_messages))
        taken = self.reader.take(min(entries_max, wanted))
        if not taken:
            return 0
        entries = self._wanted(self.cursor.filter_unacked(taken))
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
        self.reader.give_back(entries[len(deliveries) :])
        consumer.permits = left
        self._count_out(consumer, deliveries, permits - left)
        return len(taken)

    def _ack_set_of(self, entry: Entry) -> int | None:
        """The bits of the messages in a batch that are to be seen; None: all.

        A reader does not see what was compacted out: not all clients leave it out by themselves. A
        durable subscription's clients get it as Pulsar sends it: those that acknowledge one by one
        could never acknowledge the whole batch without it.
        """
        remaining = self.cursor.remaining_batch(entry.ledger_id, entry.entry_id)
        if self.cursor.durable or self.reader.source is self.ledger:
            return remaining
        kept = kept_messages(entry)
        if kept is None or remaining is None:
            return remaining if kept is None else kept
        return kept & remaining or remaining

    def _wanted(self, entries: list[Entry]) -> list[Entry]:
        """Those of the entries that the active consumer is to get."""
        return entries

    def settle(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """The cursor knows all there is to know."""

    def settle_part(
        self, consumer: Consumer, ledger_id: int, entry_id: int, remaining: int
    ) -> None:
        """The cursor knows all there is to know."""

    def settle_up_to(self, position: Position) -> None:
        self.reader.skip_up_to(position)
        self.dispatch()

    def redeliver(
        self,
        consumer: Consumer,
        positions: Iterable[tuple[int, int]] | None,  # noqa: ARG002 - order forbids single ones
        epoch: int | None,
    ) -> None:
        if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
            consumer.epoch = epoch
        if consumer is not self.active or self._switch is not None:
            return
        self.rewind()
        self.dispatch()

    def close(self) -> None:
        self._cancel_switch()
        super().close()

    def fill_stats(self, stats: SubscriptionStats) -> None:
        super().fill_stats(stats)
        if self.active is not None:
            stats.active_consumer_name = self.active.name

    def state(self) -> dict[str, object]:
        return {
            "active": self.active.name if self.active else None,
            "switching": self._switch is not None,
            "buffered": self.reader.buffered,
            "reading": self.reader.reading,
        }


class ExclusiveDispatcher(SingleActiveDispatcher):
    """One consumer, no other is let in.

    It may ask for ranges of key hashes (a reader with `keyHashRange`): then it gets no others.
    """

    type = SubType.Exclusive
    _ranges: RangeSelector | None = None

    def add_consumer(self, consumer: Consumer) -> None:
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
        return [each for each in entries if ranges.select(ranges.hash_of(sticky_key_of(each)))]


class FailoverDispatcher(SingleActiveDispatcher):
    """Many consumers, one of them active."""

    type = SubType.Failover

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._news = ActiveNews(self._is_active)

    def add_consumer(self, consumer: Consumer) -> None:
        check_room(self.limits.max_consumers, len(self.consumers))
        self.consumers.append(consumer)
        self._news.joined(consumer)
        self._pick(wait=True)

    def remove_consumer(self, consumer: Consumer) -> None:
        self._news.left(consumer)
        super().remove_consumer(consumer)

    def close(self) -> None:
        self._news.close()
        super().close()

    def flow(self, consumer: Consumer, permits: int) -> None:
        self._news.hears(consumer)
        super().flow(consumer, permits)

    def _is_active(self, consumer: Consumer) -> bool | None:
        """None while a hand-over is under way, which will tell everyone."""
        return None if self._switch is not None else consumer is self.active

    def _choose(self) -> Consumer:
        return choose_active(self.context.topic, self.consumers)

    def _tell_active(self) -> None:
        self._news.changed(self.consumers)
