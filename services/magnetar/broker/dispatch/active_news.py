"""Telling Failover consumers whether they are the active one, when their clients can hear it.

A client may learn of its consumer only from the answer to SUBSCRIBE: Go's drops what comes before
that or right behind it. Its first FLOW shows that it knows. So a consumer that has just joined is
told with its first FLOW, before the messages which that sets free; one that lets nothing flow is
told after `UNHEARD_S_MAX`, as the application may wait for the news before it receives anything.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from magnetar.broker.subscription.consumer import Consumer

UNHEARD_S_MAX: Final = 1.0


class ActiveNews:
    """See the module's text.

    `is_active` says what holds for a consumer now; None where `changed` is about to be called.
    """

    __slots__ = ("_is_active", "_unheard")

    def __init__(self, is_active: Callable[[Consumer], bool | None]) -> None:
        self._is_active = is_active
        self._unheard: dict[Consumer, asyncio.TimerHandle] = {}

    def joined(self, consumer: Consumer) -> None:
        """It will be told soon."""
        loop = asyncio.get_running_loop()
        self._unheard[consumer] = loop.call_later(UNHEARD_S_MAX, self.hears, consumer)

    def hears(self, consumer: Consumer) -> None:
        """Its client knows of it by now: tells it, where that has not been done."""
        timer = self._unheard.pop(consumer, None)
        if timer is not None:
            timer.cancel()
            self._tell(consumer)

    def left(self, consumer: Consumer) -> None:
        """There is nobody to tell any more."""
        timer = self._unheard.pop(consumer, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Cancels what was to be sent. No call may follow."""
        for timer in self._unheard.values():
            timer.cancel()
        self._unheard.clear()
        self._is_active = _unknown

    def changed(self, consumers: Iterable[Consumer]) -> None:
        """Tells those that can hear it; the others will be told what holds then."""
        for consumer in consumers:
            if consumer not in self._unheard:
                self._tell(consumer)

    def _tell(self, consumer: Consumer) -> None:
        active = self._is_active(consumer)
        if active is None:
            return
        consumer.sink.active_consumer_change(consumer.spec.consumer_id, active=active)


def _unknown(_consumer: Consumer) -> bool | None:
    """Stands for `is_active` once the dispatcher is closed."""
    return None
