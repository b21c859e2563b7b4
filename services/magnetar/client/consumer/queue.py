"""The receiver queue: messages that wait for the user, or users that wait for a message.

A message is handed to exactly one caller. If that caller is cancelled in the turn in which it got
the message, the message returns to the front of the queue.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from magnetar.client.message import Message


class MessageQueue:
    """The messages of all topics and partitions of one consumer."""

    __slots__ = ("_failure", "_loop", "_waiters", "messages", "size_bytes")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.messages: deque[Message[Any]] = deque()
        self._waiters: deque[asyncio.Future[Message[Any]]] = deque()
        self._failure: Exception | None = None
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def waiting(self) -> int:
        """The number of callers that wait for a message."""
        return len(self._waiters)

    def put(self, messages: Iterable[Message[Any]]) -> None:
        """Adds messages, and hands them to those that wait."""
        queued = self.messages
        for message in messages:
            self.size_bytes += len(message.data)
            queued.append(message)
        if self._waiters:
            self._hand_out()

    def _hand_out(self) -> None:
        waiters, queued = self._waiters, self.messages
        while waiters and queued:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(self._pop())

    def _pop(self) -> Message[Any]:
        message = self.messages.popleft()
        self.size_bytes -= len(message.data)
        return message

    def take_nowait(self) -> Message[Any] | None:
        """Removes and returns the first message; None if there is none. Raises a failure."""
        if self.messages and not self._waiters:
            return self._pop()
        if self._failure is not None:
            raise self._failure
        return None

    async def take(self, timeout_s: float | None) -> Message[Any]:
        """Removes and returns the first message, and waits for it; raises TimeoutError."""
        message = self.take_nowait()
        if message is not None:
            return message
        waiter: asyncio.Future[Message[Any]] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            if timeout_s is None:
                return await waiter
            async with asyncio.timeout(timeout_s):
                return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.put_back(waiter.result())
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def put_back(self, message: Message[Any]) -> None:
        """Returns a message to the front of the queue."""
        self.size_bytes += len(message.data)
        self.messages.appendleft(message)
        self._hand_out()

    def remove(self, belongs: Callable[[Message[Any]], bool]) -> list[Message[Any]]:
        """Removes and returns the messages for which `belongs` is true."""
        removed = [message for message in self.messages if belongs(message)]
        if removed:
            kept = [message for message in self.messages if not belongs(message)]
            self.messages.clear()
            self.messages.extend(kept)
            self.size_bytes -= sum(len(message.data) for message in removed)
        return removed

    def fail(self, failure: Exception) -> None:
        """Fails the callers that wait, and later ones once the queue is empty."""
        self._failure = failure
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(failure)

    def recover(self, kind: type[Exception]) -> None:
        """Ends a failure of a kind: messages come again."""
        if isinstance(self._failure, kind):
            self._failure = None

    def clear(self) -> None:
        """Removes all messages."""
        self.messages.clear()
        self.size_bytes = 0
