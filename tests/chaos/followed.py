"""Keys that come into being below a prefix of metadata, followed by a thread of its own.

What is done to processes meanwhile is synchronous, and misses none.
"""

import asyncio
import threading
from typing import Final

from magnetar.core.clock import SystemClock
from magnetar.jobs.event_loop import run
from magnetar.metadata.store import EventKind, Watch
from magnetar.metadata.store_url import StoreOptions, open_store

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0


class Followed:
    """A context manager. What was there before it was entered does not count."""

    def __init__(self, metadata_url: str, prefix: str) -> None:
        self._url = metadata_url
        self._prefix = prefix
        self._keys: dict[str, None] = {}
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=lambda: run(self._follow()), name="follow keys")

    def __enter__(self) -> "Followed":
        self._thread.start()
        assert self._started.wait(START_TIMEOUT_S), f"{self._prefix} cannot be watched"
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._watch is not None:
            self._loop.call_soon_threadsafe(self._watch.close)
        self._thread.join(STOP_TIMEOUT_S)

    @property
    def keys(self) -> list[str]:
        """All that were put so far, in order, each once; those that are gone again, too."""
        return list(self._keys)

    async def _follow(self) -> None:
        store = await open_store(self._url, SystemClock(), StoreOptions())
        try:
            before = {record.key for record in await store.list(self._prefix)}
            self._loop = asyncio.get_running_loop()
            self._watch = store.watch(self._prefix)
            self._started.set()
            async for event in self._watch:
                if event.kind is EventKind.PUT and event.record.key not in before:
                    self._keys[event.record.key] = None
        finally:
            await store.close()
