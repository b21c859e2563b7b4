"""The common part of Shared and Key_Shared: entries are held, acknowledged and replayed singly.

A delivered entry is *pending* at exactly one consumer until it is acknowledged or returned, or its
consumer leaves. Returned entries wait in a replay structure of the subclass and are delivered
before new ones. An entry is therefore always in exactly one state: not read yet, skipped because
it is delayed, waiting for replay, or pending at one attached consumer. `ReplayReader` reads
replayed entries again.

A delayed entry (`delayed`, shared by all subscriptions of the topic) is skipped when it is read.
Once it is released, it is *due* if the reader has passed it, and is replayed. A reader that has not
passed it finds it delayed no more.

Caps (`blocked…OnUnackedMsgs`): a consumer that holds `max_unacked_per_consumer` messages gets no
more until half of them are acknowledged; so do all consumers once they hold
`max_unacked_per_subscription` together.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from magnetar.broker.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.dispatch.facts import DispatchFacts
from magnetar.broker.dispatch.filtering import EntryFilters
from magnetar.broker.dispatch.replay import PositionPair, RedeliveryCounts
from magnetar.broker.dispatch.replay_reader import ReplayReader
from magnetar.broker.subscription.admission import check_room
from magnetar.broker.subscription.consumer import HASH_BITS, Consumer
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.core.ids import Position
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.pending_acks import TxnAcks
from magnetar.managed_ledger.position_set import PositionSet


class MultipleConsumersDispatcher(Dispatcher):
    """Delivers to many consumers at once, and remembers what each of them holds."""

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.counts = RedeliveryCounts()
        self.replays = ReplayReader(context.ledger, context.cursor, context.tasks, context.limits)
        self.unacked = 0
        self.blocked = False
        self.delayed: PositionSet | None = None
        """The entries of the topic that are delayed; None if there never was one."""
        self.due = PositionSet()
        """Released entries that the reader has passed."""
        self._withheld: dict[PositionPair, int] = {}
        """The packed values of entries that are pending in transactions."""

    def set_delayed(self, delayed: PositionSet) -> None:
        """See `Dispatcher.set_delayed`."""
        self.delayed = delayed
        self._set_skipped()

    def set_filters(self, filters: EntryFilters | None) -> None:
        """See `Dispatcher.set_filters`."""
        super().set_filters(filters)
        self._set_skipped()

    def _set_skipped(self) -> None:
        # With filters, the reader returns delayed entries, too: filters judge an entry when it is
        # read for the first time, and a released entry is a replay.
        self.reader.delayed = self.delayed if self.filters is None else None

    def released(self, positions: PositionSet) -> None:
        """See `Dispatcher.released`."""
        if self.consumers:
            holes = self.cursor.holes
            for ledger_id, entries in positions.before(self.cursor.read_position):
                acked = holes.get(ledger_id)
                self.due.add_entries(ledger_id, entries - acked if acked else entries)
            self.due.discard_up_to(self.cursor.mark_delete)
            self.dispatch()

    def _deliverable(self, taken: list[Entry]) -> list[Entry]:
        """See `Dispatcher._deliverable`; delayed entries are left out."""
        entries = super()._deliverable(taken)
        delayed = self.delayed
        if delayed is None or not delayed:
            return entries
        return [entry for entry in entries if (entry.ledger_id, entry.entry_id) not in delayed]

    def _take_due(self, count: int) -> list[PositionPair]:
        """Removes up to `count` due positions that consumers may read now, and returns them."""
        horizon, due = self.ledger.horizon, self.due
        live: list[PositionPair] = []
        while due and len(live) < count:
            taken = due.pop(count)
            if horizon is not None and taken[-1] >= horizon:
                due.update(position for position in taken if position >= horizon)
                taken = [position for position in taken if position < horizon]
                if not taken:
                    break
            live += [position for position in taken if not self.cursor.is_done(*position)]
        return live

    @abstractmethod
    def _replay_later(self, position: PositionPair, packed: int) -> None:
        """Queues a position that was pending (as `packed`) for replay."""

    @abstractmethod
    def _replays_read(self, positions: Sequence[PositionPair]) -> None:
        """Called when `self.replays.take` has these positions."""

    @abstractmethod
    def _forget_replay(self, position: PositionPair) -> None:
        """Removes an acknowledged position from the replay structure, if it waits there."""

    @abstractmethod
    def _forget_replay_up_to(self, position: PositionPair) -> None:
        """Removes all positions up to `position`, which are acknowledged."""

    @abstractmethod
    def _clear_replay(self) -> None:
        """Clears the replay structure: the last consumer left."""

    def add_consumer(self, consumer: Consumer) -> None:
        """See `Dispatcher.add_consumer`."""
        check_room(self.limits.max_consumers, len(self.consumers))
        self._joining(consumer)
        first = not self.consumers
        self.consumers.append(consumer)
        if first:
            self.reader.open(self.dispatch)
            self.replays.open(self._replays_read)
            self.rewind()
        self._joined()
        self.dispatch()

    def _joining(self, consumer: Consumer) -> None:
        """Checks and prepares a new consumer; raises if it cannot attach."""

    def _joined(self) -> None:
        """Called after the set of consumers changed."""

    def remove_consumer(self, consumer: Consumer) -> None:
        """See `Dispatcher.remove_consumer`."""
        self.consumers.remove(consumer)
        self.unacked -= consumer.unacked
        consumer.unacked = 0
        if not self.consumers:
            self._emptied()
            consumer.pending.clear()
            self._joined()
            return
        # Latest first, because each is inserted at the front of the queue.
        for ledger_id, entry_id, packed in sorted(consumer.pending_items(), reverse=True):
            self._replay_later((ledger_id, entry_id), packed)
        consumer.pending.clear()
        self._joined()
        self._unblock()
        self.dispatch()

    def _emptied(self) -> None:
        self._withheld.clear()
        self.due.clear()
        self._clear_replay()
        self.replays.close()
        self.counts.clear()
        self.unacked = 0
        self.blocked = False
        self.reader.close()

    def close(self) -> None:
        """See `Dispatcher.close`."""
        self.replays.close()
        super().close()

    def settle(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """See `Dispatcher.settle`."""
        packed = consumer.release(ledger_id, entry_id)
        if not packed:
            self._settle_elsewhere(consumer, ledger_id, entry_id)
            return
        if self.counts:
            self.counts.discard((ledger_id, entry_id))
        self._released(consumer, packed)

    def _settle_elsewhere(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Settles an entry that this consumer does not hold: another one does, or it waits."""
        self.counts.discard((ledger_id, entry_id))
        for other in self.consumers:
            if other is not consumer and (packed := other.release(ledger_id, entry_id)):
                self._released(other, packed)
                return
        self.replays.forget((ledger_id, entry_id))
        self._forget_replay((ledger_id, entry_id))

    def withhold(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """See `Dispatcher.withhold`."""
        for holder in (consumer, *self.consumers):
            if packed := holder.held(ledger_id, entry_id):
                self._withheld[ledger_id, entry_id] = packed
                break
        self.settle(consumer, ledger_id, entry_id)

    def committed(self, acks: TxnAcks) -> None:
        """See `Dispatcher.committed`."""
        if self._withheld:
            for key in acks.keys:
                self._withheld.pop(key, None)

    def aborted(self, acks: TxnAcks) -> None:
        """See `Dispatcher.aborted`. An entry that was not read yet is read in turn."""
        for key in sorted(acks.keys, reverse=True):
            packed = self._withheld.pop(key, 0)
            if not self.consumers or key >= self.cursor.read_position or self.cursor.is_done(*key):
                continue
            if self.delayed is not None and key in self.delayed:
                continue  # it is released at its time
            self.due.discard(*key)
            for consumer in self.consumers:
                if held := consumer.release(*key):  # other messages of the batch
                    messages = held >> HASH_BITS
                    consumer.unacked -= messages
                    consumer.redelivered_messages += messages
                    self.unacked -= messages
                    self._released_entry(consumer, held)
                    packed = held
                    break
            self.counts.increment(key)
            self._replay_aborted(key, packed)
        self._unblock()
        self._wake_due = False
        self.dispatch()

    def _replay_aborted(self, position: PositionPair, packed: int) -> None:
        """Queues a position of an aborted transaction; `packed` is 0 if it was not read here."""
        self._replay_later(position, packed)

    def _released(self, consumer: Consumer, packed: int) -> None:
        """Records that an acknowledged entry is no longer outstanding at `consumer`."""
        messages = packed >> HASH_BITS
        consumer.unacked -= messages
        consumer.acked_messages += messages
        self.unacked -= messages
        self._released_entry(consumer, packed)
        if consumer.blocked or self.blocked:
            self._unblock()

    def _released_entry(self, consumer: Consumer, packed: int) -> None:
        """Called for each entry that an attached consumer no longer holds."""

    def settle_part(
        self, consumer: Consumer, ledger_id: int, entry_id: int, remaining: int
    ) -> None:
        """See `Dispatcher.settle_part`."""
        for owner in (consumer, *self.consumers):
            packed = owner.held(ledger_id, entry_id)
            if packed:
                acked = (packed >> HASH_BITS) - remaining
                if acked > 0:
                    owner.pending[ledger_id][entry_id] = packed - (acked << HASH_BITS)
                    owner.unacked -= acked
                    owner.acked_messages += acked
                    self.unacked -= acked
                    self._unblock()
                return

    def settle_up_to(self, position: Position) -> None:
        """See `Dispatcher.settle_up_to`."""
        for consumer in self.consumers:
            settled = [item for item in consumer.pending_items() if item[:2] <= position]
            for ledger_id, entry_id, packed in settled:
                consumer.release(ledger_id, entry_id)
                self._released(consumer, packed)
        self._forget_replay_up_to(position)
        self.due.discard_up_to(position)
        self.counts.discard_up_to(position)
        self.replays.forget_up_to(position)
        self.reader.skip_up_to(position)
        self.dispatch()

    def set_limits(self, limits: SubscriptionLimits) -> None:
        """Replaces the limits; new caps on unacknowledged messages block consumers at once."""
        per_consumer = limits.max_unacked_per_consumer
        per_subscription = limits.max_unacked_per_subscription
        for consumer in self.consumers:
            consumer.blocked = 0 < per_consumer <= consumer.unacked
        self.blocked = 0 < per_subscription <= self.unacked
        super().set_limits(limits)

    def _unblock(self) -> None:
        """Unblocks consumers that are down to half of their cap."""
        for consumer in self.consumers:
            cap = self.limits.max_unacked_per_consumer
            if consumer.blocked and consumer.unacked <= cap // 2:
                consumer.blocked = False
                self._wake_due = True
        if self.blocked and self.unacked <= self.limits.max_unacked_per_subscription // 2:
            self.blocked = False
            self._wake_due = True

    def redeliver(
        self,
        consumer: Consumer,
        positions: Iterable[tuple[int, int]] | None,
        epoch: int | None,
    ) -> None:
        """See `Dispatcher.redeliver`."""
        if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
            consumer.epoch = epoch
        if positions is None:
            positions = [item[:2] for item in consumer.pending_items()]
        for position in sorted(positions, reverse=True):
            packed = consumer.release(*position)
            if packed:
                messages = packed >> HASH_BITS
                consumer.unacked -= messages
                consumer.redelivered_messages += messages
                self.unacked -= messages
                self.counts.increment(position)
                self._released_entry(consumer, packed)
                self._replay_later(position, packed)
        self._unblock()
        self._wake_due = False
        self.dispatch()

    @property
    @abstractmethod
    def waiting_count(self) -> int:
        """Positions that were read, or returned, and wait for delivery."""

    def fill_stats(self, stats: SubscriptionStats) -> None:
        """See `Dispatcher.fill_stats`."""
        super().fill_stats(stats)
        stats.blocked_subscription_on_unacked_msgs = self.blocked
        stats.msg_in_replay = self.waiting_count
        for failure in self.replays.failures.values():
            stats.read_failure = f"{failure.position}: {failure.error} ({failure.attempts} times)"

    def facts(self) -> DispatchFacts:
        """See `Dispatcher.facts`."""
        facts = super().facts()
        facts.reading = facts.reading or self.replays.reading
        facts.waiting = self.waiting_count
        facts.unacked, facts.blocked = self.unacked, self.blocked
        if facts.failure is None:
            facts.failure = next(iter(self.replays.failures.values()), None)
        return facts

    def redeliveries(self, ledger_id: int, entry_id: int) -> int:
        """See `Dispatcher.redeliveries`."""
        return self.counts.of((ledger_id, entry_id))

    def waits(self, ledger_id: int, entry_id: int) -> bool:
        """See `Dispatcher.waits`."""
        return (ledger_id, entry_id) in self.replays

    def state(self) -> dict[str, object]:
        """See `Dispatcher.state`."""
        return {
            "waiting": self.waiting_count,
            "unacked": self.unacked,
            "blocked": self.blocked,
            "due": len(self.due),
            "buffered": self.reader.buffered,
            "reading": self.reader.reading,
            "unreadable": [str(failure.position) for failure in self.replays.failures.values()],
        }
