"""Handling of messages by a user's function: bounded, ordered by key, acknowledged for it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from magnetar.client.errors import AlreadyClosed, InvalidConfiguration
from magnetar.client.message import Message
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet

if TYPE_CHECKING:
    from magnetar.client.consumer.consumer import Consumer

log = get_logger("magnetar.client.listener")

Handle = Callable[[Message[Any]], Awaitable[object]]


class _ByKey:
    """Which messages wait for another of the same key."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[Message[Any]]] = {}
        self._arrived: dict[int, Message[Any]] = {}
        """The waiting messages of all keys, in their order."""

    def begin(self, key: bytes, message: Message[Any]) -> bool:
        """Whether the message may be handled now; if not, it waits for those before it."""
        queue = self._waiting.get(key)
        if queue is not None:
            queue.append(message)
            self._arrived[id(message)] = message
            return False
        self._waiting[key] = deque()
        return True

    def next(self, key: bytes) -> Message[Any] | None:
        """The next message of the key, or None, which frees the key."""
        queue = self._waiting[key]
        if queue:
            message = queue.popleft()
            del self._arrived[id(message)]
            return message
        del self._waiting[key]
        return None

    def clear(self) -> list[Message[Any]]:
        """Forgets and returns the messages that wait."""
        waiting = list(self._arrived.values())
        self._arrived.clear()
        self._waiting = {key: deque() for key in self._waiting}
        return waiting


async def run_listener(
    consumer: "Consumer[Any]", handle: Handle, concurrency: int, *, ordered_by_key: bool
) -> None:
    """See `Consumer.run`."""
    if concurrency < 1:
        raise InvalidConfiguration(f"concurrency must be at least 1, not {concurrency}")
    slots = asyncio.Semaphore(concurrency)
    keys = _ByKey()

    async def work(message: Message[Any], key: bytes | None) -> None:
        current: Message[Any] | None = message
        while current is not None:
            try:
                await _handle(consumer, handle, current)
            finally:
                slots.release()
            current = keys.next(key) if key is not None else None

    tasks = TaskSet("listener")
    unbegun: list[Message[Any]] = []
    try:
        async for message in consumer:
            unbegun = [message]
            await slots.acquire()
            unbegun = []
            key = (message.ordering_key or message.key_bytes) if ordered_by_key else None
            if key is not None and not keys.begin(key, message):
                continue  # it keeps its slot, so that waiting messages are bounded as well
            tasks.start(work(message, key), "message")
        for _ in range(concurrency):  # each slot is free once its message is handled
            await slots.acquire()
    finally:
        for message in reversed(keys.clear() + unbegun):
            message.entry.source.untake(message)
        await tasks.stop()


async def _handle(consumer: "Consumer[Any]", handle: Handle, message: Message[Any]) -> None:
    """Handles and acknowledges a message; raises nothing, so that those of its key follow."""
    try:
        await handle(message)
    except asyncio.CancelledError:
        await _nack(consumer, message)
        raise
    except Exception as error:  # users' code may raise anything
        log.error("handler failed, the message comes again", error=repr(error), exc_info=error)
        await _nack(consumer, message)
        return
    try:
        await consumer.ack(message)
    except Exception as error:  # noqa: BLE001  # interceptors are users' code as well
        log.warning("message was handled and not acknowledged", error=repr(error))


async def _nack(consumer: "Consumer[Any]", message: Message[Any]) -> None:
    try:
        await consumer.nack(message)
    except AlreadyClosed:
        return  # it comes again by itself
    except Exception as error:  # noqa: BLE001  # interceptors are users' code
        log.warning("negative acknowledgment failed", error=repr(error))
