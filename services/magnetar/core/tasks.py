"""Owned background tasks: every task has a name, an owner that stops it, and no lost exception.

`asyncio.create_task` alone leaves a task that may be collected while it runs and whose exception
nobody reads. A `TaskSet` belongs to one component, refuses new tasks once stopped, logs what
fails, and `stop()` cancels what is left and waits for it, with a deadline.
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
        """Runs `coroutine` as a task; after `stop()` it is closed unrun and None comes back."""
        if self._stopped:
            coroutine.close()
            return None
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.owner}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def finish(self, coroutine: Coroutine[Any, Any, T], name: str) -> T:
        """The result of `coroutine`, which runs to its end even where the caller is cancelled.

        For what must not be cut in the middle: a write, and the memory of what was written. What
        it raises is logged if the caller was cancelled and hears nothing of it. Raises
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
        """Logs what a cancelled caller does not hear: a refusal is no fault of this process."""
        if not task.cancelled() and isinstance(error := task.exception(), MagnetarError):
            log.info("refused after the caller left", task=task.get_name(), error=str(error))
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
