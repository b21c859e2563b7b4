"""Threads for blocking calls into stores, which may be folders on a network file system.

A call into a hung file system may never return, and its thread cannot be ended. The event loop's
executor also resolves names, so a few hung reads would block all of that. Therefore each store has
its own threads, and a store that hangs delays no other. Once all threads of a store hang, further
calls are refused at once, until one of them returns.

The threads are daemons: unlike those of `concurrent.futures`, they do not keep the process alive.
They start on demand, and end after IDLE_S without work.

Bounds: STORES_MAX stores with calls in flight, and per store THREADS_PER_STORE_MAX threads and
WAITING_MAX waiting calls. The caller sets the deadline; a call whose caller has given up is not
started.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from magnetar.offload.errors import ColdStoreUnavailable

THREADS_PER_STORE_MAX: Final = 8
HANGS_AFTER_S: Final = 10.0
"""A call that takes longer counts as hung."""
WAITING_MAX: Final = 256
STORES_MAX: Final = 32
IDLE_S: Final = 2.0

T = TypeVar("T")


class _Store:
    """The calls and threads of one store, under its lock. `running`: start time per busy thread."""

    __slots__ = ("changed", "idle", "running", "threads", "waiting")

    def __init__(self, lock: threading.Lock) -> None:
        self.changed = threading.Condition(lock)
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.running: dict[int, float] = {}
        self.idle = 0
        self.threads = 0


class StoreThreads:
    """Runs blocking calls on threads that belong to one store each. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[str, _Store] = {}

    def submit(self, name: str, work: Callable[[], T]) -> "Future[T]":
        """A future for the result of `work`. Raises ColdStoreUnavailable if the store hangs."""
        with self._lock:
            store = self._stores.get(name)
            if store is None:
                if sum(map(_busy, self._stores.values())) >= STORES_MAX:
                    raise ColdStoreUnavailable(f"{name}: {STORES_MAX} other stores are in use")
                store = self._stores[name] = _Store(self._lock)
            _check(name, store)
            future: Future[T] = Future()
            store.waiting.append((future, work))
            if len(store.waiting) <= store.idle:
                store.changed.notify()
            elif store.threads < THREADS_PER_STORE_MAX:
                self._start(name, store)
        return future

    def _start(self, name: str, store: _Store) -> None:
        thread = threading.Thread(
            target=self._work, args=(name, store), name=f"store {name}", daemon=True
        )
        store.threads += 1
        try:
            thread.start()
        except RuntimeError as error:  # the process can start no more threads
            store.threads -= 1
            store.waiting.pop()
            self._forget_unused(name, store)
            raise ColdStoreUnavailable(f"{name} cannot be read now: {error}") from error

    def _work(self, name: str, store: _Store) -> None:
        me = threading.get_ident()
        while (item := self._next(name, store, me)) is not None:
            future, work = item
            begun = future.set_running_or_notify_cancel()
            result, error = _outcome(work) if begun else (None, None)
            with self._lock:
                del store.running[me]
            if error is not None:
                future.set_exception(error)
            elif begun:
                future.set_result(result)
            del item, future, work, result, error  # an idle thread holds no file's bytes

    def _next(
        self, name: str, store: _Store, me: int
    ) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Takes the next call for this thread; None if the thread shall end."""
        with self._lock:
            if not store.waiting:
                store.idle += 1
                store.changed.wait_for(lambda: store.waiting, IDLE_S)
                store.idle -= 1
            if not store.waiting:
                store.threads -= 1
                self._forget_unused(name, store)
                return None
            store.running[me] = time.monotonic()
            return store.waiting.popleft()

    def _forget_unused(self, name: str, store: _Store) -> None:
        if not store.threads:
            del self._stores[name]


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001  it is raised to the caller
        return None, error


def _busy(store: _Store) -> bool:
    return bool(store.running or store.waiting)


def _check(name: str, store: _Store) -> None:
    """Raises ColdStoreUnavailable if a new call could not run."""
    latest = time.monotonic() - HANGS_AFTER_S
    hanging = sum(began <= latest for began in store.running.values())
    if hanging == THREADS_PER_STORE_MAX:
        raise ColdStoreUnavailable(f"{name} does not answer: {hanging} reads hang")
    if len(store.waiting) >= WAITING_MAX:
        waiting = [item for item in store.waiting if not item[0].cancelled()]
        store.waiting.clear()
        store.waiting.extend(waiting)
        if len(waiting) >= WAITING_MAX:
            raise ColdStoreUnavailable(f"{name} does not answer in time: {len(waiting)} reads wait")


_threads: Final = StoreThreads()


async def in_thread_of(name: str, work: Callable[[], T]) -> T:
    """Runs blocking work on a thread of this store. Raises ColdStoreUnavailable, and any error of
    `work`. The deadline is the caller's; after it the work may continue."""
    return await asyncio.wrap_future(_threads.submit(name, work))
