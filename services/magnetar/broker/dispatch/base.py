"""The common part of the dispatchers of all subscription types.

Every event that may allow a delivery wakes the dispatcher: permits, an append, a finished read, a
drained socket, an ack that lifts a cap, a redelivery. The dispatcher then delivers all entries that
it can at once, without a task, future or await per message. One turn delivers at most
`TURN_ENTRIES_MAX` entries, and a later turn of the event loop continues, so that one backlog cannot
starve the rest of the process.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from magnetar.broker.dispatch.facts import DispatchFacts
from magnetar.broker.dispatch.filtering import FILTERED_AT_ONCE_MAX, EntryFilters
from magnetar.broker.dispatch.reader import EntryReader
from magnetar.broker.rates.dispatch_rate import DispatchThrottle
from magnetar.broker.subscription.consumer import AVERAGE_WEIGHT, Consumer
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.subscription.stats import (
    ConsumerStats,
    SubscriptionStats,
    consumer_stats,
)
from magnetar.core.clock import Clock
from magnetar.core.ids import Position
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.pending_acks import Txn, TxnAcks
from magnetar.managed_ledger.position_set import PositionSet

TURN_ENTRIES_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class DispatchContext:
    """The parts of a subscription that its dispatcher works with."""

    topic: str
    ledger: ManagedLedger
    cursor: Cursor
    limits: SubscriptionLimits
    clock: Clock
    tasks: TaskSet


class Dispatcher(ABC):
    """Hands the entries of one cursor to consumers of one subscription type."""

    type: ClassVar[SubType]

    def __init__(self, context: DispatchContext) -> None:
        self.context = context
        self.ledger = context.ledger
        self.cursor = context.cursor
        self.limits = context.limits
        self.clock = context.clock
        self.consumers: list[Consumer] = []
        self.reader = EntryReader(context.ledger, context.cursor, context.tasks, context.limits)
        self.suspended = False
        """While set, the dispatcher delivers nothing."""
        self.throttle: DispatchThrottle | None = None
        """Limits the rate of delivery; None for no limit."""
        self.filters: EntryFilters | None = None
        """Judges new entries before they are delivered; None for no filter."""
        self._in_turn = False
        self._turn_due = False
        self._wake_due = False

    def set_limits(self, limits: SubscriptionLimits) -> None:
        """Replaces the limits at once, except those of the reader."""
        self.limits = limits
        self.dispatch()

    def set_filters(self, filters: EntryFilters | None) -> None:
        """Sets the filters that new entries must pass; None for none."""
        self.filters = filters

    def set_delayed(self, delayed: PositionSet) -> None:  # noqa: B027 - few types delay
        """Sets the entries of the topic that are delayed; types with one consumer ignore them."""

    def released(self, positions: PositionSet) -> None:  # noqa: B027 - few types delay
        """Records that entries are delayed no more."""

    @abstractmethod
    def add_consumer(self, consumer: Consumer) -> None:
        """Attaches a consumer; raises ConsumerBusy or ConsumerAssignError."""

    @abstractmethod
    def remove_consumer(self, consumer: Consumer) -> None:
        """Detaches an attached consumer; its unacknowledged entries are redelivered to others."""

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Adds permits of a consumer and dispatches."""
        consumer.permits += permits
        consumer.last_flow_ms = self.clock.now_ms()
        if not consumer.first_flow_ms:
            consumer.first_flow_ms = consumer.last_flow_ms
        self.dispatch()

    def dispatch(self) -> None:
        """Delivers all entries that can be delivered now. Cheap if there are none."""
        if self._in_turn or self.suspended:
            return
        self._in_turn = True
        try:
            budget = TURN_ENTRIES_MAX
            throttle, filters = self.throttle, self.filters
            while budget > 0:
                most = budget if throttle is None else throttle.entries_max(budget)
                if filters is not None:
                    most = min(most, FILTERED_AT_ONCE_MAX)
                if not most or not (moved := self._step(most)):
                    break
                budget -= moved if filters is None else max(moved, filters.judged())
        finally:
            self._in_turn = False
        if budget <= 0:
            self._dispatch_later()
        else:
            self.announce_end_if_terminated()

    def _dispatch_later(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._due)

    def _due(self) -> None:
        self._turn_due = False
        self.dispatch()

    @abstractmethod
    def _step(self, entries_max: int) -> int:
        """Delivers at most `entries_max` entries; returns how many entries it processed."""

    @abstractmethod
    def settle(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Records that a whole entry is acknowledged. Call `woken()` after the last of a group."""

    @abstractmethod
    def settle_part(
        self, consumer: Consumer, ledger_id: int, entry_id: int, remaining: int
    ) -> None:
        """Records that only `remaining` messages of a batch are unacknowledged."""

    @abstractmethod
    def settle_up_to(self, position: Position) -> None:
        """Records that all entries up to `position` are acknowledged: by expiry, skip or an ack."""

    @abstractmethod
    def withhold(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Records that a transaction has acked an entry. Call `woken()` as for `settle`."""

    @abstractmethod
    def committed(self, acks: TxnAcks) -> None:
        """Records that these acks of a transaction count; the cursor has them."""

    @abstractmethod
    def aborted(self, acks: TxnAcks) -> None:
        """Redelivers what these acks of a transaction withheld; the cursor has dropped them."""

    def joined(self, consumer: Consumer, txn: Txn) -> None:  # noqa: B027 - not for all types
        """Records that the consumer acks in the transaction: its client learns how that ends."""

    def bypassed(self, txn: Txn, acks: TxnAcks) -> Sequence[Consumer]:  # noqa: ARG002
        """Returns the consumers to detach before these acks of a transaction are dropped.

        They attached later and got only messages behind those of these acks. Their next cumulative
        ack would also count for the messages that the abort brings back, which they never got.
        """
        return ()

    def woken(self) -> None:
        """Dispatches if the entries just settled allow a delivery."""
        if self._wake_due:
            self._wake_due = False
            self.dispatch()

    @abstractmethod
    def redeliver(
        self, consumer: Consumer, positions: Iterable[tuple[int, int]] | None, epoch: int | None
    ) -> None:
        """Redelivers entries that the consumer holds: the given positions, or all."""

    def _deliverable(self, taken: list[Entry]) -> list[Entry]:
        """Returns those of `taken` that may be delivered: not acknowledged, and not filtered."""
        entries = self.cursor.filter_unacked(taken)
        return entries if self.filters is None else self.filters.accepted(entries)

    def _return(self, taken: list[Entry], live: list[Entry], done: int) -> None:
        """Returns entries to the reader: those from the first of `live` on that was not delivered.

        `live` are those of `taken` that may be delivered now. The others return as well: an entry
        that is pending in a transaction must be read again if that aborts.
        """
        if done < len(live):
            at = done if len(live) == len(taken) else taken.index(live[done])
            self.reader.give_back(taken[at:])

    def rewind(self) -> None:
        """Restarts reading behind the mark-delete position; nothing may be outstanding."""
        self.reader.rewind(self.reader.source.next_position(self.cursor.mark_delete))

    def announce_end_if_terminated(self) -> None:
        """Calls `announce_end` once the topic takes no more messages."""
        if self.ledger.terminated_at is not None:
            self.announce_end()

    def announce_end(self) -> None:
        """Sends END_OF_TOPIC to each consumer once, if the terminated topic is drained.

        A consumer gets it only after its first FLOW: before, its client may not know the consumer
        and drop the command.
        """
        if self.cursor.backlog == 0:
            for consumer in self.consumers:
                if consumer.first_flow_ms and not consumer.end_announced:
                    consumer.end_announced = True
                    consumer.sink.end_of_topic(consumer.spec.consumer_id)

    def close(self) -> None:
        """Stops reading, for good. The subscription disconnects the consumers.

        Drops every reference from a part back to the dispatcher: a closed dispatcher must be freed
        without the garbage collector (`core.garbage`).
        """
        self.reader.close()

    def consumer_stats(self, consumer: Consumer) -> ConsumerStats:
        """The statistics of one consumer."""
        return consumer_stats(consumer)

    def fill_stats(self, stats: SubscriptionStats) -> None:
        """Adds the dispatcher's own statistics."""
        if self.reader.failure is not None:
            failure = self.reader.failure
            stats.read_failure = f"{failure.position}: {failure.error} ({failure.attempts} times)"

    def facts(self) -> DispatchFacts:
        """What keeps entries from being delivered, for diagnosis."""
        reader = self.reader
        return DispatchFacts(
            buffered=reader.buffered,
            reading=reader.reading,
            turn_due=self._turn_due,
            failure=reader.failure,
        )

    def redeliveries(self, ledger_id: int, entry_id: int) -> int:  # noqa: ARG002
        """How often the entry was redelivered; 0 if the dispatcher does not count."""
        return 0

    def waits(self, ledger_id: int, entry_id: int) -> bool:  # noqa: ARG002
        """Whether the entry was read or returned, and waits for delivery."""
        return False

    @abstractmethod
    def state(self) -> dict[str, object]:
        """The dispatcher's internal state, for diagnosis."""

    def _count_out(self, consumer: Consumer, deliveries: Sequence[Delivery], messages: int) -> None:
        """Counts deliveries and writes them; their permits were taken before."""
        consumer.messages_out += messages
        size_bytes = sum([len(delivery.entry.data) for delivery in deliveries])
        consumer.bytes_out += size_bytes
        if self.throttle is not None:
            self.throttle.took(len(deliveries), messages, size_bytes)
        average = max(1.0, messages / len(deliveries))
        now_ms = consumer.last_consumed_ms = self.clock.now_ms()
        if consumer.first_sent_ms:
            average += (consumer.average_messages - average) * AVERAGE_WEIGHT
        else:
            consumer.first_sent_ms = now_ms
        consumer.average_messages = average
        consumer.sink.deliver(consumer.spec.consumer_id, deliveries, consumer.epoch)
