"""Shared: round robin among the consumers that have permits, and no order.

Consumers of a better (lower) priority level are served first; the next level gets something only
while none of the better one has permits. Within a level each gets up to
`round_robin_entries_max` entries before it is the next one's turn. Entries that come back go before
new ones, oldest first.
Sources: Pulsar's `PersistentDispatcherMultipleConsumers`.
"""

from collections.abc import Sequence
from typing import Final

from magnetar.broker.dispatch.base import DispatchContext
from magnetar.broker.dispatch.metadata import message_count
from magnetar.broker.dispatch.multiple import MultipleConsumersDispatcher
from magnetar.broker.dispatch.replay import PositionPair, ReplaySet
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import SubType
from magnetar.managed_ledger.entry import Entry

REPLAYED_PER_STEP_MAX: Final = 100
NO_CAP: Final = 1 << 62


class SharedDispatcher(MultipleConsumersDispatcher):
    """See the module."""

    type = SubType.Shared

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._levels: list[list[Consumer]] = []
        self._replay = ReplaySet()

    def _joined(self) -> None:
        by_level: dict[int, list[Consumer]] = {}
        for consumer in self.consumers:
            by_level.setdefault(consumer.spec.priority_level, []).append(consumer)
        self._levels = [by_level[level] for level in sorted(by_level)]

    def _step(self, entries_max: int) -> int:
        if self.blocked:
            return 0
        room = 0
        for consumer in self.consumers:
            if consumer.available:
                room += max(1, int(consumer.permits / consumer.average_messages))
        if not room:
            return 0
        room = min(room, entries_max)
        if self._replay:
            positions = self._replay.pop(min(room, REPLAYED_PER_STEP_MAX))
            entries, missing = [], []
            for position in positions:
                entry = self.replays.take(position)
                if entry is None:
                    missing.append(position)
                else:
                    entries.append(entry)
            if missing:
                self.replays.request(missing)
            if entries:
                live = self.cursor.filter_unacked(entries)
                for entry in live[self._hand_out(live, replayed=True) :]:
                    self._replay.add((entry.ledger_id, entry.entry_id))
            return len(positions)
        if self.replays.reading:
            return 0
        taken = self.reader.take(room)
        if taken:
            entries = self.cursor.filter_unacked(taken)
            self.reader.give_back(entries[self._hand_out(entries, replayed=False) :])
        return len(taken)

    def _hand_out(self, entries: list[Entry], *, replayed: bool) -> int:
        """Gives the entries to consumers in turn; how many of them found one."""
        out: dict[Consumer, list[Delivery]] = {}
        done, total = 0, len(entries)
        while done < total and (consumer := self._next_available()) is not None:
            turn = entries[done : done + self.limits.round_robin_entries_max]
            deliveries = out.setdefault(consumer, [])
            done += self._fill(consumer, turn, deliveries, replayed=replayed)
        for consumer, deliveries in out.items():
            messages = sum(
                [
                    each.message_count if each.ack_set is None else each.ack_set.bit_count()
                    for each in deliveries
                ]
            )
            self._count_out(consumer, deliveries, messages)
        return done

    def _fill(
        self, consumer: Consumer, turn: list[Entry], deliveries: list[Delivery], *, replayed: bool
    ) -> int:
        """Takes entries for one consumer while it has permits; how many it took."""
        left = consumer.permits
        held = before = consumer.unacked
        cap = self.limits.max_unacked_per_consumer or NO_CAP
        stop = min(
            cap, before + (self.limits.max_unacked_per_subscription or NO_CAP) - self.unacked
        )
        done = 0
        for entry in turn:
            count = messages = message_count(entry)
            ledger_id, entry_id = entry.ledger_id, entry.entry_id
            ack_set = None
            if count > 1:
                ack_set = self.cursor.remaining_batch(ledger_id, entry_id)
                if ack_set is not None:
                    messages = ack_set.bit_count()
            times = self.counts.of((ledger_id, entry_id)) if replayed else 0
            deliveries.append(Delivery(entry, count, times, ack_set))
            consumer.hold(ledger_id, entry_id, messages)
            done += 1
            left -= messages
            held += messages
            if left <= 0 or held >= stop:
                break
        consumer.permits = left
        consumer.unacked = held
        consumer.blocked = held >= cap
        self.unacked += held - before
        cap = self.limits.max_unacked_per_subscription
        self.blocked = 0 < cap <= self.unacked
        return done

    def _next_available(self) -> Consumer | None:
        """Whose turn it is: he goes to the end of his level's line."""
        if self.blocked:
            return None
        for level in self._levels:
            for index, consumer in enumerate(level):
                if consumer.available:
                    del level[index]
                    level.append(consumer)
                    return consumer
        return None

    # -- replay

    def _replay_later(self, position: PositionPair, packed: int) -> None:  # noqa: ARG002
        self._replay.add(position)

    def _replays_read(self, positions: Sequence[PositionPair]) -> None:
        for position in positions:
            if not self.cursor.is_acked(*position):
                self._replay.add(position)
        self.dispatch()

    def _forget_replay(self, position: PositionPair) -> None:
        self._replay.discard(position)

    def _forget_replay_up_to(self, position: PositionPair) -> None:
        self._replay.discard_up_to(position)

    def _clear_replay(self) -> None:
        self._replay.clear()

    @property
    def waiting_count(self) -> int:
        return len(self._replay) + len(self.replays)
