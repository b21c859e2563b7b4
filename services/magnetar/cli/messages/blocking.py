"""Reads and writes of pipes and terminals, in threads that a command may abandon.

A pipe may block for as long as the other process likes. The event loop answers the broker's pings
meanwhile. The threads are daemons, so a blocked one does not keep the process alive.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")

CHUNK_BYTES: Final = 64 * 1024


async def in_thread(function: Callable[[], T]) -> T:
    """Returns the result of `function`, which a cancellation does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = function()
        except Exception as error:  # noqa: BLE001  # it is raised by the caller's await
            failure = error
        with suppress(RuntimeError):  # the loop is closed: the command has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="blocking io", daemon=True).start()
    return await future


async def read_chunk(descriptor: int) -> bytes:
    """Returns the bytes that are available next; empty at the end."""
    return await in_thread(lambda: os.read(descriptor, CHUNK_BYTES))


async def write_all(descriptor: int, data: bytes) -> None:
    """Returns once all bytes are written; raises BrokenPipeError if the reader is gone."""

    def work() -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]

    if data:
        await in_thread(work)
