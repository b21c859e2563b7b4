"""The event loop of this thread, for callers that are not asynchronous.

One for good: a loop that is closed leaves gRPC with events that it can hand to nobody.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_own = threading.local()


def event_loop() -> asyncio.AbstractEventLoop:
    """This thread's; made when it is first asked for, closed with the process."""
    loop: asyncio.AbstractEventLoop | None = getattr(_own, "loop", None)
    if loop is None or loop.is_closed():
        loop = _own.loop = asyncio.new_event_loop()
        atexit.register(loop.close)
    return loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result."""
    return event_loop().run_until_complete(coroutine)


def cancel_all(timeout_s: float) -> None:
    """Cancels what an exception (a signal's) has left in this thread's loop, and lets it end."""
    loop = event_loop()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=timeout_s))
