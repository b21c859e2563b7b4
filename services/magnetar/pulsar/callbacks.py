"""The threads in which users' callbacks and listeners run, so that those may call the client."""

import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("magnetar.pulsar")


class CallbackThread:
    """Runs functions one after the other, in a thread that starts with the first.

    A forked child has no such thread, and perhaps a lock that stays taken: there, no call waits for
    either.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pid = os.getpid()

    def post(self, function: Callable[[], object]) -> None:
        """Runs a function soon; after `close`, and in a forked child, in the calling thread."""
        if self._pid != os.getpid():
            _run(function)
            return
        with self._lock:
            if not self._closed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                self._queue.put(function)
                return
        _run(function)

    @property
    def inside(self) -> bool:
        """Whether the caller is in this thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while (function := self._queue.get()) is not None:
            _run(function)

    def end(self) -> None:
        """Ends the thread once it has run what was posted; does not wait for that."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            self._queue.put(None)

    def close(self) -> None:
        """Runs what was posted and ends the thread; the thread itself does not wait for it."""
        self.end()
        thread = self._thread if self._pid == os.getpid() else None
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _run(function: Callable[[], object]) -> None:
    try:
        function()
    except BaseException:  # SystemExit as well: others wait for this thread
        log.exception("A callback has failed")
