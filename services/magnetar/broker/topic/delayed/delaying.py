"""The base of topics with delayed messages: connects the index with subscriptions and policies.

A topic without delayed messages has no `DelayedDelivery`, and pays one check when it is loaded.
"""

from collections.abc import Mapping

from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.topic.governed import GovernedTopic
from magnetar.broker.topic.transactions.admission import Admission
from magnetar.core.ids import Position
from magnetar.managed_ledger.appender import OnAppended
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position_set import PositionSet
from magnetar.managed_ledger.record import DELAYED_CURSOR
from magnetar.wire.events import SendRun


class DelayingTopic(GovernedTopic):
    """A topic whose messages may be delayed (`DelayedTopic`)."""

    __slots__ = ("delays", "managed_ledger")

    subscriptions: Mapping[str, PersistentSubscription]

    def __init__(self, managed_ledger: ManagedLedger, context: TopicContext) -> None:
        super().__init__(context)
        self.managed_ledger = managed_ledger
        self.delays: DelayedDelivery | None = None
        """None until the topic has a delayed message."""

    async def load_delays(self) -> None:
        """Restores the index, if one is stored. Raises MagnetarError."""
        ledger = self.managed_ledger
        if DELAYED_CURSOR in ledger.cursors or DELAYED_CURSOR in ledger.broken_cursors:
            await self._delays().load()

    def _delays(self) -> DelayedDelivery:
        if self.delays is None:
            context = self._context
            self.delays = DelayedDelivery(self, context.delays, context.clock, context.tasks)
        return self.delays

    def _admission_of_delay(self, run: SendRun) -> Admission:
        """Returns whether a message with a delivery time may be stored now."""
        return self._delays().admission(run)

    def _delaying(self, run: SendRun, on_appended: OnAppended) -> OnAppended:
        """Returns the callback for the log of a run that has a delivery time."""
        return on_appended if self.delays is None else self.delays.appending(run, on_appended)

    def set_delayed(self, delayed: PositionSet) -> None:
        """Gives all subscriptions the entries that are delayed."""
        for subscription in self.subscriptions.values():
            subscription.set_delayed(delayed)

    def released(self, positions: PositionSet) -> None:
        """Notifies all subscriptions of entries that are delayed no more."""
        for subscription in list(self.subscriptions.values()):
            subscription.released(positions)

    def resume_gate(self) -> None:
        """Asks for the admission of held messages again."""
        if self.gate is not None:
            self.gate.resume()

    async def delayed_until(self, position: Position) -> int | None:
        """Returns until when an entry is delayed for subscriptions of shared types, in ms.

        None if it is not delayed. Raises MagnetarError if the entry cannot be read.
        """
        return None if self.delays is None else await self.delays.delayed_until(position)
