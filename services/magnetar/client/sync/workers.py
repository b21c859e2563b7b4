"""`Consumer.run` of the blocking client: handles messages in threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from magnetar.client.errors import AlreadyClosed, InvalidConfiguration
from magnetar.client.message import Message

if TYPE_CHECKING:
    from magnetar.client.sync.consumer import Consumer

T = TypeVar("T")


def run_in_threads(
    consumer: "Consumer[T]",
    handle: Callable[[Message[T]], object],
    concurrency: int,
    *,
    ordered_by_key: bool,
) -> None:
    """See `Consumer.run`. Each of `concurrency` threads handles one message at a time.

    If the caller is interrupted, messages that are being handled are handled to their end, and
    come again: they are not acknowledged.
    """
    if concurrency < 1:
        raise InvalidConfiguration(f"concurrency must be at least 1, not {concurrency}")
    exits: list[BaseException] = []

    def outcome(message: Message[T]) -> BaseException | None:
        try:
            handle(message)
        except BaseException as error:  # noqa: BLE001  # users' code may raise anything
            return error
        return None

    with ThreadPoolExecutor(concurrency, thread_name_prefix="magnetar-listener") as pool:

        async def run() -> None:
            running = asyncio.current_task()

            async def handle_in_thread(message: Message[T]) -> None:
                error = await asyncio.get_running_loop().run_in_executor(pool, outcome, message)
                if isinstance(error, Exception):
                    raise error
                if error is not None:
                    # Such as SystemExit: it ends the call, and not the client's loop.
                    exits.append(error)
                    if running is not None:
                        running.cancel()
                    raise asyncio.CancelledError

            await consumer._inner.run(
                handle_in_thread, concurrency=concurrency, ordered_by_key=ordered_by_key
            )

        try:
            consumer._portal.call(run)
        except AlreadyClosed:
            if not exits and consumer._inner.refusal is None:
                raise
    if exits:
        raise exits[0]
