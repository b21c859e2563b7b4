"""Message listeners: messages of one consumer, handed to a function in a thread, in order."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.client.errors import ClientError
from magnetar.client.message import Message
from magnetar.client.sync.portal import Portal
from magnetar.core.log import get_logger
from magnetar.pulsar.callbacks import CallbackThread

log = get_logger("magnetar.pulsar.listener")

TOGETHER_MAX: Final = 100
"""Messages that are handed to the thread at a time."""

Receive = Callable[[], Awaitable[Message[bytes]]]
ReceiveNow = Callable[[], Message[bytes] | None]


class Pump:
    """Takes messages in the client's loop, and has them handled in a thread before the next."""

    def __init__(
        self,
        receive: Receive,
        receive_now: ReceiveNow,
        handle: Callable[[Message[bytes]], object],
        thread: CallbackThread,
    ) -> None:
        self._receive = receive
        self._receive_now = receive_now
        self._handle = handle
        self._thread = thread
        self._go_on = True
        self._resumed: asyncio.Event  # exists once the pump runs
        self._portal: Portal

    def start(self, portal: Portal) -> None:
        """Runs until the consumer is closed."""
        self._portal = portal
        portal.submit(self._run)

    def pause(self) -> None:
        """Hands on nothing more; the message that is being handled is handled to its end."""
        self._go_on = False

    def resume(self) -> None:
        """Hands messages on again."""
        self._go_on = True
        self._portal.submit(lambda: self._resumed.set())

    def stop(self) -> None:
        """Hands on nothing more: the consumer closes."""
        self._go_on = False

    async def _run(self) -> None:
        self._resumed = asyncio.Event()
        try:
            while True:
                while not self._go_on:
                    self._resumed.clear()
                    await self._resumed.wait()
                await self._hand_on([await self._receive()])
        except ClientError as error:
            log.debug("listener ended", reason=str(error))

    async def _hand_on(self, messages: list[Message[bytes]]) -> None:
        while len(messages) < TOGETHER_MAX and (message := self._receive_now()) is not None:
            messages.append(message)
        loop = asyncio.get_running_loop()
        handled: asyncio.Future[int] = loop.create_future()

        def finish(count: int) -> None:
            if not handled.done():
                handled.set_result(count)

        def handle() -> None:
            count = 0
            try:
                for message in messages:
                    if not self._go_on:
                        break
                    count += 1
                    try:
                        self._handle(message)
                    except Exception as error:
                        log.error("listener failed", error=repr(error), exc_info=error)
            finally:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(finish, count)

        self._thread.post(handle)
        count = await handled
        for message in reversed(messages[count:]):
            message.entry.source.untake(message)
