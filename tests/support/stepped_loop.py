"""An event loop whose time is ours while its sockets and threads are real, and that can be killed.

Time stands still while something real is under way (a thread's work, an HTTP request that was
sent); when nothing is, it jumps to the next timer, however far that is. Before a jump `on_idle` is
called, so that the rest of the world can have its turn.

Every point at which a task gives control back to the loop is counted, whichever task it is. At the
chosen one the process dies: `Killed` comes out of `run_until_complete`, before any other callback
runs, and before a thread begins what the task has just asked for. `bury` then ends what is left
with all connections cut: whatever cleans up reaches nobody.

Bounds: real work must answer within REAL_S_MAX.
"""

import asyncio
import logging
import selectors
import time
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

REAL_S_MAX: Final = 60.0
TICK_S: Final = 1e-6

Point = tuple[str, ...]
"""Where a task was suspended: `file:line` of its frames in the watched package, outermost first."""
Death = Callable[[int, Point], bool]
"""Whether the process dies here: at this one of its points, this place."""


class Killed(SystemExit):
    """The process is no more. (The loop lets only such as this out of a callback.)"""


class Dead(OSError):
    """What a dead process meets when it cleans up."""


class FakeClock:
    """A `magnetar.core.clock.Clock` that only the loops move; several share it, one at a time."""

    def __init__(self) -> None:
        self.elapsed_s = 1_000.0
        self._began_ms = time.time_ns() // 1_000_000 - 1_000_000

    def monotonic(self) -> float:
        return self.elapsed_s

    def now_ms(self) -> int:
        return self._began_ms + int(self.elapsed_s * 1_000)


class SteppedLoop(asyncio.SelectorEventLoop):
    """See the module's text."""

    def __init__(
        self,
        clock: FakeClock,
        package: str,
        dies: Death | None = None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(selectors.DefaultSelector())
        self.points: list[Point] = []
        self.dead = False
        self.real = 0
        """What is under way outside of the loop."""
        self._clock = clock
        self._package = f"/{package}/"
        self._dies = dies
        self._on_idle = on_idle
        self._poll = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._select  # type: ignore[attr-defined]
        self.set_task_factory(self._task)

    # -- time ------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._clock.elapsed_s

    def _select(self, timeout: float | None) -> list[Any]:
        found: list[Any] = self._poll(0)
        if found or timeout == 0:
            return found
        if self.real:
            found = self._poll(REAL_S_MAX)
            assert found, f"what is real did not answer within {REAL_S_MAX} s"
            return found
        if not self.dead:
            self._on_idle()
        found = self._poll(0)
        if found or self._ready:  # type: ignore[attr-defined]
            return found
        assert timeout is not None, "nothing is under way and nothing will ever be"
        self._clock.elapsed_s += timeout + TICK_S
        return []

    # -- what is real ----------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Begins in the next turn: not at all where the process dies at the wait for it."""
        outer = self.create_future()
        self.real += 1
        self.call_soon(self._submit, outer, executor, func, args)
        return outer

    def _submit(self, outer: Any, executor: Any, func: Any, args: tuple[Any, ...]) -> None:
        if outer.cancelled() or self.dead:
            self.real -= 1
            if not outer.done():
                outer.set_exception(Dead("the process is dead"))
            return

        def ended(inner: Any) -> None:
            self.real -= 1
            error = inner.exception()
            if outer.done():
                return
            if error is not None:
                outer.set_exception(error)
            else:
                outer.set_result(inner.result())

        super().run_in_executor(executor, func, *args).add_done_callback(ended)

    async def create_connection(self, *args: Any, **rest: Any) -> Any:
        if self.dead:
            raise Dead("the process is dead")
        return await super().create_connection(*args, **rest)

    # -- tasks -----------------------------------------------------------------------------------

    def _task(self, loop: Any, coro: Any, **rest: Any) -> "asyncio.Task[Any]":
        made = asyncio.Task(_driven(self, coro), loop=loop, **rest)
        made.add_done_callback(lambda _: coro.close())  # of one that never began
        return made

    def suspended(self, coro: Any) -> None:
        """A task of this coroutine gives back control."""
        if self.dead:
            return
        number, point = len(self.points), tuple(self._frames(coro))
        self.points.append(point)
        if self._dies is not None and self._dies(number, point):
            self.dead = True
            end = asyncio.Handle(_kill, (), self)
            self._ready.appendleft(end)  # type: ignore[attr-defined]

    def _frames(self, coro: Any) -> Iterator[str]:
        while coro is not None:
            frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
            if frame is not None and self._package in frame.f_code.co_filename:
                where = frame.f_code.co_filename.rpartition(self._package)[2]
                yield f"{where}:{frame.f_lineno}"
            coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)

    # -- death -----------------------------------------------------------------------------------

    def bury(self) -> None:
        """Ends every task, with nobody to talk to; then closes the loop. Nothing is logged."""
        self.dead = True
        logging.disable(logging.CRITICAL)
        try:
            for transport in list(self._transports.values()):  # type: ignore[attr-defined]
                transport.abort()
            while left := asyncio.all_tasks(self):
                self.run_until_complete(asyncio.sleep(0))  # what never began cannot end well
                for task in left:
                    task.cancel()
                self.run_until_complete(asyncio.wait(left))
            self.run_until_complete(self.shutdown_asyncgens())
            self.close()
        finally:
            logging.disable(logging.NOTSET)


async def _driven(loop: SteppedLoop, coro: Any) -> Any:
    return await _stepped(loop, coro)


@types.coroutine
def _stepped(loop: SteppedLoop, coro: Any) -> Generator[Any, Any, Any]:
    error: BaseException | None = None
    while True:
        try:
            waited = coro.send(None) if error is None else coro.throw(error)
        except StopIteration as stop:
            return stop.value
        loop.suspended(coro)
        error = None
        try:
            yield waited
        except BaseException as thrown:  # noqa: BLE001 - it is the coroutine's
            error = thrown


def _kill() -> None:
    raise Killed("at the chosen point")


@contextmanager
def real_requests(
    on_sent: Callable[[str, str, int | None], None] = lambda *_: None,
) -> Iterator[None]:
    """Has httpx's requests count as real work of a `SteppedLoop`.

    `on_sent` is told method, path and status of each (None: there was no answer).
    """
    request = httpx.AsyncClient.request

    async def counted(client: httpx.AsyncClient, method: str, url: Any, **rest: Any) -> Any:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, SteppedLoop):
            return await request(client, method, url, **rest)
        if loop.dead:
            raise httpx.ConnectError("the process is dead")
        loop.real += 1
        status = None
        try:
            answer = await request(client, method, url, **rest)
            status = answer.status_code
            return answer
        finally:
            loop.real -= 1
            on_sent(method, httpx.URL(url).path, status)

    httpx.AsyncClient.request = counted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        httpx.AsyncClient.request = request  # type: ignore[method-assign]
