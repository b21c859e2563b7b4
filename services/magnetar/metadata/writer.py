"""The thread on which the embedded store opens, writes, syncs and closes its files.

Jobs run in order, one at a time, and report their results to the event loop. The caller bounds the
queue: the store has at most one group of writes in flight.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_Job = Callable[[], None]


class WriterThread:
    """A named thread with a queue of jobs."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # A daemon thread: a process that exits without `stop` loses no acknowledged write.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Runs `work` on the thread, then `done` on the loop with its result or exception."""

        def job() -> None:
            result: T | BaseException
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - reported to the loop
                result = error
            self._report(done, result)

        self._jobs.put(job)

    def _report(self, done: Callable[[T | BaseException], None], result: T | BaseException) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(done, result)

    async def call(self, work: Callable[[], T]) -> T:
        """Runs `work` on the thread and returns its result."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(work, done)
        return await future

    def stop(self) -> None:
        """Ends the thread after its queued jobs."""
        self._jobs.put(None)
