"""Owned background tasks: every task has a name and an owner, and no exception is lost.

A task of `asyncio.create_task` alone may be collected while it runs, and its exception may never be
read. A `TaskSet` belongs to a component. It logs failures, refuses new tasks once stopped, and
`stop()` cancels the remaining tasks and waits for them, with a deadline. A `TaskScope` belongs to a
block of code that reads the results itself; the end of the block stops the tasks that remain.
"""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.log import get_logger

log = get_logger("magnetar.tasks")

STOP_TIMEOUT_S = 5.0

T = TypeVar("T")


class TaskSet:
    """The background tasks of one owner."""

    __slots__ = ("_stopped", "_tasks", "owner")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._tasks: set[asyncio.Task[Any]] | None = None
        """None without tasks: every connection has a TaskSet, and most of them are idle."""
        self._stopped = False

    def __len__(self) -> int:
        return 0 if self._tasks is None else len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any] | None":
        """Runs `coroutine` as a task. After `stop()`, closes it unrun and returns None."""
        if self._stopped:
            coroutine.close()
            return None
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.owner}/{name}")
        self._add(task)
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
        self._add(task)
        task.add_done_callback(self._discard)
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

    def _add(self, task: "asyncio.Task[Any]") -> None:
        if self._tasks is None:
            self._tasks = set()
        self._tasks.add(task)

    def _discard(self, task: "asyncio.Task[Any]") -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
            if not self._tasks:
                self._tasks = None

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._discard(task)
        _log_failure(task)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Cancels every task but the caller's own and waits until they have ended."""
        self._stopped = True
        current = asyncio.current_task()
        await _cancel([task for task in self._tasks or () if task is not current], timeout_s)


class TaskScope:
    """Tasks that end with an `async with` block, which reads their results.

    The end of the block cancels the tasks that still run and waits up to `timeout_s` for them; a
    task that fails meanwhile is logged. The exception of a task that ended before is the block's
    to read.
    """

    def __init__(self, owner: str, timeout_s: float = STOP_TIMEOUT_S) -> None:
        self._owner = owner
        self._timeout_s = timeout_s
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, coroutine: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Runs `coroutine` as a task of the block."""
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self._owner}/{name}")
        self._tasks.append(task)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running = [task for task in self._tasks if not task.done()]
        if error is not None:
            # A block that fails reads no more results.
            for task in self._tasks:
                if task.done() and not task.cancelled() and task.exception() is not error:
                    _log_failure(task)
        for task in running:
            task.add_done_callback(_log_failure)
        await _cancel(running, self._timeout_s)


def _log_failure(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task failed", task=task.get_name(), error=repr(error), exc_info=error)


async def _cancel(tasks: "list[asyncio.Task[Any]]", timeout_s: float) -> None:
    """Cancels tasks and waits for them; those that do not end in time are logged."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=timeout_s)
        for task in pending:
            log.error("task did not stop", task=task.get_name(), timeout_s=timeout_s)
