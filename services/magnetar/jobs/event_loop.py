"""The event loop of a thread, for synchronous callers.

It is never closed before the process ends: a closed loop leaves gRPC with undeliverable events.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_own = threading.local()


def event_loop() -> asyncio.AbstractEventLoop:
    """This thread's loop, created on first use."""
    loop: asyncio.AbstractEventLoop | None = getattr(_own, "loop", None)
    if loop is None or loop.is_closed():
        loop = _own.loop = asyncio.new_event_loop()
        atexit.register(loop.close)
    return loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its result."""
    return event_loop().run_until_complete(coroutine)


def cancel_all(timeout_s: float) -> None:
    """Cancels the tasks that an exception (a signal's) left in this thread's loop."""
    loop = event_loop()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=timeout_s))
