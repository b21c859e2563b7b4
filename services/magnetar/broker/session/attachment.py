"""Producers and consumers of one connection, attached or still attaching.

The session records an attachment when it reads the command, because the client's next command may
already close it, at any await of the first. The client gets no answer to the first command then.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from magnetar.broker.subscription.api import Subscription
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.topic.api import Topic

Key = tuple[str, int]
"""`producer` or `consumer`, and its id."""


class Attaching:
    """A producer or consumer whose command is still being handled; it removes itself from
    `pending`.

    `end` cancels the handler, which detaches a producer or consumer that it has already attached.
    """

    __slots__ = ("_ended", "_key", "_pending", "_task")

    def __init__(self, pending: "dict[Key, Attaching]", key: Key) -> None:
        self._pending = pending
        self._key = key
        self._task: asyncio.Task[Any] | None = None
        self._ended = False
        pending[key] = self

    async def run(self, attach: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `attach`, unless the client has closed the producer or consumer already."""
        if self._ended:
            return
        self._task = asyncio.current_task()
        try:
            await attach()
        finally:
            if self._pending.get(self._key) is self:
                del self._pending[self._key]

    def end(self) -> None:
        """Stops attaching: the client closes the producer or consumer."""
        self._ended = True
        self._pending.pop(self._key, None)
        if self._task is not None:
            self._task.cancel()


@dataclass(slots=True)
class Attachment:
    """A consumer of this connection with its topic and subscription."""

    topic: Topic
    subscription: Subscription
    consumer: Consumer

    @property
    def attached(self) -> bool:
        """False once the subscription has disconnected the consumer, after a seek for instance."""
        return self.consumer in self.subscription.consumers

    def detach(self) -> None:
        """Detaches the consumer. Idempotent."""
        self.topic.remove_consumer(self.subscription, self.consumer)
