"""Threads for blocking work on stores: folders may be on a network's file system that hangs.

A call into such a file system may never return, and its thread cannot be ended. So the loop's own
executor is not used, which resolves names, too: a few dead reads would take all of it. Each store
has threads of its own, and one that hangs holds up no other. Once all of a store's threads hang,
more work is refused at once, until one comes back.

The threads are daemons: unlike those of `concurrent.futures`, they do not keep the process from
ending. They start with the work, and end when there was none for IDLE_S.

Bounds: STORES_MAX stores with calls under way, THREADS_PER_STORE_MAX threads and WAITING_MAX
waiting calls of each. Who waits sets the deadline; work that nobody waits for any more is
not begun.
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
"""A call that takes longer counts as one that hangs."""
WAITING_MAX: Final = 256
STORES_MAX: Final = 32
IDLE_S: Final = 2.0

T = TypeVar("T")


class _Store:
    """Of one store, under its lock. `running`: when each busy thread's call began."""

    __slots__ = ("changed", "idle", "running", "threads", "waiting")

    def __init__(self, lock: threading.Lock) -> None:
        self.changed = threading.Condition(lock)
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.running: dict[int, float] = {}
        self.idle = 0
        self.threads = 0


class StoreThreads:
    """See the module's text. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[str, _Store] = {}

    def submit(self, name: str, work: Callable[[], T]) -> "Future[T]":
        """What `work` will return or raise. Raises ColdStoreUnavailable where the store hangs."""
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
        except RuntimeError as error:  # no more threads of this process
            store.threads -= 1
            store.waiting.pop()
            self._let_go(name, store)
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
        """The next call, from here on this thread's; None: it shall end."""
        with self._lock:
            if not store.waiting:
                store.idle += 1
                store.changed.wait_for(lambda: store.waiting, IDLE_S)
                store.idle -= 1
            if not store.waiting:
                store.threads -= 1
                self._let_go(name, store)
                return None
            store.running[me] = time.monotonic()
            return store.waiting.popleft()

    def _let_go(self, name: str, store: _Store) -> None:
        if not store.threads:
            del self._stores[name]


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001  it is raised to who waits
        return None, error


def _busy(store: _Store) -> bool:
    return bool(store.running or store.waiting)


def _check(name: str, store: _Store) -> None:
    """Raises ColdStoreUnavailable where a call would wait for nothing."""
    latest = time.monotonic() - HANGS_AFTER_S
    hanging = sum(began <= latest for began in store.running.values())
    if hanging == THREADS_PER_STORE_MAX:
        raise ColdStoreUnavailable(f"{name} does not answer: {hanging} reads hang")
    if len(store.waiting) >= WAITING_MAX:
        still = [item for item in store.waiting if not item[0].cancelled()]
        store.waiting.clear()
        store.waiting.extend(still)
        if len(still) >= WAITING_MAX:
            raise ColdStoreUnavailable(f"{name} does not answer in time: {len(still)} reads wait")


_threads: Final = StoreThreads()


async def in_thread_of(name: str, work: Callable[[], T]) -> T:
    """Does blocking work on a thread of this store's. Raises ColdStoreUnavailable, and what `work`
    does. The deadline is the caller's; at its end the work may go on."""
    return await asyncio.wrap_future(_threads.submit(name, work))
