"""What the dispatchers of all subscription types share.

A dispatcher is woken by whatever may let an entry move: permits, an append, a finished read, a
drained socket, an ack that lifts a cap, a redelivery. It then hands over all it can at once and
returns: no task, future or await per message. One turn hands over at most `TURN_ENTRIES_MAX`
entries; what is left goes with a later turn of the loop, so that one backlog cannot starve the rest
of the process.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from magnetar.broker.dispatch.reader import EntryReader
from magnetar.broker.rates.dispatching import DispatchThrottle
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
from magnetar.managed_ledger.managed_ledger import ManagedLedger

TURN_ENTRIES_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class DispatchContext:
    """What a subscription gives its dispatcher to work with."""

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
        self.resting = False
        """While it is set, nothing is handed over."""
        self.throttle: DispatchThrottle | None = None
        """How fast it may hand over; None: as fast as it can."""
        self._in_turn = False
        self._turn_due = False
        self._wake_due = False

    def set_limits(self, limits: SubscriptionLimits) -> None:
        """Other limits, at once. How entries are read stays as it was."""
        self.limits = limits
        self.dispatch()

    # -- consumers

    @abstractmethod
    def add_consumer(self, consumer: Consumer) -> None:
        """Attaches a consumer; raises what the client is to be told."""

    @abstractmethod
    def remove_consumer(self, consumer: Consumer) -> None:
        """Detaches an attached consumer; what it held unacknowledged goes to others, or back."""

    # -- what wakes it

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer has room for `permits` more messages."""
        consumer.permits += permits
        consumer.last_flow_ms = self.clock.now_ms()
        if not consumer.first_flow_ms:
            consumer.first_flow_ms = consumer.last_flow_ms
        self.dispatch()

    def dispatch(self) -> None:
        """Hands over what can be handed over now. Cheap where nothing can."""
        if self._in_turn or self.resting:
            return
        self._in_turn = True
        try:
            budget = TURN_ENTRIES_MAX
            throttle = self.throttle
            while budget > 0:
                most = budget if throttle is None else throttle.entries_max(budget)
                if not most or not (moved := self._step(most)):
                    break
                budget -= moved
        finally:
            self._in_turn = False
        if budget <= 0:
            self._dispatch_later()
        elif self.ledger.terminated_at is not None:
            self.tell_end()

    def _dispatch_later(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._due)

    def _due(self) -> None:
        self._turn_due = False
        self.dispatch()

    @abstractmethod
    def _step(self, entries_max: int) -> int:
        """Hands over at most `entries_max` entries; how many entries were dealt with."""

    # -- acknowledgement and redelivery

    @abstractmethod
    def settle(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """An entry was acknowledged as a whole. `woken()` is called after the last of a group."""

    @abstractmethod
    def settle_part(
        self, consumer: Consumer, ledger_id: int, entry_id: int, remaining: int
    ) -> None:
        """Of a batch only `remaining` messages are left unacknowledged."""

    @abstractmethod
    def settle_up_to(self, position: Position) -> None:
        """All up to `position` was acknowledged at once: by expiry, a skip or a cumulative ack."""

    def woken(self) -> None:
        """Dispatches where what was just settled lets something move."""
        if self._wake_due:
            self._wake_due = False
            self.dispatch()

    @abstractmethod
    def redeliver(
        self, consumer: Consumer, positions: Iterable[tuple[int, int]] | None, epoch: int | None
    ) -> None:
        """Sends again what the consumer holds: the positions named, or all."""

    # -- life

    def rewind(self) -> None:
        """Starts again behind the mark-delete position, with nothing outstanding."""
        self.reader.rewind(self.reader.source.next_position(self.cursor.mark_delete))

    def tell_end(self) -> None:
        """Tells each consumer once that a terminated topic is drained.

        Not before its first FLOW: until then its client may not know of it, and drop the news.
        """
        if self.cursor.backlog == 0:
            for consumer in self.consumers:
                if consumer.first_flow_ms and not consumer.end_told:
                    consumer.end_told = True
                    consumer.sink.end_of_topic(consumer.spec.consumer_id)

    def close(self) -> None:
        """Stops reading, for good. The subscription disconnects the consumers.

        Drops every reference from a part back to the dispatcher: what is closed must be freed
        without the garbage collector (`core.collecting`).
        """
        self.reader.close()

    def consumer_stats(self, consumer: Consumer) -> ConsumerStats:
        """What statistics say of one consumer."""
        return consumer_stats(consumer)

    def fill_stats(self, stats: SubscriptionStats) -> None:
        """Adds what only the dispatcher knows."""
        if self.reader.failure is not None:
            failure = self.reader.failure
            stats.read_failure = f"{failure.position}: {failure.error} ({failure.attempts} times)"

    @abstractmethod
    def state(self) -> dict[str, object]:
        """What is inside, for diagnosis."""

    # -- shared by the hot paths

    def _count_out(self, consumer: Consumer, deliveries: Sequence[Delivery], messages: int) -> None:
        """Accounts for deliveries and writes them; permits were taken already."""
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
