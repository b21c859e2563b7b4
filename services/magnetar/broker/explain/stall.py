"""Finds dispatchers that could deliver and do not, and logs each stall once.

The broker checks after each rate period. A subscription is a suspect if the judgment of `explain`
says so; it has stalled if it is still a suspect at the next check and has delivered nothing
meanwhile. A subscription without consumers or without a backlog costs one comparison.

Bound: at most one suspect per subscription with consumers and a backlog.
"""

from typing import Final

from magnetar.broker.explain.gather.parts import Parts
from magnetar.broker.explain.gather.subscription import snapshot
from magnetar.broker.explain.judge.delivery import stalled
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import as_persistent
from magnetar.core.ids import Position
from magnetar.core.log import get_logger

QUIET_MS: Final = 1_000
"""A subscription that delivered something within this time is not looked at more closely."""

log = get_logger("magnetar.dispatch")

Progress = tuple[int, Position]
"""How many messages were delivered, and the read position."""


class StallWatch:
    """The subscriptions that seem to have stalled, and how many stalls were found."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._suspects: dict[PersistentSubscription, Progress] = {}
        self._stalled: set[PersistentSubscription] = set()
        self.stalls_total = 0

    @property
    def stalled_now(self) -> int:
        """How many subscriptions have stalled."""
        return len(self._stalled)

    def check(self, topic: Topic) -> None:
        """Checks the subscriptions of a topic; call it once per rate period."""
        persistent = as_persistent(topic)
        if persistent is None:
            return
        for subscription in persistent.subscriptions.values():
            if not subscription.consumers or not subscription.backlog or self._moves(subscription):
                self._forget(subscription)
                continue
            state = snapshot(self._parts, persistent, subscription)
            if not stalled(state):
                self._forget(subscription)
                continue
            progress = _progress(subscription)
            if self._suspects.get(subscription) != progress:
                self._forget(subscription)
                self._suspects[subscription] = progress
            elif subscription not in self._stalled:
                self._stalled.add(subscription)
                self.stalls_total += 1
                log.error(
                    "dispatch stalled: unload the topic, and report this line",
                    topic=persistent.full_name,
                    subscription=subscription.name,
                    quiet_ms=state.now_ms - state.last_event_ms,
                    readable=state.readable,
                    permits=sum(consumer.permits for consumer in state.consumers),
                    read_position=str(state.read_position),
                    mark_delete=str(state.mark_delete),
                    last_message=str(state.last_confirmed),
                    state=str(state.dump),
                )

    def round_ended(self) -> None:
        """Forgets subscriptions that were closed; call it after all topics were checked."""
        for subscription in [suspect for suspect in self._suspects if suspect.closed]:
            self._forget(subscription)

    def _moves(self, subscription: PersistentSubscription) -> bool:
        """Whether a consumer lately got something."""
        now_ms = self._parts.clock.now_ms()
        return any(
            0 <= now_ms - consumer.last_consumed_ms < QUIET_MS
            for consumer in subscription.consumers
        )

    def _forget(self, subscription: PersistentSubscription) -> None:
        if self._suspects:
            self._suspects.pop(subscription, None)
            self._stalled.discard(subscription)


def _progress(subscription: PersistentSubscription) -> Progress:
    delivered = sum(consumer.messages_out for consumer in subscription.consumers)
    return delivered, subscription.cursor.read_position
