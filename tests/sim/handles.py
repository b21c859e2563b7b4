"""Handles, tasks and futures of the simulated loop: asyncio's, with only the fields that are read.

Most of a run's time is spent here, so they omit the fields that only a loop's debug mode reads.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.loop import SimLoop


class SimHandle(asyncio.Handle):
    """A callback that waits for a turn, without what only the debug mode of a loop reads."""

    __slots__ = ()
    _source_traceback = None
    _repr = None
    _callback: Any
    _args: Any
    _context: Context

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: "SimLoop",
        context: Context,
    ) -> None:
        self._callback, self._args = callback, args
        self._loop, self._context = loop, context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class SimTimer(asyncio.TimerHandle):
    """A callback that waits for its time; see `SimHandle`."""

    __slots__ = ()
    _source_traceback = None
    _repr = None
    _callback: Any
    _args: Any
    _context: Context

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: "SimLoop",
        context: Context,
    ) -> None:
        self._callback, self._args = callback, args
        self._loop, self._context = loop, context
        self._cancelled = False
        self._when, self._scheduled = when, True

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None
            if self._scheduled:
                self._loop._timer_handle_cancelled(self)


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set is the same in every run."""

    def __init__(self, coro: Any, loop: "SimLoop", name: str | None, context: Context | None):
        loop.births += 1
        self.birth = loop.births
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.birth


class SimFuture(asyncio.Future[Any]):
    """A future whose place in a set is the same in every run."""

    birth: int

    def __hash__(self) -> int:
        return self.birth
