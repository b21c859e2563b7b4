"""An asyncio event loop with virtual time for many simulated processes, in a seeded order.

Nothing here sleeps: the loop takes the next thing from a heap and sets its clock to it. Every
callback belongs to a `Process`, named by a context variable that tasks and timers inherit. A
process runs in turns, as a real event loop does: what is ready when the turn begins is run in the
order in which it was scheduled, and a turn takes a little virtual time, so that turns of different
processes interleave as the seed says. A killed process is never run again; a paused one keeps what
becomes due until it is resumed.

What is not simulated is refused: sockets and threads do not exist. Executors run inline.
"""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar

TURN_S_MIN: Final = 5e-6
TURN_S_MAX: Final = 60e-6
TASKS_PRUNED_AT: Final = 512

T = TypeVar("T")


class Deadlock(Exception):
    """Nothing is left to happen, and somebody still waits."""


class Process:
    """One life of a node: from its start to its end or kill."""

    def __init__(self, loop: "SimLoop", name: str, host: str, *, instant: bool = False) -> None:
        self.loop = loop
        self.name, self.host = name, host
        self.index = loop.next_process_index()
        self.alive = True
        self.paused = False
        self.busy_until = 0.0
        self.turns = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.ready: deque[asyncio.Handle] = deque()
        self.unsent: list[Callable[[], None]] = []
        """Called at the end of the turn: what the process wrote leaves with it."""
        self.on_kill: list[Callable[[], None]] = []
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._instant = instant
        self._turn_due = False

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Runs `callback` in the process, with a turn of its own to come."""
        self.take(asyncio.Handle(callback, args, self.loop, self.context))

    def take(self, handle: asyncio.Handle) -> None:
        if not self.alive:
            return
        self.ready.append(handle)
        if not self._turn_due and not self.paused:
            self._schedule()

    def spend(self, seconds: float) -> None:
        """The turn takes that much longer: a disk, a long computation."""
        self.busy_until = max(self.busy_until, self.loop.now) + seconds

    def start(self, main: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Starts a coroutine that belongs to the process."""
        return self.loop.create_task(main, name=f"{self.name}/{name}", context=self.context.copy())

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        if self.ready and not self._turn_due:
            self._schedule()

    def kill(self) -> None:
        """As by SIGKILL. What its tasks hold is kept until the loop goes: no `finally` runs."""
        if not self.alive:
            return
        self.alive = False
        self.ready.clear()
        self.unsent.clear()
        for callback in self.on_kill:
            callback()

    def _schedule(self) -> None:
        self._turn_due = True
        loop = self.loop
        self.loop.at(max(loop.now, self.busy_until), self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if not self.alive or self.paused:
            return
        loop = self.loop
        ready = self.ready
        loop.note(self.index, len(ready))
        self.turns += 1
        if not self._instant:
            begun = max(self.busy_until, loop.now)
            self.busy_until = begun + loop.rng.uniform(TURN_S_MIN, TURN_S_MAX)
        loop.current = self
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
            if not self.alive:
                break
        loop.current = None
        if self.unsent and self.alive:
            unsent, self.unsent = self.unsent, []
            for ship in unsent:
                ship()
        if ready and not self._turn_due:
            self._schedule()


PROCESS: ContextVar[Process] = ContextVar("magnetar_sim_process")


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set is the same in every run."""

    def __init__(self, coro: Any, *, loop: "SimLoop", **more: Any) -> None:
        self.birth = loop.next_birth()
        super().__init__(coro, loop=loop, **more)

    def __hash__(self) -> int:
        return self.birth


class SimFuture(asyncio.Future[Any]):
    """A future whose place in a set is the same in every run."""

    def __init__(self, loop: "SimLoop") -> None:
        self.birth = loop.next_birth()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.birth


class SimLoop(asyncio.BaseEventLoop):
    """See the module's text."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now = 1.0
        self.rng = random.Random(seed)
        self.trace_hash = 0
        self.turns = 0
        self.current: Process | None = None
        self.failures: list[tuple[Process, str, BaseException | None]] = []
        """What no handler caught: the process, the text, the exception."""
        self.network: Any = None
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._sequence = 0
        self._processes = 0
        self._births = 0
        self.world = Process(self, "world", "world", instant=True)

    # -- time and order --------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def at(self, when: float, callback: Callable[..., object], *args: object) -> None:
        """Runs `callback` at that time, outside of any process."""
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, callback, args))

    def note(self, *numbers: float) -> None:
        """Mixes what happened into the hash by which two runs are compared."""
        self.turns += 1
        self.trace_hash = hash((self.trace_hash, self.now, *numbers))

    def next_process_index(self) -> int:
        self._processes += 1
        return self._processes

    def next_birth(self) -> int:
        self._births += 1
        return self._births

    def create_future(self) -> "asyncio.Future[Any]":
        return SimFuture(self)

    def _run_once(self) -> None:
        heap = self._heap
        while not self._stopping:  # type: ignore[attr-defined]  # BaseEventLoop's own
            if not heap:
                raise Deadlock("nothing is left to happen")
            when, _, callback, args = heapq.heappop(heap)
            if when > self.now:
                self.now = when
            callback(*args)

    # -- what asyncio asks of a loop -------------------------------------------------------

    def call_soon(  # type: ignore[override]  # typeshed ties the arguments to the callback
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        context.get(PROCESS, self.world).take(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.at(when, self._due, handle, context.get(PROCESS, self.world))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + max(delay, 0.0), callback, *args, context=context)

    @staticmethod
    def _due(handle: asyncio.TimerHandle, process: Process) -> None:
        if not handle.cancelled():
            process.take(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when it comes up."""

    def create_task(  # type: ignore[override]
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[Any]":
        task = SimTask(coro, loop=self, name=name, context=context)
        # Tasks of the killed are kept, and go unfinished.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        process = (context or copy_context()).get(PROCESS, self.world)
        tasks = process.tasks
        tasks.append(task)
        if len(tasks) % TASKS_PRUNED_AT == 0:
            process.tasks = [one for one in tasks if not one.done() or _unread(one)]
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # as an executor does
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process = self.current or PROCESS.get(self.world)
        if not process.alive:
            return  # the power went in the middle of a callback
        self.failures.append((process, str(context.get("message")), context.get("exception")))

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: str | None = None,
        port: int | None = None,
        **_options: Any,
    ) -> tuple[Any, Any]:
        connected: tuple[Any, Any] = await self.network.connect(protocol_factory, host, port)
        return connected

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], Any],
        host: str | None = None,
        port: int | None = None,
        *,
        sock: Any = None,
        **_options: Any,
    ) -> Any:
        if sock is not None:
            host, port = sock.getsockname()[:2]
        return self.network.listen(protocol_factory, PROCESS.get(), host, port)

    def __del__(self) -> None:
        """It holds no sockets and no threads: there is nothing to close."""

    def unread_failures(self, processes: Iterable[Process]) -> None:
        """Adds the exceptions of tasks that nobody looked at."""
        for process in processes:
            for task in process.tasks:
                if process.alive and task.done() and _unread(task):
                    self.failures.append((process, f"task {task.get_name()}", task.exception()))


def _unread(task: "asyncio.Task[Any]") -> bool:
    """Whether the task failed and nobody has asked why."""
    return bool(getattr(task, "_log_traceback", False))


def run(loop: SimLoop, main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` as the world's own coroutine."""
    task = loop.world.start(main, "main")
    return loop.run_until_complete(task)
