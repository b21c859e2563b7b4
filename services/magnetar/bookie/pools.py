"""Blocking work on named threads, or on the loop itself where a simulation wants no threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def run_on(pool: Executor | None, work: Callable[[], T]) -> T:
    """Runs blocking work on a pool's thread, or here and now where there is none."""
    if pool is None:
        return work()
    return await asyncio.get_running_loop().run_in_executor(pool, work)
