"""The thread of a blocking client: runs its event loop, and carries calls of other threads to it.

A portal starts its thread with the first call, and `close` ends it. Any number of threads may call
at a time. Calls wait in one bounded queue, and wake the loop once however many they are.

Invariants: a call that has returned or raised leaves nothing running, also if Ctrl-C has ended
its wait: what it waited for is cancelled, and a result that came too late is handed to `discard`.
After `close`, no thread is left. After a fork, a child can only close.
"""

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, TypeVar

from magnetar.client.errors import AlreadyClosed, ClientError, UsedAfterFork
from magnetar.core.log import get_logger

log = get_logger("magnetar.client.sync")

QUEUED_CALLS_MAX: Final = 1000
"""Calls that the loop has not begun; beyond them, callers wait."""
STOP_TIMEOUT_S: Final = 5.0
"""For the tasks that remain when the loop ends."""
EXIT_TIMEOUT_S: Final = 2.0
"""For closing clients that are still open when the interpreter exits."""

T = TypeVar("T")


class Portal:
    """Runs functions in an event loop of its own thread."""

    def __init__(self, finish: Callable[[], Awaitable[object]]) -> None:
        """`finish` is awaited in the loop when the portal closes."""
        self._finish = finish
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._calls: deque[tuple[Future[Any], Callable[[], Any], Callable[[Any], Any] | None]]
        self._calls = deque()
        self._awake = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        """Whether the loop has to stop."""
        self._tasks: set[asyncio.Future[Any]] = set()
        self._closing = False
        self._closed = False
        _portals.add(self)

    # -- calls ---------------------------------------------------------------------------------

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of a coroutine function."""
        result: T = self._wait(function, None)
        return result

    def call_or(self, discard: Callable[[T], object], function: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of a coroutine function.

        If the caller is interrupted and there is a result nevertheless, `discard` gets it.
        """
        result: T = self._wait(function, discard)
        return result

    def run(self, function: Callable[[], T], discard: Callable[[T], object] | None = None) -> T:
        """Returns the result of a plain function, which runs in the loop and must not wait.

        If the caller is interrupted and there is a result nevertheless, `discard` gets it.
        """
        result: T = self._wait(function, discard)
        return result

    def finish(self, function: Callable[[], Awaitable[object]]) -> None:
        """Calls the `close` of a part; does nothing if the client has closed it already."""
        if self._pid != os.getpid():
            return
        try:
            self._wait(function, None)
        except AlreadyClosed:
            if not self._closed:
                raise

    def peek(self, function: Callable[[], T]) -> T:
        """Returns a fact, by a plain function.

        It runs in the loop, or here if there is no loop to disturb: before the first call, after
        the end, and after a fork.
        """
        if self._pid != os.getpid() or self._thread is None or self._closed or self.inside:
            return function()
        try:
            return self.run(function)
        except AlreadyClosed:
            if not self._closed:
                raise
            return function()

    def submit(
        self, function: Callable[[], Any], discard: Callable[[Any], object] | None = None
    ) -> "Future[Any]":
        """Calls a function in the loop; the future has its result, or that of its awaitable.

        If the future is cancelled and there is a result nevertheless, `discard` gets it. Waits
        while QUEUED_CALLS_MAX calls wait, except in the loop's own thread.
        """
        future: Future[Any] = Future()
        self._hand_over(future, function, discard)
        return future

    @property
    def inside(self) -> bool:
        """Whether the caller is in the loop's thread: a callback, an interceptor, a listener."""
        return threading.current_thread() is self._thread

    def check(self) -> None:
        """Raises if the portal cannot be used, as in a forked child."""
        if self._pid != os.getpid():
            raise UsedAfterFork(f"The client was created in process {self._pid}")
        if self._closed:
            raise AlreadyClosed("The client is closed")

    def _wait(self, function: Callable[[], Any], discard: Callable[[Any], object] | None) -> Any:
        self.check()
        if self.inside:
            raise ClientError(
                "This call would wait for the thread that makes it: interceptors, routing "
                "functions and listeners of table views must not call the blocking client"
            )
        future: Future[Any] = Future()
        try:
            self._hand_over(future, function, discard)
            return future.result()
        except BaseException:
            if not future.cancel() and discard is not None and _has_result(future):
                # The result came in the moment of the interrupt.
                with contextlib.suppress(AlreadyClosed):  # then nothing is left to return
                    unheard = self.submit(lambda: discard(future.result()))
                    unheard.add_done_callback(_log_failure)
            raise

    def _hand_over(
        self,
        future: "Future[Any]",
        function: Callable[[], Any],
        discard: Callable[[Any], object] | None,
    ) -> None:
        self.check()
        with self._lock:
            while len(self._calls) >= QUEUED_CALLS_MAX and not self._closed and not self.inside:
                self._room.wait()
            if self._closed:
                raise AlreadyClosed("The client is closed")
            if self._loop is None:
                loop, stopped = asyncio.new_event_loop(), threading.Event()
                thread = threading.Thread(
                    target=_serve, args=(loop, stopped), name="magnetar-client", daemon=True
                )
                try:
                    thread.start()
                except BaseException:
                    # Ctrl-C may come while it starts; it ends at once then.
                    stopped.set()
                    loop.call_soon_threadsafe(loop.stop)
                    raise
                self._loop, self._thread, self._stopped = loop, thread, stopped
            self._calls.append((future, function, discard))
            if not self._awake:
                # In this order: Ctrl-C in between must not leave calls that are never begun.
                self._loop.call_soon_threadsafe(self._begin_all)
                self._awake = True

    # -- in the loop ---------------------------------------------------------------------------

    def _begin_all(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, deque()
            self._awake = False
            self._room.notify_all()
        for future, function, discard in calls:
            self._begin(future, function, discard)

    def _begin(
        self,
        future: "Future[Any]",
        function: Callable[[], Any],
        discard: Callable[[Any], object] | None,
    ) -> None:
        if future.cancelled():
            return
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # it is the caller's, also SystemExit
            _settle(future, None, error)
            return
        if not isinstance(result, Awaitable):
            if not _settle(future, result, None) and discard is not None:
                self._give_back(discard, result)
            return
        task = _task_of(result)
        self._tasks.add(task)
        loop = task.get_loop()

        def ended(done: "asyncio.Future[Any]") -> None:
            self._tasks.discard(done)
            if done.cancelled():
                _settle(future, None, AlreadyClosed("The client was closed meanwhile"))
            elif (error := done.exception()) is not None:
                _settle(future, None, error)
            elif not _settle(future, done.result(), None) and discard is not None:
                self._give_back(discard, done.result())

        def cancelled(outcome: "Future[Any]") -> None:
            if outcome.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        task.add_done_callback(ended)
        future.add_done_callback(cancelled)

    def _give_back(self, discard: Callable[[Any], object], result: Any) -> None:
        unheard: Future[Any] = Future()
        unheard.add_done_callback(_log_failure)
        self._begin(unheard, lambda: discard(result), None)

    # -- end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Awaits `finish` in the loop and ends the thread; may be called again, by any thread."""
        if self._pid != os.getpid():
            return
        if self.inside:
            raise ClientError("The client cannot be closed by its own thread: close it elsewhere")
        with self._lock:
            first, self._closing = not self._closing, True
            if self._thread is None:
                self._closed = True
                return
        try:
            if first:
                self.call(self._finish)
        finally:
            if first:
                self._stop()
            self._thread.join()

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            calls, self._calls = self._calls, deque()
            self._room.notify_all()
            loop = self._loop
        for future, _, _ in calls:
            _settle(future, None, AlreadyClosed("The client is closed"))
        if loop is not None and not loop.is_closed():
            self._stopped.set()
            loop.call_soon_threadsafe(loop.stop)

    def forsake(self) -> None:
        """Closes without waiting: the client is collected, perhaps in the loop's own thread."""
        if self._pid != os.getpid() or self._closing:
            return
        self._closing = True
        if self._loop is not None:
            # Without the lock: a collection may interrupt the thread that holds it.
            finished: Future[Any] = Future()
            finished.add_done_callback(lambda _: self._stop())
            self._loop.call_soon_threadsafe(self._begin, finished, self._finish, None)

    def leave(self) -> None:
        """Closes with a bound on the wait: the interpreter exits."""
        if self._pid == os.getpid() and self._thread is not None:
            self.forsake()
            self._thread.join(EXIT_TIMEOUT_S)


def _settle(future: "Future[Any]", result: Any, error: BaseException | None) -> bool:
    """Whether the caller gets the outcome; it does not if it has cancelled its call."""
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
    except InvalidStateError:
        return False
    except BaseException as failure:  # noqa: BLE001  # a user's callback may raise SystemExit
        log.error("a callback of a future failed", error=repr(failure))
    return True


def _task_of(result: Awaitable[Any]) -> "asyncio.Future[Any]":
    """Returns the future of a call's result; a coroutine becomes a task with its name."""
    if isinstance(result, asyncio.Future):
        return result
    coroutine = result if asyncio.iscoroutine(result) else _awaited(result)
    name = getattr(result, "__qualname__", type(result).__name__)
    return asyncio.get_running_loop().create_task(coroutine, name=f"magnetar-client/{name}")


async def _awaited(result: Awaitable[T]) -> T:
    return await result


def _has_result(future: "Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _log_failure(future: "Future[Any]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("the result of an interrupted call was not given back", error=str(error))


def _serve(loop: asyncio.AbstractEventLoop, stopped: threading.Event) -> None:
    """Runs a loop until it is stopped, then what remains in it. The target of the thread."""
    try:
        ended = False
        while not ended:
            try:
                loop.run_forever()
                ended = True
            except (SystemExit, KeyboardInterrupt) as error:
                # Users' code in a task has raised it. The task's owner has it as well; others
                # still wait for this loop.
                log.error("a task of the client tried to exit", error=repr(error))
                ended = stopped.is_set()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            waiting = asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
            for task in loop.run_until_complete(waiting)[1]:
                log.error("task did not stop", task=task.get_name(), timeout_s=STOP_TIMEOUT_S)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(_end_executor(loop))
    finally:
        loop.close()


async def _end_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Ends the threads that resolve host names."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await loop.shutdown_default_executor()
    except TimeoutError:
        log.warning("a thread that resolves a host name did not end", timeout_s=STOP_TIMEOUT_S)


_portals: "weakref.WeakSet[Portal]" = weakref.WeakSet()


def _leave_all() -> None:
    for portal in list(_portals):
        portal.leave()


atexit.register(_leave_all)
