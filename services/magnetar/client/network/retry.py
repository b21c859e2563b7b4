"""Retries of requests that may succeed later, within a deadline."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from magnetar.client.errors import ClientError, Disconnected, OperationTimeout
from magnetar.core.backoff import Backoff

FIRST_BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 60.0

T = TypeVar("T")


async def retrying(
    operation: Callable[[], Awaitable[T]],
    *,
    what: str,
    timeout_s: float,
    random: Random,
    topic: str = "",
    backoff_max_s: float = BACKOFF_MAX_S,
) -> T:
    """Returns the result of `operation`, repeated while its errors are retryable.

    At the deadline, raises OperationTimeout with the last error in its text.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    backoff = Backoff(FIRST_BACKOFF_S, backoff_max_s, random)
    last: ClientError | None = None
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await operation()
        except ClientError as error:
            if not error.retryable:
                raise
            last = error
        except TimeoutError:
            raise _late(what, timeout_s, topic, last) from last
        pause_s = backoff.failed_s()
        if loop.time() + pause_s >= deadline:
            raise _late(what, timeout_s, topic, last) from last
        await asyncio.sleep(pause_s)


async def while_disconnected(
    operation: Callable[[], Awaitable[T]], *, random: Random, backoff_max_s: float
) -> T:
    """Returns the result of `operation`, repeated while its connection is lost.

    For requests that the broker answers after any time; other errors end it.
    """
    backoff = Backoff(FIRST_BACKOFF_S, backoff_max_s, random)
    while True:
        try:
            return await operation()
        except Disconnected:
            await asyncio.sleep(backoff.failed_s())


def _late(what: str, timeout_s: float, topic: str, last: ClientError | None) -> ClientError:
    reason = f": {last.message}" if last is not None else ""
    return OperationTimeout(
        f"{what} did not succeed in {timeout_s:g} s{reason}",
        topic=topic,
        broker=last.broker if last is not None else "",
    )
