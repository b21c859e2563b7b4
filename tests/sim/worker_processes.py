"""Worker processes of brokers: the product's own child and its broker's side, in virtual time.

A worker blocks: on its pipe, and on requests to the object store. Here it is a thread, of which one
at a time runs, and only while the loop waits for it: the loop hands control to the thread until it
needs input, has to await a coroutine, or ends. So the order of events depends on the seed alone.
What the thread awaits runs on the simulated loop.

If the broker's process is killed, nobody reads the pipe any more: the thread stays where it is, as
a process does that has no input, until the run ends.
"""

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from magnetar.jobs import event_loop
from magnetar.jobs.worker import child, process

if TYPE_CHECKING:
    from tests.sim.world import World

ENDED: Final = object()
NEEDS_INPUT: Final = object()
Awaited = Coroutine[Any, Any, Any] | asyncio.Future[Any]


class Killed(BaseException):
    """The broker has killed the process."""


_worker: contextvars.ContextVar["Worker"] = contextvars.ContextVar("worker")


class OwnPipe(threading.local):
    """Stands for the child's module variable, of which each process has its own."""

    pipe: Any = None

    def __setitem__(self, _: object, pipes: list[Any]) -> None:
        (self.pipe,) = pipes

    def __getitem__(self, _: int) -> Any:
        return self.pipe


class WorkerLoop:
    """The event loop of a worker's thread: the thread waits, and the run's loop awaits."""

    def run_until_complete(self, awaited: Awaited) -> Any:
        return _worker.get().awaits(awaited)

    def create_task(
        self, coroutine: Coroutine[Any, Any, Any], *, name: str | None = None
    ) -> "asyncio.Task[Any]":
        return _worker.get().loop.create_task(coroutine, name=name)


class Worker:
    """One process: what `asyncio.subprocess.Process` has of it, and its standard streams."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.returncode: int | None = None
        self.stdin = self.stdout = self
        self._to_child = bytearray()
        self._from_child = bytearray()
        self._turn_of_child = threading.Semaphore(0)
        self._turn_of_loop = threading.Semaphore(0)
        self._wish: Any = None
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self._killed = False
        context = contextvars.copy_context()
        context.run(_worker.set, self)
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)

    # -- of the broker's side

    def write(self, data: bytes) -> None:
        self._to_child += data

    async def drain(self) -> None:
        await asyncio.sleep(0)

    async def readexactly(self, count: int) -> bytes:
        while len(self._from_child) < count:
            await asyncio.sleep(0)
            wish = self._resume()
            if wish is not ENDED and wish is not NEEDS_INPUT:
                try:
                    self._outcome = await wish, None
                except Exception as error:  # noqa: BLE001  # the thread has it
                    self._outcome = None, error
            elif len(self._from_child) < count:
                assert wish is ENDED, "the child waits for an answer that nobody owes"
                raise asyncio.IncompleteReadError(bytes(self._from_child), count)
        data = bytes(self._from_child[:count])
        del self._from_child[:count]
        return data

    def kill(self) -> None:
        self._killed = True

    async def wait(self) -> int:
        self._killed = True  # nobody will answer it
        while self._thread.ident is not None and self._wish is not ENDED:
            if asyncio.iscoroutine(self._wish):
                self._wish.close()
            self._resume()
        self.returncode = 0
        return 0

    def _resume(self) -> Any:
        """Lets the child run until it wishes something."""
        if self._wish is ENDED:
            return ENDED
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._turn_of_child.release()
        self._turn_of_loop.acquire()
        return self._wish

    # -- of the child

    def _run(self) -> None:
        try:
            child.run(self, ChildEnd(self))  # type: ignore[arg-type]
        except Killed:
            pass
        finally:
            self._wish = ENDED
            self._turn_of_loop.release()

    def awaits(self, awaited: Awaited) -> Any:
        """Called in the child's thread: has the loop await something."""
        self._wishes(awaited)
        result, error = self._outcome
        if error is not None:
            raise error
        return result

    def read(self, count: int) -> bytes:
        while len(self._to_child) < count:
            self._wishes(NEEDS_INPUT)
        data = bytes(self._to_child[:count])
        del self._to_child[:count]
        return data

    def flush(self) -> None:
        """What was written is in the pipe already."""

    def _wishes(self, wish: Any) -> None:
        self._wish = wish
        self._turn_of_loop.release()
        self._turn_of_child.acquire()
        if self._killed:
            raise Killed


class ChildEnd:
    """The child's end of standard output."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def write(self, data: bytes) -> None:
        self._worker._from_child += data

    def flush(self) -> None:
        """What was written is in the pipe already."""


def prepare_workers(world: "World") -> None:
    """Worker processes are threads from now on, in the process of this run."""

    async def create(*_: object, **_more: object) -> Worker:
        await asyncio.sleep(0)
        return Worker(world.loop)

    loop = WorkerLoop()
    for owner, name, value in (
        (process, "create_subprocess_exec", create),
        (event_loop, "event_loop", lambda: loop),
        (child, "event_loop", lambda: loop),
        (child, "_pipe", OwnPipe()),
    ):
        getattr(owner, name)  # it must be there
        setattr(owner, name, value)
