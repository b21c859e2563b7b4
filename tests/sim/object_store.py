"""The object store of a run: files in memory, on a separate host, behind `obstore`'s functions.

The product opens an S3 store and calls `obstore`; `install` replaces it in the process of one run.
The store answers late, refuses requests, damages uploads, or deletes without an answer, as the
fields of `ObjectStore` say. It reports a deletion of a live file at once.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.abc import MetaPathFinder
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import obstore
import obstore.store
import pyarrow.parquet
from tests.sim.clocks import SimClock
from tests.sim.loop import PROCESS, SimLoop

from magnetar.compaction.records import COMPACTIONS_PREFIX, decode_compaction
from magnetar.offload import file_decode, stores
from magnetar.offload.records import OFFLOADS_PREFIX, decode_offload
from magnetar.offload.store_threads import StoreThreads
from magnetar.offload.stores import StoreSpec

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tests.sim.metadata import MetadataServer

SPEC: Final = StoreSpec(driver="aws-s3", bucket="sim")
HOST: Final = "objects"
ANSWER_S: Final = (0.001, 0.03)
TORN_BYTES_MAX: Final = 400
PRELOADED: Final = (obstore.store, pyarrow.parquet, file_decode)
"""Imported once for all runs instead of in each."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
    """One file, and when it was written, by the store's clock."""

    data: bytes
    written_ms: int
    whole: bool = True
    """The file is as its writer sent it."""


class Ranged(bytes):
    """What `get_range_async` returns."""

    def to_bytes(self) -> bytes:
        return bytes(self)


class ObjectStore:
    """The files of one run, and how their requests fare."""

    def __init__(
        self, loop: SimLoop, metadata: "MetadataServer", violated: Callable[[str], None]
    ) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        self.files: dict[str, Stored] = {}
        self.rng = Random(loop.rng.randrange(1 << 30))
        self.down = False
        self.refuse_chance = 0.0
        """That a request is refused; a deletion that is refused may have been done."""
        self.torn_chance = 0.0
        """That an upload is damaged, and is answered as if it were whole."""
        self._metadata, self._violated = metadata, violated

    def live_paths(self) -> set[str]:
        """Files that a record has as live."""
        return {
            decode_offload(key, one.value).path
            for key, one in self._metadata.store._records.items()
            if key.startswith(OFFLOADS_PREFIX)
        } | {
            file.path
            for key, one in self._metadata.store._records.items()
            if key.startswith(COMPACTIONS_PREFIX)
            for file in decode_compaction(key, one.value).files
        }

    def heal(self) -> None:
        """Every request is done and answered from now on."""
        self.down, self.refuse_chance, self.torn_chance = False, 0.0, 0.0

    # -- requests

    async def asked(self) -> None:
        """A request is on its way, and may be refused."""
        await asyncio.sleep(self.rng.uniform(*ANSWER_S))
        self._refuse()

    def _refuse(self) -> None:
        if self.down or self.rng.random() < self.refuse_chance:
            raise OSError("503 Slow Down")

    def stored(self, path: str) -> Stored:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def put(self, path: str, data: bytes) -> None:
        """Blocks: a file is written whole, or refused, or loses its end."""
        self._refuse()
        kept = self._torn(data) if self.rng.random() < self.torn_chance else data
        self.files[path] = Stored(kept, self.clock.now_ms(), kept == data)

    def _torn(self, data: bytes) -> bytes:
        """What is left of a file: without its end, or with one byte changed."""
        rng = self.rng
        if not data or rng.random() < 0.5:
            return data[: max(len(data) - rng.randint(1, TORN_BYTES_MAX), 0)]
        at = rng.randrange(len(data))
        return data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]

    async def delete(self, path: str) -> None:
        await asyncio.sleep(self.rng.uniform(*ANSWER_S))
        if self.down:
            raise OSError("503 Slow Down")
        if path in self.live_paths():
            self._violated(f"{PROCESS.get().name} deletes {path}, which a record has as live")
        gone = self.files.pop(path, None)
        self._refuse()
        if gone is None:
            raise FileNotFoundError(path)

    async def head(self, path: str) -> dict[str, object]:
        await self.asked()
        return self.described(path)

    def described(self, path: str) -> dict[str, object]:
        found = self.stored(path)
        written = datetime.fromtimestamp(found.written_ms / 1000, UTC)
        return {"path": path, "size": len(found.data), "last_modified": written}


class Listing:
    """What `obstore.list` returns."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def __iter__(self) -> Iterator[list[dict[str, object]]]:
        """One page, for a thread that may block."""
        names = [path for path in sorted(self._store.files) if path.startswith(self._prefix)]
        yield [self._store.described(path) for path in names]

    async def collect_async(self) -> list[dict[str, object]]:
        paths = [path for path in sorted(self._store.files) if path.startswith(self._prefix)]
        return [await self._store.head(path) for path in paths]


class Upload:
    """What `obstore.open_writer` returns."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store, self._path = store, path
        self._parts: list[bytes] = []

    def write(self, data: Any, /) -> None:
        self._parts.append(bytes(data))

    def close(self) -> None:
        self._store.put(self._path, b"".join(self._parts))


class NoPandas(MetaPathFinder):
    """An import of pandas fails."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def install(store: ObjectStore) -> None:
    """From now on `obstore` and the threads of stores are those of the run.

    pyarrow would import pandas for its first array, in the process of each run: it does without.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, NoPandas())

    async def get_range(_: object, path: str, *, start: int, end: int) -> Ranged:
        await store.asked()
        return Ranged(store.stored(path).data[start:end])

    async def put(_: object, path: str, data: bytes) -> None:
        await store.asked()
        store.put(path, data)

    def inline(self: StoreThreads, name: str, work: Callable[[], T]) -> "Future[T]":
        from concurrent.futures import Future

        future: Future[T] = Future()
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001  # as a thread does
            future.set_exception(error)
        return future

    _replace(
        obstore,
        get_range_async=get_range,
        put_async=put,
        head_async=lambda _, path: store.head(path),
        delete_async=lambda _, path: store.delete(path),
        open_writer=lambda _, path, **_more: Upload(store, path),
        list=lambda _, prefix="": Listing(store, prefix),
    )
    _replace(stores, _open_s3=lambda _: store)
    StoreThreads.submit = inline  # type: ignore[method-assign]


def _replace(module: ModuleType, **names: object) -> None:
    for name, value in names.items():
        getattr(module, name)  # it must be there
        setattr(module, name, value)
