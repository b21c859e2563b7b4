"""Runs the work of a command in an event loop, until it is done or a signal ends it.

The first SIGINT or SIGTERM cancels the work, which flushes, closes and prints its summary. The
second ends the process at once.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar.cli.messages.errors import FAILED, INTERRUPTED, USAGE, InputFailed, UsageFailed
from magnetar.core.errors import MagnetarError
from magnetar.core.tasks import TaskScope

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run(command: str, work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Returns the exit code of `work`, or that of its error, which is printed.

    A broken pipe propagates: `main` ends quietly then.
    """
    from magnetar.client.errors import ClientError, InvalidConfiguration, InvalidTopicName

    try:
        return asyncio.run(_interruptible(command, work()))
    except BrokenPipeError:
        raise
    except (UsageFailed, InvalidConfiguration, InvalidTopicName) as error:
        return _failed(command, error, USAGE)
    except (ClientError, InputFailed, MagnetarError, OSError) as error:
        return _failed(command, error, FAILED)


def _failed(command: str, error: Exception, code: int) -> int:
    print(f"magnetar {command}: {error}", file=sys.stderr)
    return code


async def _interruptible(command: str, work: Coroutine[Any, Any, int]) -> int:
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()

    def on_signal(number: int) -> None:
        if interrupted.is_set():
            os._exit(128 + number)
        interrupted.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        async with TaskScope(command) as tasks:
            working = tasks.start(work, "work")
            waiting = tasks.start(interrupted.wait(), "signal")
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                await asyncio.wait({working})  # a second signal ends the process
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return INTERRUPTED if working.cancelled() else working.result()
