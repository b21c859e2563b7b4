"""Sends ACTIVE_CONSUMER_CHANGE to Failover consumers, once their clients can handle it.

A client may know of its consumer only after the answer to SUBSCRIBE: Go's client drops commands
that arrive before that answer or right behind it. The first FLOW proves that the client knows its
consumer. A new consumer is therefore notified with its first FLOW, before the messages which that
FLOW releases. A consumer that sends no FLOW is notified after `UNHEARD_S_MAX`, because its
application may wait for the change before it receives anything.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from magnetar.broker.subscription.consumer import Consumer

UNHEARD_S_MAX: Final = 1.0


class ActiveNews:
    """Notifies the consumers of a subscription which one is active.

    `is_active` returns whether a consumer is active now, or None if `changed` is about to be
    called.
    """

    __slots__ = ("_is_active", "_unheard")

    def __init__(self, is_active: Callable[[Consumer], bool | None]) -> None:
        self._is_active = is_active
        self._unheard: dict[Consumer, asyncio.TimerHandle] = {}

    def joined(self, consumer: Consumer) -> None:
        """Schedules the first notification of a new consumer."""
        loop = asyncio.get_running_loop()
        self._unheard[consumer] = loop.call_later(UNHEARD_S_MAX, self.hears, consumer)

    def hears(self, consumer: Consumer) -> None:
        """Sends the first notification, if it is still due: the client knows its consumer now."""
        timer = self._unheard.pop(consumer, None)
        if timer is not None:
            timer.cancel()
            self._tell(consumer)

    def left(self, consumer: Consumer) -> None:
        """Cancels the first notification of a consumer that has left."""
        timer = self._unheard.pop(consumer, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Cancels all notifications. No call may follow."""
        for timer in self._unheard.values():
            timer.cancel()
        self._unheard.clear()
        self._is_active = _unknown

    def changed(self, consumers: Iterable[Consumer]) -> None:
        """Notifies the consumers after a change; new ones get the state of their own first time."""
        for consumer in consumers:
            if consumer not in self._unheard:
                self._tell(consumer)

    def _tell(self, consumer: Consumer) -> None:
        active = self._is_active(consumer)
        if active is None:
            return
        consumer.sink.active_consumer_change(consumer.spec.consumer_id, active=active)


def _unknown(_consumer: Consumer) -> bool | None:
    """Replaces `is_active` once the dispatcher is closed."""
    return None
