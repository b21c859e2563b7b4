"""What Shared and Key_Shared have in common: entries are held, acknowledged and replayed singly.

Every entry handed over is *pending* at exactly one consumer until it is acknowledged, sent back or
its consumer leaves; what comes back waits in a replay structure of the subclass and goes before new
entries. So an entry is at any time in exactly one place: not read yet, waiting for replay, or
pending at one live consumer.

Replayed entries are read again, by `ReplayReader`.

Caps (`blocked…OnUnackedMsgs`): a consumer that holds `max_unacked_per_consumer` messages, or all of
them together `max_unacked_per_subscription`, gets no more until half of it is acknowledged.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from magnetar.broker.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.dispatch.replay import PositionPair, RedeliveryCounts
from magnetar.broker.dispatch.replay_reader import ReplayReader
from magnetar.broker.subscription.admission import check_room
from magnetar.broker.subscription.consumer import HASH_BITS, Consumer
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.core.ids import Position


class MultipleConsumersDispatcher(Dispatcher):
    """Many consumers at once."""

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.counts = RedeliveryCounts()
        self.replays = ReplayReader(context.ledger, context.cursor, context.tasks, context.limits)
        self.unacked = 0
        self.blocked = False

    # -- what the subclass keeps

    @abstractmethod
    def _replay_later(self, position: PositionPair, packed: int) -> None:
        """Puts a position that was pending (as `packed`) among those to be sent again."""

    @abstractmethod
    def _replays_read(self, positions: Sequence[PositionPair]) -> None:
        """`self.replays.take` has these now."""

    @abstractmethod
    def _forget_replay(self, position: PositionPair) -> None:
        """The position was acknowledged while it waited, if it did."""

    @abstractmethod
    def _forget_replay_up_to(self, position: PositionPair) -> None:
        """All up to `position` was acknowledged."""

    @abstractmethod
    def _clear_replay(self) -> None:
        """Nobody is left to replay to."""

    # -- consumers

    def add_consumer(self, consumer: Consumer) -> None:
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
        """Raises where the consumer cannot be taken in."""

    def _joined(self) -> None:
        """The set of consumers has changed."""

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self.unacked -= consumer.unacked
        consumer.unacked = 0
        if not self.consumers:
            self._emptied()
            consumer.pending.clear()
            self._joined()
            return
        # Latest first, so that each goes to the front of what waits.
        for ledger_id, entry_id, packed in sorted(consumer.pending_items(), reverse=True):
            self._replay_later((ledger_id, entry_id), packed)
        consumer.pending.clear()
        self._joined()
        self._unblock()
        self.dispatch()

    def _emptied(self) -> None:
        self._clear_replay()
        self.replays.close()
        self.counts.clear()
        self.unacked = 0
        self.blocked = False
        self.reader.close()

    def close(self) -> None:
        self.replays.close()
        super().close()

    # -- acknowledgement

    def settle(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        packed = consumer.release(ledger_id, entry_id)
        if not packed:
            self._settle_elsewhere(consumer, ledger_id, entry_id)
            return
        if self.counts:
            self.counts.discard((ledger_id, entry_id))
        self._released(consumer, packed)

    def _settle_elsewhere(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """An ack for what this consumer does not hold: another does, or it waits for replay."""
        self.counts.discard((ledger_id, entry_id))
        for other in self.consumers:
            if other is not consumer and (packed := other.release(ledger_id, entry_id)):
                self._released(other, packed)
                return
        self.replays.forget((ledger_id, entry_id))
        self._forget_replay((ledger_id, entry_id))

    def _released(self, consumer: Consumer, packed: int) -> None:
        """An entry is no longer outstanding at `consumer`."""
        messages = packed >> HASH_BITS
        consumer.unacked -= messages
        consumer.acked_messages += messages
        self.unacked -= messages
        self._let_go(consumer, packed)
        if consumer.blocked or self.blocked:
            self._unblock()

    def _let_go(self, consumer: Consumer, packed: int) -> None:
        """Called for each entry that `consumer` holds no longer, while it is attached."""

    def settle_part(
        self, consumer: Consumer, ledger_id: int, entry_id: int, remaining: int
    ) -> None:
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
        for consumer in self.consumers:
            gone = [each for each in consumer.pending_items() if each[:2] <= position]
            for ledger_id, entry_id, packed in gone:
                consumer.release(ledger_id, entry_id)
                self._released(consumer, packed)
        self._forget_replay_up_to(position)
        self.counts.discard_up_to(position)
        self.replays.forget_up_to(position)
        self.reader.skip_up_to(position)
        self.dispatch()

    def set_limits(self, limits: SubscriptionLimits) -> None:
        """Caps hold at once for those attached: who holds as much as a new one gets no more."""
        each, whole = limits.max_unacked_per_consumer, limits.max_unacked_per_subscription
        for consumer in self.consumers:
            consumer.blocked = 0 < each <= consumer.unacked
        self.blocked = 0 < whole <= self.unacked
        super().set_limits(limits)

    def _unblock(self) -> None:
        """Lifts caps of which half is free again."""
        for consumer in self.consumers:
            cap = self.limits.max_unacked_per_consumer
            if consumer.blocked and consumer.unacked <= cap // 2:
                consumer.blocked = False
                self._wake_due = True
        if self.blocked and self.unacked <= self.limits.max_unacked_per_subscription // 2:
            self.blocked = False
            self._wake_due = True

    # -- redelivery

    def redeliver(
        self,
        consumer: Consumer,
        positions: Iterable[tuple[int, int]] | None,
        epoch: int | None,
    ) -> None:
        if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
            consumer.epoch = epoch
        if positions is None:
            positions = [each[:2] for each in consumer.pending_items()]
        for position in sorted(positions, reverse=True):
            packed = consumer.release(*position)
            if packed:
                messages = packed >> HASH_BITS
                consumer.unacked -= messages
                consumer.redelivered_messages += messages
                self.unacked -= messages
                self.counts.increment(position)
                self._let_go(consumer, packed)
                self._replay_later(position, packed)
        self._unblock()
        self._wake_due = False
        self.dispatch()

    @property
    @abstractmethod
    def waiting_count(self) -> int:
        """Positions that were read, or came back, and wait to be handed over."""

    def fill_stats(self, stats: SubscriptionStats) -> None:
        super().fill_stats(stats)
        stats.blocked_subscription_on_unacked_msgs = self.blocked
        stats.msg_in_replay = self.waiting_count
        for failure in self.replays.failures.values():
            stats.read_failure = f"{failure.position}: {failure.error} ({failure.attempts} times)"

    def state(self) -> dict[str, object]:
        return {
            "waiting": self.waiting_count,
            "unacked": self.unacked,
            "blocked": self.blocked,
            "buffered": self.reader.buffered,
            "reading": self.reader.reading,
            "unreadable": [str(each.position) for each in self.replays.failures.values()],
        }
