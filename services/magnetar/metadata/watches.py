"""Watches of the in-process stores: one hub per store, with the recent events.

The hub keeps the last events in memory (EVENTS_KEPT_MAX, EVENTS_KEPT_BYTES_MAX), so that a watch
can start at a recent revision without a gap. Each watch has a queue of shared events. A watch that
falls more than WATCH_EVENTS_MAX behind ends with Compacted: a slow watcher costs bounded memory and
never delays a writer.

The hub finds the watches of an event by the prefixes of its key, with one dictionary lookup per
distinct length of a watched prefix. It holds weak references: a watch that its user dropped is
gone.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Self
from weakref import WeakSet

from magnetar.metadata.store import Compacted, InvalidOperation, StoreClosed, WatchEvent

EVENTS_KEPT_MAX: Final = 4096
EVENTS_KEPT_BYTES_MAX: Final = 8 << 20
WATCH_EVENTS_MAX: Final = 8192


class LocalWatch:
    """A `Watch` of an in-process store."""

    def __init__(self, hub: "WatchHub", prefix: str, from_revision: int) -> None:
        self._hub = hub
        self.prefix = prefix
        self.from_revision = from_revision
        self._queue: deque[WatchEvent] = deque()
        self._arrived = asyncio.Event()
        self._end: BaseException | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._queue:
            if self._end is not None:
                raise self._end
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()

    def offer(self, event: WatchEvent) -> None:
        """Queues an event, or ends the watch with Compacted if its queue is full."""
        if event.record.revision < self.from_revision or self._end is not None:
            return
        if len(self._queue) >= WATCH_EVENTS_MAX:
            self._queue.clear()
            first = self.from_revision
            self.end(
                Compacted(
                    f"watch of {self.prefix!r} fell behind: more than "
                    f"{WATCH_EVENTS_MAX} events since revision {first} were not read"
                )
            )
            return
        self._queue.append(event)
        self._arrived.set()

    def end(self, reason: BaseException) -> None:
        """Makes `anext` raise `reason` after the queued events."""
        if self._end is None:
            self._end = reason
            self._hub.forget(self)
        self._arrived.set()

    def close(self) -> None:
        self._queue.clear()
        self.end(StopAsyncIteration())


class WatchHub:
    """Delivers the events of a store to its watches, and keeps the recent ones."""

    def __init__(self, revision: int = 0) -> None:
        self._revision = revision
        self._gone = revision
        """The newest revision with an event that `_kept` may lack."""
        self._kept: deque[WatchEvent] = deque()
        self._kept_bytes = 0
        self._watches: dict[str, WeakSet[LocalWatch]] = {}
        self._lengths: tuple[int, ...] = ()

    def __len__(self) -> int:
        return sum(len(watches) for watches in self._watches.values())

    def publish(self, revision: int, events: Sequence[WatchEvent]) -> None:
        """Delivers the events of one revision, in the order of their operations."""
        self._revision = revision
        for event in events:
            self._keep(event)
            key = event.record.key
            for length in self._lengths:
                if length > len(key):
                    break
                if (watches := self._watches.get(key[:length])) is not None:
                    for watch in tuple(watches):
                        watch.offer(event)

    def _keep(self, event: WatchEvent) -> None:
        self._kept.append(event)
        self._kept_bytes += len(event.record.key) + len(event.record.value)
        while len(self._kept) > EVENTS_KEPT_MAX or self._kept_bytes > EVENTS_KEPT_BYTES_MAX:
            old = self._kept.popleft().record
            self._kept_bytes -= len(old.key) + len(old.value)
            self._gone = old.revision

    def watch(self, prefix: str, from_revision: int | None) -> LocalWatch:
        """Starts a watch; queues the kept events since `from_revision` at once."""
        if from_revision is not None and from_revision < 1:
            raise InvalidOperation(f"no revision is {from_revision}")
        first = self._revision + 1 if from_revision is None else from_revision
        watch = LocalWatch(self, prefix, first)
        if first <= self._gone:
            watch.end(Compacted(f"revision {first} is compacted; watch from {self._gone + 1}"))
        else:
            for event in self._missed(prefix, first):
                watch.offer(event)
            if prefix not in self._watches:
                self._sweep()
            self._watches.setdefault(prefix, WeakSet()).add(watch)
            self._lengths = tuple(sorted({len(prefix) for prefix in self._watches}))
        return watch

    def _missed(self, prefix: str, first: int) -> Sequence[WatchEvent]:
        """Returns the kept events from revision `first` on, in order."""
        missed: list[WatchEvent] = []
        for event in reversed(self._kept):
            if event.record.revision < first:
                break
            if event.record.key.startswith(prefix):
                missed.append(event)
        missed.reverse()
        return missed

    def _sweep(self) -> None:
        """Removes the prefixes without living watches."""
        for prefix in [prefix for prefix, watches in self._watches.items() if not watches]:
            del self._watches[prefix]

    def forget(self, watch: LocalWatch) -> None:
        """Removes a watch that has ended."""
        if (watches := self._watches.get(watch.prefix)) is not None:
            watches.discard(watch)
            if not watches:
                del self._watches[watch.prefix]
                self._lengths = tuple(sorted({len(prefix) for prefix in self._watches}))

    def close(self) -> None:
        """Ends every watch with StoreClosed after its queued events. The store opens no more."""
        for watches in list(self._watches.values()):
            for watch in tuple(watches):
                watch.end(StoreClosed("the metadata store is closed"))
