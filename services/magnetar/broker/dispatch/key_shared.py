"""Key_Shared: delivers all messages of a key to one consumer, in order, across joins and leaves.

Invariant: the outstanding entries of a hash are outstanding at one consumer. When a join or leave
assigns a hash to another consumer while the old one still holds entries of it, the hash *drains*:
no consumer gets its entries until the old one has acknowledged or returned all of them, or has left
(PIP-379). Meanwhile its later entries wait in line, as do those of a consumer without permits; the
entries of all other consumers continue. With `allow_out_of_order` no hash drains.

Look-ahead: at most `look_ahead_per_consumer` positions for each consumer, and
`look_ahead_per_subscription` in all, wait; then reading stops until some are delivered. The entries
of some waiting positions are kept in memory (`KeptEntries`), the others are read again.

The hot path costs the hash of the key, one lookup of its owner, and one of its line. Draining costs
nothing while no hash drains: the entries that drain are counted when consumers join or leave.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from magnetar.broker.dispatch.base import DispatchContext
from magnetar.broker.dispatch.facts import DispatchFacts, HashFacts
from magnetar.broker.dispatch.metadata import count_and_key
from magnetar.broker.dispatch.multiple import MultipleConsumersDispatcher
from magnetar.broker.dispatch.replay import PositionPair
from magnetar.broker.dispatch.replay_reader import REPLAY_READ_ENTRIES_MAX
from magnetar.broker.dispatch.selector import RingSelector, Selector, new_selector
from magnetar.broker.dispatch.waiting_lines import KeptEntries, WaitingLines
from magnetar.broker.subscription.admission import check_key_shared
from magnetar.broker.subscription.consumer import HASH_MASK, Consumer
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import KeySharedSpec, SubType
from magnetar.broker.subscription.stats import (
    ConsumerStats,
    DrainingHashStats,
    SubscriptionStats,
)
from magnetar.core.ids import LATEST, Position
from magnetar.managed_ledger.entry import Entry

SAME_HASH_READ_AHEAD: Final = 20
HASHES_SHOWN_MAX: Final = 20
"""Waiting hashes that diagnosis names."""

Outgoing = dict[Consumer, list[Delivery]]


@dataclass(slots=True)
class DrainingHash:
    """A hash whose former owner, `holder`, still holds `entries` of it."""

    holder: Consumer
    entries: int = 0
    blocked_attempts: int = 0
    since_ms: int = 0


class KeySharedDispatcher(MultipleConsumersDispatcher):
    """Delivers the messages of each key to the consumer that owns the key's hash."""

    type = SubType.Key_Shared

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.policy = KeySharedSpec()
        self.selector: Selector = RingSelector(context.limits.ring_points)
        self.draining: dict[int, DrainingHash] = {}
        self.drained_total: dict[Consumer, int] = {}
        self.waiting = WaitingLines()
        self._being_read: dict[PositionPair, int] = {}
        self._kept = KeptEntries()
        self._without_hash: set[PositionPair] = set()
        """Due positions, and those of aborted transactions, that are read to find their hash."""

    def _joining(self, consumer: Consumer) -> None:
        policy = consumer.spec.key_shared or KeySharedSpec()
        if not self.consumers:
            self.policy = policy
            self.selector = new_selector(policy, self.limits.ring_points)
        else:
            check_key_shared(self.policy, policy)
        self.selector.add(consumer)
        self.drained_total[consumer] = 0

    def _joined(self) -> None:
        """Counts the entries that drain now, and lines up all waiting hashes at their owners."""
        before, self.draining = self.draining, {}
        select = self.selector.select
        for consumer in () if self.policy.allow_out_of_order else self.consumers:
            for _, _, packed in consumer.pending_items():
                sticky_hash = packed & HASH_MASK
                if select(sticky_hash) is consumer:
                    continue
                drain = self.draining.get(sticky_hash)
                if drain is None:
                    former = before.get(sticky_hash)
                    blocked = former.blocked_attempts if former else 0
                    since_ms = former.since_ms if former else self.clock.now_ms()
                    drain = DrainingHash(consumer, 0, blocked, since_ms)
                    self.draining[sticky_hash] = drain
                drain.entries += 1
        self._line_up_all()

    def remove_consumer(self, consumer: Consumer) -> None:
        """See `Dispatcher.remove_consumer`."""
        self.selector.remove(consumer)
        self.drained_total.pop(consumer, None)
        super().remove_consumer(consumer)

    def _line_up_all(self) -> None:
        self.waiting.unline_all()
        for sticky_hash in self.waiting.by_hash:
            self._line_up(sticky_hash)

    def _line_up(self, sticky_hash: int) -> None:
        if sticky_hash not in self.draining:
            self.waiting.line_up(sticky_hash, self.selector.select(sticky_hash))

    @property
    def look_ahead_max(self) -> int:
        """The number of positions that may wait before reading stops."""
        per_consumer = self.limits.look_ahead_per_consumer * len(self.consumers)
        in_all = self.limits.look_ahead_per_subscription
        return min(per_consumer or in_all, in_all or per_consumer) or 1 << 62

    def _step(self, entries_max: int) -> int:
        if self.blocked:
            return 0
        out: Outgoing = {consumer: [] for consumer in self.consumers if consumer.available}
        if not out:
            return 0
        full: list[tuple[Consumer, list[Delivery]]] = []
        dealt = self._hand_out_waiting(out, full, entries_max)
        room = min(entries_max - dealt, self.look_ahead_max - len(self.waiting))
        if out and room > 0 and self.due:
            self._read_due(room)
        if out and room > 0 and not self.blocked:
            permits = sum([consumer.permits / consumer.average_messages for consumer in out])
            taken = self.reader.take(min(room, max(1, int(permits))))
            if taken:
                entries = self._deliverable(taken)
                self._return(taken, entries, self._hand_out(entries, out, full))
                dealt += len(taken)
        for consumer, deliveries in (*full, *out.items()):
            if deliveries:
                self._count_out(
                    consumer,
                    deliveries,
                    sum([
                        delivery.message_count
                        if delivery.ack_set is None
                        else delivery.ack_set.bit_count()
                        for delivery in deliveries
                    ]),
                )  # fmt: skip
        return dealt

    def _hand_out(
        self,
        entries: list[Entry],
        out: Outgoing,
        full: list[tuple[Consumer, list[Delivery]]],
    ) -> int:
        """Delivers new entries to their owners or puts them in line; returns how many."""
        waiting, by_hash, draining = self.waiting, self.waiting.by_hash, self.draining
        hash_of, select = self.selector.hash_of, self.selector.select
        done = 0
        for entry in entries:
            if self.blocked:
                break
            done += 1
            count, key = count_and_key(entry)
            sticky_hash = hash_of(key)
            owner = select(sticky_hash)
            drain = draining.get(sticky_hash) if draining else None
            if drain is None and owner is not None and owner in out and sticky_hash not in by_hash:
                self._give(owner, entry, count, sticky_hash, 0, out, full)
                continue
            if drain is not None:
                drain.blocked_attempts += 1
            position = (entry.ledger_id, entry.entry_id)
            if waiting.park(position, sticky_hash) and drain is None:
                waiting.line_up(sticky_hash, owner)
            self._kept.keep(position, entry, count)
        return done

    def _hand_out_waiting(
        self,
        out: Outgoing,
        full: list[tuple[Consumer, list[Delivery]]],
        entries_max: int,
    ) -> int:
        """Delivers waiting entries to consumers that have room; returns how many it processed."""
        dealt = 0
        to_read: list[PositionPair] = []
        for consumer in list(out):
            while consumer in out and dealt < entries_max and not self.blocked:
                head = self.waiting.head(consumer)
                if head is None:
                    break
                dealt += 1
                position, sticky_hash = head
                kept = self._kept.take(position)
                if self.cursor.is_done(*position):
                    self._next_in_line(sticky_hash)
                    continue
                if kept is None and (entry := self.replays.take(position)) is not None:
                    kept = entry, count_and_key(entry)[0]
                if kept is not None:
                    self._next_in_line(sticky_hash)
                    times = self.counts.of(position)
                    self._give(consumer, *kept, sticky_hash, times, out, full)
                else:
                    # It leaves the heap until it is read; `_replays_read` lines it up again.
                    ahead = self.waiting.behind_head(sticky_hash, SAME_HASH_READ_AHEAD)
                    for candidate in (
                        position,
                        *(later for later in ahead if later not in self._kept),
                    ):
                        self._being_read[candidate] = sticky_hash
                        to_read.append(candidate)
                    if len(to_read) >= REPLAY_READ_ENTRIES_MAX:
                        break
        if to_read:
            self.replays.request(to_read)
        return dealt

    def _next_in_line(self, sticky_hash: int) -> None:
        if self.waiting.drop_head(sticky_hash):
            self._line_up(sticky_hash)

    def _give(
        self,
        consumer: Consumer,
        entry: Entry,
        count: int,
        sticky_hash: int,
        times: int,
        out: Outgoing,
        full: list[tuple[Consumer, list[Delivery]]],
    ) -> None:
        """Delivers one entry to a consumer in `out`; moves the consumer to `full` if it is."""
        messages, ack_set = count, None
        if count > 1:
            ack_set = self.cursor.remaining_batch(entry.ledger_id, entry.entry_id)
            if ack_set is not None:
                messages = ack_set.bit_count()
        out[consumer].append(Delivery(entry, count, times, ack_set))
        consumer.hold(entry.ledger_id, entry.entry_id, messages, sticky_hash)
        consumer.permits -= messages
        consumer.unacked += messages
        self.unacked += messages
        if 0 < self.limits.max_unacked_per_consumer <= consumer.unacked:
            consumer.blocked = True
        if consumer.blocked or consumer.permits <= 0:
            full.append((consumer, out.pop(consumer)))
        if 0 < self.limits.max_unacked_per_subscription <= self.unacked:
            self.blocked = True

    def _released_entry(self, consumer: Consumer, packed: int) -> None:
        if self.draining:
            sticky_hash = packed & HASH_MASK
            drain = self.draining.get(sticky_hash)
            if drain is not None and drain.holder is consumer:
                drain.entries -= 1
                if drain.entries == 0:
                    del self.draining[sticky_hash]
                    self.drained_total[consumer] = self.drained_total.get(consumer, 0) + 1
                    self._line_up(sticky_hash)
                    self._wake_due = True

    def _replay_later(self, position: PositionPair, packed: int) -> None:
        sticky_hash = packed & HASH_MASK
        if self.waiting.park(position, sticky_hash):
            self._line_up(sticky_hash)

    def _replay_aborted(self, position: PositionPair, packed: int) -> None:
        if packed:
            self._replay_later(position, packed)
        else:
            self._without_hash.add(position)
            self.replays.request((position,))

    def _read_due(self, room: int) -> None:
        """Reads due entries, to find their hash."""
        room = min(room, REPLAY_READ_ENTRIES_MAX) - len(self._without_hash)
        if room > 0 and (positions := self._take_due(room)):
            self._without_hash.update(positions)
            self.replays.request(positions)

    def _hashed(self, position: PositionPair) -> None:
        """Queues a returned position, which can be taken now, in the line of its hash."""
        self._without_hash.discard(position)
        entry = self.replays.take(position)
        if entry is None or self.cursor.is_done(*position):
            return
        count, key = count_and_key(entry)
        sticky_hash = self.selector.hash_of(key)
        if self.waiting.park(position, sticky_hash):
            self._line_up(sticky_hash)
        self._kept.keep(position, entry, count)

    def _replays_read(self, positions: Sequence[PositionPair]) -> None:
        for position in positions:
            if position in self._without_hash:
                self._hashed(position)
            sticky_hash = self._being_read.pop(position, 0)
            if sticky_hash:
                self._line_up(sticky_hash)
        self.dispatch()

    def _forget_replay(self, position: PositionPair) -> None:
        """Lets the position leave its line at the head, where the cursor shows that it is acked."""
        self._without_hash.discard(position)
        if sticky_hash := self._being_read.pop(position, 0):
            self._line_up(sticky_hash)
            self._wake_due = True

    def _forget_replay_up_to(self, position: PositionPair) -> None:
        self.waiting.drop_up_to(position)
        self._kept.drop_up_to(position)
        self._without_hash = {later for later in self._without_hash if later > position}
        self._being_read = {
            later: sticky_hash
            for later, sticky_hash in self._being_read.items()
            if later > position
        }
        self._line_up_all()

    def _clear_replay(self) -> None:
        self.waiting.clear()
        self._without_hash.clear()
        self._being_read.clear()
        self._kept.clear()
        self.draining.clear()

    @property
    def waiting_count(self) -> int:
        """Positions that were read, or returned, and wait for delivery."""
        return len(self.waiting)

    def facts(self) -> DispatchFacts:
        """See `Dispatcher.facts`. Names at most HASHES_SHOWN_MAX hashes, the oldest first."""
        facts = super().facts()
        facts.look_ahead_max = self.look_ahead_max
        by_hash, shown = self.waiting.by_hash, {*self.draining}
        oldest = nsmallest(HASHES_SHOWN_MAX, by_hash, key=lambda waiting: by_hash[waiting][0])
        facts.hashes = tuple(
            self.hash_facts(sticky_hash)
            for sticky_hash in sorted(
                (*oldest, *(shown - set(oldest))),
                key=lambda waiting: by_hash[waiting][0] if waiting in by_hash else LATEST,
            )[:HASHES_SHOWN_MAX]
        )
        return facts

    def hash_facts(self, sticky_hash: int) -> HashFacts:
        """Returns the state of one hash."""
        line, drain = self.waiting.by_hash.get(sticky_hash), self.draining.get(sticky_hash)
        owner = self.selector.select(sticky_hash)
        return HashFacts(
            sticky_hash,
            head=Position(*line[0]) if line else None,
            waiting=len(line) if line else 0,
            owner=None if owner is None else owner.label,
            holder=None if drain is None else drain.holder.label,
            held_entries=0 if drain is None else drain.entries,
            since_ms=0 if drain is None else drain.since_ms,
            blocked_attempts=0 if drain is None else drain.blocked_attempts,
        )

    def waits(self, ledger_id: int, entry_id: int) -> bool:
        """See `Dispatcher.waits`."""
        position = (ledger_id, entry_id)
        return (
            position in self._without_hash
            or super().waits(*position)
            or any(position in line for line in self.waiting.by_hash.values())
        )

    def consumer_stats(self, consumer: Consumer) -> ConsumerStats:
        """See `Dispatcher.consumer_stats`."""
        stats = super().consumer_stats(consumer)
        mine = {
            sticky_hash: drain
            for sticky_hash, drain in self.draining.items()
            if drain.holder is consumer
        }
        stats.draining_hashes_count = len(mine)
        stats.draining_hashes_cleared_total = self.drained_total.get(consumer, 0)
        stats.draining_hashes_unacked_messages = sum(drain.entries for drain in mine.values())
        stats.draining_hashes = [
            DrainingHashStats(sticky_hash, drain.entries, drain.blocked_attempts)
            for sticky_hash, drain in sorted(mine.items())
        ]
        stats.key_hash_range_arrays = self.selector.ranges().get(consumer, [])
        return stats

    def fill_stats(self, stats: SubscriptionStats) -> None:
        """See `Dispatcher.fill_stats`."""
        super().fill_stats(stats)
        stats.key_shared_mode = self.policy.mode.name
        stats.allow_out_of_order_delivery = self.policy.allow_out_of_order

    def state(self) -> dict[str, object]:
        """See `Dispatcher.state`."""
        return super().state() | {
            "look_ahead_max": self.look_ahead_max,
            "waiting_heads": {
                sticky_hash: str(Position(*line[0]))
                for sticky_hash, line in self.waiting.by_hash.items()
            },
            "draining": {
                sticky_hash: (drain.holder.name, drain.entries)
                for sticky_hash, drain in self.draining.items()
            },
        }
