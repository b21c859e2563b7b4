"""Open files and row groups in memory, shared by all who read cold data in a process.

Row groups are kept up to `cache_bytes_max`, the one used longest ago goes first. A group that
several want is fetched once (single flight), and the fetch goes on where one who waits gives up.
Who reads a group has the next one fetched meanwhile, while fetches are free: at most
FETCHES_AT_ONCE_MAX are under way, read-ahead takes no more than half of them and of the cache. A
fetch has a deadline and is tried FETCH_ATTEMPTS_MAX times; then `ColdStoreUnavailable`, which tells
clients to try again. Decoding is done by DECODERS_MAX threads, which start with the first group.

A file never changes: what is kept of it stays true until it is deleted.
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
from magnetar.offload.file_format import ColdEntry, EntryFile
from magnetar.offload.store_threads import in_thread_of
from magnetar.offload.stores import StoreSpec, open_object_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from obstore.store import ObjectStore

CACHE_BYTES_DEFAULT: Final = 64 << 20
FILES_OPEN_MAX: Final = 128
TIMES_KEPT_MAX: Final = 32
"""Row groups of which the publish times are kept: 128 KiB each at most."""
STORES_OPEN_MAX: Final = 32
FETCHES_AT_ONCE_MAX: Final = 8
FETCH_ATTEMPTS_MAX: Final = 3
RETRY_FIRST_DELAY_S: Final = 0.05
FETCH_DEADLINE_S: Final = 12.0
"""For all attempts. A dispatcher waits 30 s for a read, which may need a footer and a group."""
DECODERS_MAX: Final = 2
ENTRY_OVERHEAD_BYTES: Final = 150
"""What an entry in memory takes beside its data."""

T = TypeVar("T")


class ColdCounters:
    """For /metrics: what was read from stores, and how it went."""

    __slots__ = ("errors", "files_open", "group_hits", "group_reads", "read_bytes", "read_seconds")

    def __init__(self) -> None:
        self.errors = self.files_open = self.group_hits = self.group_reads = self.read_bytes = 0
        self.read_seconds = 0.0


@dataclass(frozen=True, slots=True)
class FileRef:
    """Which file; `file_bytes` as its record says."""

    store: StoreSpec
    path: str
    file_bytes: int | None = None


@dataclass(slots=True)
class _Kept:
    entries: list[ColdEntry]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    result: T | None
    error: Exception | None = None


class ColdFiles:
    """See the module's text. One per process; `close` at its end."""

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
        """What the row groups in memory take."""
        return self._kept_bytes

    async def store(self, spec: StoreSpec) -> "ObjectStore":
        """The store, opened once. Raises OffloadMisconfigured, ColdStoreUnavailable."""
        found = self._stores.get(spec)
        if found is None:
            found = await in_thread_of(str(spec), lambda: open_object_store(spec))
            self._stores[spec] = found
            if len(self._stores) > STORES_OPEN_MAX:
                self._stores.popitem(last=False)
        else:
            self._stores.move_to_end(spec)
        return found

    async def open(self, ref: FileRef) -> EntryFile:
        """The file with its footer read. Raises ColdFileMissing, ColdFileCorrupt,
        ColdStoreUnavailable."""
        found = self._files.get(ref)
        if found is not None:
            self._files.move_to_end(ref)
            return found
        return await self._once(ref, lambda: self._open(ref))

    async def group(self, ref: FileRef, number: int, *, ahead: bool = True) -> list[ColdEntry]:
        """The entries of one row group; with `ahead` the next one is fetched as well."""
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
        """When the entries of one row group were published, in ms since 1970; 0 where unknown.

        Only that column is fetched. The last TIMES_KEPT_MAX are kept: searches ask often.
        """
        key = (ref, number)
        kept = self._times.get(key)
        if kept is not None:
            self._times.move_to_end(key)
            return kept
        file = await self.open(ref)
        return await self._once(("times", key), lambda: self._read_times(file, key))

    def forget(self, ref: FileRef) -> None:
        """Lets go of what is in memory of a file."""
        self._files.pop(ref, None)
        for key in [key for key in self._times if key[0] == ref]:
            del self._times[key]
        for key in [key for key in self._groups if key[0] == ref]:
            self._kept_bytes -= self._groups.pop(key).memory_bytes

    async def close(self) -> None:
        """Ends fetches and threads. Idempotent."""
        await self._tasks.stop()
        self._groups.clear()
        self._kept_bytes = 0
        if self._decoders is not None:
            self._decoders.shutdown(wait=True, cancel_futures=True)

    # -- fetching

    async def _once(self, key: object, work: "Callable[[], Awaitable[T]]") -> T:
        """Single flight: `work` is done once for all who want it now."""
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
        """An error is a result: there may be nobody left who waits for it."""
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

    async def _open(self, ref: FileRef) -> EntryFile:
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

    async def _read(self, file: EntryFile, ref: FileRef, number: int) -> list[ColdEntry]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        entries = await file.read_group(number)
        group = file.groups[number]
        self.counters.group_reads += 1
        self.counters.read_bytes += group.end - group.start
        self.counters.read_seconds += loop.time() - began
        self._keep((ref, number), entries, group.data_bytes + group.rows * ENTRY_OVERHEAD_BYTES)
        return entries

    async def _read_times(self, file: EntryFile, key: tuple[FileRef, int]) -> "Sequence[int]":
        found = await file.publish_times(key[1])
        times = self._times[key] = array("q", (each or 0 for each in found))
        if len(self._times) > TIMES_KEPT_MAX:
            self._times.popitem(last=False)
        return times

    def _keep(self, key: tuple[FileRef, int], entries: list[ColdEntry], size: int) -> None:
        self._groups[key] = _Kept(entries, size)
        self._kept_bytes += size
        while self._kept_bytes > self.cache_bytes_max and self._groups:
            _, gone = self._groups.popitem(last=False)
            self._kept_bytes -= gone.memory_bytes

    def _read_ahead(self, file: EntryFile, ref: FileRef, number: int) -> None:
        key = (ref, number)
        if number >= len(file.groups) or key in self._groups or key in self._flights:
            return
        room = self.cache_bytes_max // 2 - file.groups[number].data_bytes * (len(self._ahead) + 1)
        if room < 0 or len(self._ahead) >= FETCHES_AT_ONCE_MAX // 2:
            return
        self._ahead.add(key)

        async def fetch() -> None:
            try:
                # Where it fails, whoever comes to need the group asks again, and is told.
                with contextlib.suppress(MagnetarError):
                    await self._once(key, lambda: self._read(file, ref, number))
            finally:
                self._ahead.discard(key)

        self._tasks.start(fetch(), "read ahead")

    def _decoding(self) -> ThreadPoolExecutor:
        if self._decoders is None:
            self._decoders = ThreadPoolExecutor(DECODERS_MAX, thread_name_prefix="cold")
        return self._decoders
