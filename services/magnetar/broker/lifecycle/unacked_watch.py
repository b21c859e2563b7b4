"""Caps the unacknowledged messages that the shared consumers of a broker hold together.

    maxUnackedMessagesPerBroker                         the cap; 0 switches the watch off
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked    a subscription's share of it

The watch counts every CHECK_INTERVAL_S, as Pulsar does, so a dispatch pays nothing for the cap, and
the count may exceed it by what is dispatched meanwhile. Above the cap, each subscription has its
share as the cap of its own: those that hold more pause until half of it is acknowledged, the others
go on. The shares end once the count is down to half of the broker's cap.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final

from magnetar.broker.dispatch.multiple import MultipleConsumersDispatcher
from magnetar.broker.rates.broker_limits import BrokerLimits
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.api import Topic
from magnetar.core.log import get_logger

CHECK_INTERVAL_S: Final = 0.6

log = get_logger("magnetar.broker")


class UnackedWatch:
    """Switches the shares of subscriptions on and off; `check` it every CHECK_INTERVAL_S."""

    def __init__(
        self,
        limits: BrokerLimits,
        each_topic: Callable[[], AsyncIterator[Topic]],
        notify: Callable[[], None],
    ) -> None:
        """`notify` makes all topics apply their policies again."""
        self._limits = limits
        self._each_topic = each_topic
        self._notify = notify
        self._cap = 0
        self._share = 0
        self.unacked = 0
        """The count of the last check."""

    @property
    def enabled(self) -> bool:
        """Whether there is a cap, or shares to end."""
        return self._cap > 0 or self._limits.unacked_share > 0

    def set(self, cap: int, share: float) -> None:
        """Sets the broker's cap, 0 for none, and the share of a subscription."""
        self._cap, self._share = cap, max(1, int(cap * share))

    async def check(self) -> None:
        """Counts, and switches the shares if the count has crossed a bound."""
        if not self.enabled:
            return
        unacked = 0
        async for topic in self._each_topic():
            for subscription in topic.subscriptions.values():
                unacked += _unacked(subscription)
        self.unacked = unacked
        share = self._limits.unacked_share
        if self._cap > 0 and unacked > self._cap:
            share = self._share
        elif unacked <= self._cap // 2 or self._cap <= 0:
            share = 0
        elif share:
            share = self._share
        if share == self._limits.unacked_share:
            return
        log.warning(
            "unacked messages of the broker",
            unacked=unacked, cap=self._cap, cap_of_each_subscription=share or "none",
        )  # fmt: skip
        self._limits.unacked_share = share
        self._notify()


def _unacked(subscription: object) -> int:
    if isinstance(subscription, PersistentSubscription):
        dispatcher = subscription.dispatcher
        if isinstance(dispatcher, MultipleConsumersDispatcher):
            return dispatcher.unacked
    return 0
