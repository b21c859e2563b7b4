"""Owned background tasks: every task has a name and an owner, and no exception is lost.

A task of `asyncio.create_task` alone may be collected while it runs, and its exception may never be
read. A `TaskSet` belongs to one component. It logs failures, refuses new tasks once stopped, and
`stop()` cancels the remaining tasks and waits for them, with a deadline.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.log import get_logger

log = get_logger("magnetar.tasks")

STOP_TIMEOUT_S = 5.0

T = TypeVar("T")


class TaskSet:
    """The background tasks of one owner."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any] | None":
        """Runs `coroutine` as a task. After `stop()`, closes it unrun and returns None."""
        if self._stopped:
            coroutine.close()
            return None
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.owner}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def finish(self, coroutine: Coroutine[Any, Any, T], name: str) -> T:
        """Returns the result of `coroutine`, which completes even if the caller is cancelled.

        For steps that must not be interrupted, such as a write and the update of the state in
        memory. If the caller was cancelled, an exception of `coroutine` is logged. Raises
        ServiceNotReady after `stop()`.
        """
        if self._stopped:
            coroutine.close()
            raise ServiceNotReady(f"{self.owner} is stopping")
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.owner}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._unheard)
            raise

    def _unheard(self, task: "asyncio.Task[Any]") -> None:
        """Logs the exception that a cancelled caller misses; a refusal is not a failure."""
        if not task.cancelled() and isinstance(error := task.exception(), MagnetarError):
            log.info(
                "refused after the caller was cancelled", task=task.get_name(), error=str(error)
            )
        else:
            self._finished(task)

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed", task=task.get_name(), error=repr(error), exc_info=error)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Cancels every task but the caller's own and waits until they have ended."""
        self._stopped = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=timeout_s)
            for task in pending:
                log.error("task did not stop", task=task.get_name(), timeout_s=timeout_s)
