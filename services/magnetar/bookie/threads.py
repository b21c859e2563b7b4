"""Blocking work on named threads, or on the event loop in simulations, which have no threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def run_on(pool: Executor | None, work: Callable[[], T]) -> T:
    """Runs blocking work on a thread of the pool; without a pool, runs it at once."""
    if pool is None:
        return work()
    return await asyncio.get_running_loop().run_in_executor(pool, work)
