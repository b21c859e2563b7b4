"""`Consumer.run` of the blocking client: handles messages in threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from magnetar.client.errors import InvalidConfiguration
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
    with ThreadPoolExecutor(concurrency, thread_name_prefix="magnetar-listener") as pool:

        async def handle_in_thread(message: Message[T]) -> None:
            await asyncio.get_running_loop().run_in_executor(pool, handle, message)

        consumer._portal.call(
            lambda: consumer._inner.run(
                handle_in_thread, concurrency=concurrency, ordered_by_key=ordered_by_key
            )
        )
