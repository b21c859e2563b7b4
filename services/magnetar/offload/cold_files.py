"""Open files and decoded row groups, shared by all readers of cold data in a process.

Row groups are cached up to `cache_bytes_max`; the least recently used group is evicted first. If
several readers want a group, it is fetched once (single flight), and the fetch continues if one of
them gives up. Reading a group prefetches the next one while fetches are free: at most
FETCHES_AT_ONCE_MAX are in flight, and read-ahead takes at most half of them and of the cache. A
fetch has a deadline and is tried FETCH_ATTEMPTS_MAX times; then `ColdStoreUnavailable` asks clients
to retry. DECODERS_MAX threads decode; they start with the first group.

A file never changes, so cached data stays valid until the file is deleted.
"""

import asyncio
import contextlib
import random
from array import array
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from magnetar.core.errors import MagnetarError
from magnetar.core.tasks import TaskSet
from magnetar.offload.errors import ColdStoreUnavailable
from magnetar.offload.store_threads import in_thread_of
from magnetar.offload.stores import StoreSpec, open_object_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from obstore.store import ObjectStore

    from magnetar.offload.file_format import ColdEntry, EntryFile

CACHE_BYTES_DEFAULT: Final = 64 << 20
FILES_OPEN_MAX: Final = 128
TIMES_KEPT_MAX: Final = 32
"""Row groups whose publish times are cached, at most 128 KiB each."""
STORES_OPEN_MAX: Final = 32
FETCHES_AT_ONCE_MAX: Final = 8
FETCH_ATTEMPTS_MAX: Final = 3
RETRY_FIRST_DELAY_S: Final = 0.05
FETCH_DEADLINE_S: Final = 12.0
"""Deadline of all attempts. A read may need a footer and a group; a dispatcher waits 30 s."""
DECODERS_MAX: Final = 2
ENTRY_OVERHEAD_BYTES: Final = 150
"""Memory per entry beside its data."""

T = TypeVar("T")


class ColdCounters:
    """Metrics of reads from stores."""

    __slots__ = ("errors", "files_open", "group_hits", "group_reads", "read_bytes", "read_seconds")

    def __init__(self) -> None:
        self.errors = self.files_open = self.group_hits = self.group_reads = self.read_bytes = 0
        self.read_seconds = 0.0


@dataclass(frozen=True, slots=True)
class FileRef:
    """Identifies a file; `file_bytes` is its size on record."""

    store: StoreSpec
    path: str
    file_bytes: int | None = None


@dataclass(slots=True)
class _Kept:
    entries: "list[ColdEntry]"
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    result: T | None
    error: Exception | None = None


class ColdFiles:
    """A cache of open files and row groups. One per process; call `close` at its end."""

    def __init__(self, cache_bytes_max: int = CACHE_BYTES_DEFAULT) -> None:
        self.cache_bytes_max = cache_bytes_max
        self.counters = ColdCounters()
        self._stores: OrderedDict[StoreSpec, ObjectStore] = OrderedDict()
        self._files: OrderedDict[FileRef, EntryFile] = OrderedDict()
        self._groups: OrderedDict[tuple[FileRef, int], _Kept] = OrderedDict()
        self._times: OrderedDict[tuple[FileRef, int], array[int]] = OrderedDict()
        self._kept_bytes = 0
        self._flights: dict[object, asyncio.Task[Any]] = {}
        self._ahead: set[tuple[FileRef, int]] = set()
        self._tasks = TaskSet("cold")
        self._fetches: asyncio.Semaphore | None = None
        self._decoders: ThreadPoolExecutor | None = None

    @property
    def kept_bytes(self) -> int:
        """The memory taken by cached row groups."""
        return self._kept_bytes

    async def store(self, spec: StoreSpec) -> "ObjectStore":
        """The opened store. Raises OffloadMisconfigured, ColdStoreUnavailable."""
        store = self._stores.get(spec)
        if store is None:
            store = await in_thread_of(str(spec), lambda: open_object_store(spec))
            self._stores[spec] = store
            if len(self._stores) > STORES_OPEN_MAX:
                self._stores.popitem(last=False)
        else:
            self._stores.move_to_end(spec)
        return store

    async def open(self, ref: FileRef) -> "EntryFile":
        """The opened file. Raises ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable."""
        file = self._files.get(ref)
        if file is not None:
            self._files.move_to_end(ref)
            return file
        return await self._once(ref, lambda: self._open(ref))

    async def group(self, ref: FileRef, number: int, *, ahead: bool = True) -> "list[ColdEntry]":
        """The entries of one row group; with `ahead`, the next group is prefetched."""
        file = await self.open(ref)
        kept = self._groups.get((ref, number))
        if kept is not None:
            self._groups.move_to_end((ref, number))
            self.counters.group_hits += 1
            entries = kept.entries
        else:
            entries = await self._once((ref, number), lambda: self._read(file, ref, number))
        if ahead:
            self._read_ahead(file, ref, number + 1)
        return entries

    async def publish_times(self, ref: FileRef, number: int) -> "Sequence[int]":
        """The publish times of a row group's entries, in ms since 1970; 0 if unknown.

        Fetches only that column. The last TIMES_KEPT_MAX are cached, since searches repeat.
        """
        key = (ref, number)
        kept = self._times.get(key)
        if kept is not None:
            self._times.move_to_end(key)
            return kept
        file = await self.open(ref)
        return await self._once(("times", key), lambda: self._read_times(file, key))

    def forget(self, ref: FileRef) -> None:
        """Evicts all that is cached of a file."""
        self._files.pop(ref, None)
        for key in [key for key in self._times if key[0] == ref]:
            del self._times[key]
        for key in [key for key in self._groups if key[0] == ref]:
            self._kept_bytes -= self._groups.pop(key).memory_bytes

    async def close(self) -> None:
        """Stops fetches and threads. Idempotent."""
        await self._tasks.stop()
        self._groups.clear()
        self._kept_bytes = 0
        if self._decoders is not None:
            self._decoders.shutdown(wait=True, cancel_futures=True)

    async def _once(self, key: object, work: "Callable[[], Awaitable[T]]") -> T:
        """Single flight: concurrent callers with the same key share one run of `work`."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._tasks.start(self._flight(work), "fetch")
            if flight is None:
                raise ColdStoreUnavailable("the broker is stopping")
            self._flights[key] = flight
            flight.add_done_callback(lambda _: self._flights.pop(key, None))
        outcome: _Outcome[T] = await asyncio.shield(flight)
        if outcome.error is not None:
            raise outcome.error
        return cast("T", outcome.result)

    async def _flight(self, work: "Callable[[], Awaitable[T]]") -> "_Outcome[T]":
        """Returns an error as a result: no caller may be left to raise it to."""
        try:
            async with asyncio.timeout(FETCH_DEADLINE_S):
                return _Outcome(await self._tried(work))
        except TimeoutError:
            self.counters.errors += 1
            late = f"the object store has not answered in {FETCH_DEADLINE_S:g} s"
            return _Outcome(None, ColdStoreUnavailable(late))
        except MagnetarError as error:
            self.counters.errors += 1
            return _Outcome(None, error)

    async def _tried(self, work: "Callable[[], Awaitable[T]]") -> T:
        if self._fetches is None:
            self._fetches = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)
        async with self._fetches:
            for attempt in range(1, FETCH_ATTEMPTS_MAX):
                try:
                    return await work()
                except ColdStoreUnavailable:
                    delay_s = RETRY_FIRST_DELAY_S * 2**attempt
                    await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            return await work()

    async def _open(self, ref: FileRef) -> "EntryFile":
        # Imported here: a process without cold data does not need it.
        from magnetar.offload.file_format import EntryFile

        file = await EntryFile.open(
            await self.store(ref.store),
            ref.path,
            file_bytes=ref.file_bytes,
            executor=self._decoding(),
        )
        self._files[ref] = file
        while len(self._files) > FILES_OPEN_MAX:
            self._files.popitem(last=False)
        self.counters.files_open = len(self._files)
        return file

    async def _read(self, file: "EntryFile", ref: FileRef, number: int) -> "list[ColdEntry]":
        loop = asyncio.get_running_loop()
        began = loop.time()
        entries = await file.read_group(number)
        group = file.groups[number]
        self.counters.group_reads += 1
        self.counters.read_bytes += group.end - group.start
        self.counters.read_seconds += loop.time() - began
        self._keep((ref, number), entries, group.data_bytes + group.rows * ENTRY_OVERHEAD_BYTES)
        return entries

    async def _read_times(self, file: "EntryFile", key: tuple[FileRef, int]) -> "Sequence[int]":
        publish_ms = await file.publish_times(key[1])
        times = self._times[key] = array("q", (time_ms or 0 for time_ms in publish_ms))
        if len(self._times) > TIMES_KEPT_MAX:
            self._times.popitem(last=False)
        return times

    def _keep(self, key: tuple[FileRef, int], entries: "list[ColdEntry]", size: int) -> None:
        self._groups[key] = _Kept(entries, size)
        self._kept_bytes += size
        while self._kept_bytes > self.cache_bytes_max and self._groups:
            _, evicted = self._groups.popitem(last=False)
            self._kept_bytes -= evicted.memory_bytes

    def _read_ahead(self, file: "EntryFile", ref: FileRef, number: int) -> None:
        key = (ref, number)
        if number >= len(file.groups) or key in self._groups or key in self._flights:
            return
        room = self.cache_bytes_max // 2 - file.groups[number].data_bytes * (len(self._ahead) + 1)
        if room < 0 or len(self._ahead) >= FETCHES_AT_ONCE_MAX // 2:
            return
        self._ahead.add(key)

        async def fetch() -> None:
            try:
                # On failure, the reader that needs the group fetches it again and gets the error.
                with contextlib.suppress(MagnetarError):
                    await self._once(key, lambda: self._read(file, ref, number))
            finally:
                self._ahead.discard(key)

        self._tasks.start(fetch(), "read ahead")

    def _decoding(self) -> ThreadPoolExecutor:
        if self._decoders is None:
            self._decoders = ThreadPoolExecutor(DECODERS_MAX, thread_name_prefix="cold")
        return self._decoders
