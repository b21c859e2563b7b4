"""Shared: delivers round robin among the consumers that have permits, in no order.

A level of consumers gets entries only while no consumer of a better (lower) priority level has
permits. Within a level, each consumer gets up to `round_robin_entries_max` entries per turn.
Returned entries are redelivered before new ones, oldest first. `chunks` keeps the chunks of one
message together.
Sources: Pulsar's `PersistentDispatcherMultipleConsumers`.
"""

from collections.abc import Sequence
from typing import Final

from magnetar.broker.dispatch.base import DispatchContext
from magnetar.broker.dispatch.chunks import ChunkOwners
from magnetar.broker.dispatch.facts import DispatchFacts
from magnetar.broker.dispatch.metadata import count_and_chunk
from magnetar.broker.dispatch.multiple import MultipleConsumersDispatcher
from magnetar.broker.dispatch.replay import PositionPair, ReplaySet
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import SubType
from magnetar.managed_ledger.entry import Entry

REPLAYED_PER_STEP_MAX: Final = 100
NO_CAP: Final = 1 << 62

Outgoing = dict[Consumer, list[Delivery]]


class SharedDispatcher(MultipleConsumersDispatcher):
    """Delivers each entry to the next consumer that has permits."""

    type = SubType.Shared

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._levels: list[list[Consumer]] = []
        self._replay = ReplaySet()
        self._chunks = ChunkOwners()

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
        if self._chunks and (dealt := self._hand_out_parked(entries_max)):
            return dealt
        room = min(room, entries_max)
        if self.due and not self._replay and len(self.replays) < REPLAYED_PER_STEP_MAX:
            for position in self._take_due(REPLAYED_PER_STEP_MAX):
                self._replay.add(position)
        if self._replay:
            return self._replay_some(min(room, REPLAYED_PER_STEP_MAX))
        if self.replays.reading:
            return 0
        taken = self.reader.take(room)
        if taken:
            entries = self._deliverable(taken)
            self._return(taken, entries, self._hand_out(entries, replayed=False))
        return len(taken)

    def _replay_some(self, count: int) -> int:
        positions = self._replay.pop(count)
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

    def _hand_out_parked(self, entries_max: int) -> int:
        """Delivers parked chunks to their owners that have room; returns how many."""
        out: Outgoing = {}
        dealt = 0
        for consumer in self.consumers:
            while dealt < entries_max and not self.blocked and consumer.available:
                position = self._chunks.first(consumer)
                if position is None:
                    break
                acked = self.cursor.is_done(*position)
                entry = None if acked else self.replays.take(position)
                if entry is None and not acked:
                    self.replays.request((position,))
                    break
                self._chunks.unpark(position)
                dealt += 1
                if entry is not None:
                    self._give(consumer, entry, self.counts.of(position), out)
        self._flush(out)
        return dealt

    def _hand_out(self, entries: list[Entry], *, replayed: bool) -> int:
        """Delivers the entries to consumers in turn; returns how many it processed."""
        out: Outgoing = {}
        done, total = 0, len(entries)
        while done < total and (consumer := self._next_available()) is not None:
            turn = entries[done : done + self.limits.round_robin_entries_max]
            done += self._fill(consumer, turn, out, replayed=replayed)
        self._flush(out)
        return done

    def _flush(self, out: Outgoing) -> None:
        for consumer, deliveries in out.items():
            messages = sum([
                delivery.message_count
                if delivery.ack_set is None
                else delivery.ack_set.bit_count()
                for delivery in deliveries
            ])  # fmt: skip
            self._count_out(consumer, deliveries, messages)

    def _fill(self, consumer: Consumer, turn: list[Entry], out: Outgoing, *, replayed: bool) -> int:
        """Delivers entries to one consumer while it has permits; returns how many."""
        deliveries = out.get(consumer)
        if deliveries is None:
            deliveries = out[consumer] = []
        left = consumer.permits
        held = before = consumer.unacked
        cap = self.limits.max_unacked_per_consumer or NO_CAP
        stop = min(
            cap, before + (self.limits.max_unacked_per_subscription or NO_CAP) - self.unacked
        )
        done = 0
        for entry in turn:
            count, chunk = count_and_chunk(entry)
            ledger_id, entry_id = entry.ledger_id, entry.entry_id
            times = self.counts.of((ledger_id, entry_id)) if replayed else 0
            if chunk is not None:
                owner = self._chunks.owner(chunk, consumer)
                if owner is not consumer or self._chunks.first(consumer) is not None:
                    done += 1
                    if self._chunks.must_park(owner):
                        self._chunks.park((ledger_id, entry_id), owner)
                        continue
                    given = self._give(owner, entry, times, out)
                    stop -= given
                    if held >= stop:
                        break
                    continue
            messages, ack_set = count, None
            if count > 1:
                ack_set = self.cursor.remaining_batch(ledger_id, entry_id)
                if ack_set is not None:
                    messages = ack_set.bit_count()
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
        self._check_cap()
        if not deliveries:
            del out[consumer]
        return done

    def _give(self, consumer: Consumer, entry: Entry, times: int, out: Outgoing) -> int:
        """Delivers one chunk to its owner; returns the number of messages."""
        out.setdefault(consumer, []).append(Delivery(entry, 1, times))
        consumer.hold(entry.ledger_id, entry.entry_id, 1)
        consumer.permits -= 1
        consumer.unacked += 1
        self.unacked += 1
        consumer.blocked = consumer.unacked >= (self.limits.max_unacked_per_consumer or NO_CAP)
        self._check_cap()
        return 1

    def _check_cap(self) -> None:
        self.blocked = 0 < self.limits.max_unacked_per_subscription <= self.unacked

    def _next_available(self) -> Consumer | None:
        """Returns the next consumer in turn, and moves it to the end of its level."""
        if self.blocked:
            return None
        for level in self._levels:
            for index, consumer in enumerate(level):
                if consumer.available:
                    del level[index]
                    level.append(consumer)
                    return consumer
        return None

    def remove_consumer(self, consumer: Consumer) -> None:
        """See `Dispatcher.remove_consumer`."""
        for position in self._chunks.left(consumer):
            if position not in self.replays:
                self._replay.add(position)
        super().remove_consumer(consumer)

    def _replay_later(self, position: PositionPair, packed: int) -> None:  # noqa: ARG002
        self._replay.add(position)

    def _replays_read(self, positions: Sequence[PositionPair]) -> None:
        for position in positions:
            if position not in self._chunks and not self.cursor.is_done(*position):
                self._replay.add(position)
        self.dispatch()

    def _forget_replay(self, position: PositionPair) -> None:
        self._replay.discard(position)
        self._chunks.unpark(position)

    def _forget_replay_up_to(self, position: PositionPair) -> None:
        self._replay.discard_up_to(position)
        self._chunks.unpark_up_to(position)

    def _clear_replay(self) -> None:
        self._replay.clear()
        self._chunks.clear()

    @property
    def waiting_count(self) -> int:
        """Positions that wait for replay or are parked."""
        in_replay = len(self._replay) + len(self.replays)
        return in_replay + sum(parked not in self.replays for parked in self._chunks)

    def facts(self) -> DispatchFacts:
        """See `Dispatcher.facts`."""
        facts = super().facts()
        facts.parked = len(self._chunks)
        return facts

    def waits(self, ledger_id: int, entry_id: int) -> bool:
        """See `Dispatcher.waits`."""
        position = (ledger_id, entry_id)
        return position in self._replay or position in self._chunks or super().waits(*position)
