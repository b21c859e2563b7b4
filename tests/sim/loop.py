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
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

from tests.sim.handles import SimFuture, SimHandle, SimTask, SimTimer

TURN_S_MIN: Final = 5e-6
TURN_S_MAX: Final = 60e-6
TURN_S_SPAN: Final = TURN_S_MAX - TURN_S_MIN
TASKS_PRUNED_AT: Final = 512
CANCELLED_TIMERS_MIN: Final = 256
"""The heap of timers keeps fewer cancelled timers than this without being rebuilt."""

T = TypeVar("T")


class Deadlock(Exception):
    """No event is left, and a task still waits."""


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
        self.ready: deque[SimHandle | SimTimer] = deque()
        self.unsent: list[Callable[[], None]] = []
        """Called at the end of the turn: what the process wrote leaves with it."""
        self.on_kill: list[Callable[[], None]] = []
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._instant = instant
        self._turn_due = False
        self._run_turn = self._turn

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Runs `callback` in the process, in a later turn."""
        if self.alive:
            self.ready.append(SimHandle(callback, args, self.loop, self.context))
            if not self._turn_due and not self.paused:
                self._schedule()

    def take(self, handle: SimTimer) -> None:
        """Runs the handle in the process, with a turn to come."""
        if self.alive:
            self.ready.append(handle)
            if not self._turn_due and not self.paused:
                self._schedule()

    def take_turns(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Runs a coroutine that waits for nothing but turns, at a third of the cost of a task."""
        self.post(self._step, coroutine)

    def _step(self, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            waits_for = coroutine.send(None)
        except StopIteration:
            return
        if waits_for is not None:
            raise RuntimeError(f"{coroutine} waits for {waits_for}, which needs a task")
        self.post(self._step, coroutine)

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
        """Kills the process as SIGKILL does: no `finally` runs, as its tasks are never
        finalized."""
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
        now, busy_until = loop.now, self.busy_until
        loop.sequence += 1
        when = busy_until if busy_until > now else now
        heappush(loop.events, (when, loop.sequence, self._run_turn, ()))

    def _turn(self) -> None:
        self._turn_due = False
        if not self.alive or self.paused:
            return
        loop, ready = self.loop, self.ready
        now, count = loop.now, len(ready)
        # As `note` does it: this is the hottest path of all.
        loop.turns += 1
        loop.trace_hash = hash((loop.trace_hash, now, self.index, count))
        self.turns += 1
        if not self._instant:
            begun = self.busy_until
            if now > begun:
                begun = now
            self.busy_until = begun + (TURN_S_MIN + TURN_S_SPAN * loop.draw())
        loop.current = self
        for _ in range(count):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  # as a handle does
                text = f"Exception in callback {handle!r}"
                loop.call_exception_handler({"message": text, "exception": error})
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


class SimLoop(asyncio.BaseEventLoop):
    """See the module's text."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now = 1.0
        self.rng = random.Random(seed)
        self.draw = self.rng.random
        self.trace_hash = 0
        self.turns = 0
        self.current: Process | None = None
        self.failures: list[tuple[Process, str, BaseException | None]] = []
        """What no handler caught: the process, the text, the exception."""
        self.network: Any = None
        self.events: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        """A heap: what runs outside of any process, turns among it."""
        self.sequence = 0
        """Of all events and timers: those of one time run in the order in which they were made."""
        self.births = 0
        self._timers: list[tuple[float, int, SimTimer]] = []
        """A heap of their own: most timers are cancelled, and would make that of events large."""
        self._timers_cancelled = 0
        self._processes = 0
        self.world = Process(self, "world", "world", instant=True)

    # -- time and order --------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def at(self, when: float, callback: Callable[..., object], *args: object) -> None:
        """Runs `callback` at that time, outside of any process."""
        self.sequence += 1
        heappush(self.events, (when, self.sequence, callback, args))

    @property
    def timer_count(self) -> int:
        """Timers that are kept, cancelled ones included."""
        return len(self._timers)

    def note(self, *numbers: float) -> None:
        """Mixes what happened into the hash by which two runs are compared."""
        self.turns += 1
        self.trace_hash = hash((self.trace_hash, self.now, *numbers))

    def next_process_index(self) -> int:
        self._processes += 1
        return self._processes

    def create_future(self) -> "asyncio.Future[Any]":
        future = SimFuture(loop=self)
        self.births += 1
        future.birth = self.births
        return future

    def _run_once(self) -> None:
        events, timers, world = self.events, self._timers, self.world
        while not self._stopping:  # type: ignore[attr-defined]  # BaseEventLoop's own
            if timers and (not events or timers[0] < events[0]):  # type: ignore[operator]  # numbered
                when, _, timer = heappop(timers)
                if timer._cancelled:
                    self._timers_cancelled -= 1
                    continue
                if when > self.now:
                    self.now = when
                timer._scheduled = False
                timer._context.get(PROCESS, world).take(timer)
            elif events:
                when, _, callback, args = heappop(events)
                if when > self.now:
                    self.now = when
                callback(*args)
            else:
                raise Deadlock("nothing is left to happen")

    # -- what asyncio asks of a loop -------------------------------------------------------

    def call_soon(  # type: ignore[override]  # typeshed ties the arguments to the callback
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        handle = SimHandle(callback, args, self, context)
        process = context.get(PROCESS, self.world)
        if process.alive:
            process.ready.append(handle)
            if not process._turn_due and not process.paused:
                process._schedule()
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
        timer = SimTimer(when, callback, args, self, context)
        self.sequence += 1
        heappush(self._timers, (when, self.sequence, timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        when = self.now + delay if delay > 0.0 else self.now
        timer = SimTimer(when, callback, args, self, context)
        self.sequence += 1
        heappush(self._timers, (when, self.sequence, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when it comes up, or with many others."""
        self._timers_cancelled += 1
        timers = self._timers
        if self._timers_cancelled > CANCELLED_TIMERS_MIN and self._timers_cancelled * 2 > len(
            timers
        ):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapify(timers)
            self._timers_cancelled = 0

    def create_task(  # type: ignore[override]
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[Any]":
        task = SimTask(coro, self, name, context)
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
        """Adds the exceptions of tasks that were never retrieved."""
        for process in processes:
            for task in process.tasks:
                if process.alive and task.done() and _unread(task):
                    self.failures.append((process, f"task {task.get_name()}", task.exception()))


def _unread(task: "asyncio.Task[Any]") -> bool:
    """Returns whether the task failed and its exception was not retrieved."""
    return bool(getattr(task, "_log_traceback", False))


def run(loop: SimLoop, main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` as the world's own coroutine."""
    task = loop.world.start(main, "main")
    return loop.run_until_complete(task)
