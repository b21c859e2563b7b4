"""Writes and reads entry files: Parquet with one row per entry, sorted by position.

The writer takes entries in order and holds one row group of them in memory (ROW_GROUP_BYTES of
data, or the entry that exceeds it). It counts and checksums the written bytes.

The reader fetches the footer when it opens the file, and then one row group per request. It checks
the bytes of both against their checksums before Arrow parses them. Arrow runs in an executor's
thread, never on the event loop.
"""

import asyncio
import io
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import google_crc32c
import msgspec

from magnetar.bookie.api import StoredEntry
from magnetar.core.ids import EARLIEST, Position
from magnetar.offload.errors import ColdFileCorrupt, ColdStoreUnavailable
from magnetar.offload.file_decode import (
    PARQUET_MAGIC,
    BadEntry,
    decode,
    publish_times,
    read_footer,
    times_range,
)
from magnetar.offload.file_decode import ColdEntry as ColdEntry
from magnetar.offload.file_layout import (
    CRC,
    DATA,
    FORMAT_VERSION,
    KEY_MANAGED_LEDGER,
    KEY_PROPERTIES,
    KEY_VERSION,
    PROPERTIES_COLUMNS,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS_MAX,
    FileIndex,
    GroupIndex,
    check_footer,
    decode_index,
    encode_index,
    schema,
    sealed_footer,
)
from magnetar.offload.file_rows import GroupRows
from magnetar.offload.folder_reads import read_range
from magnetar.offload.store_threads import in_thread_of
from magnetar.offload.stores import store_error
from magnetar.wire.checksum import crc32c

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FETCH_TIMEOUT_S: Final = 90.0
"""Deadline of one request for a file's bytes, including the store's retries."""
TAIL_BYTES: Final = 64 << 10
"""Fetched first: most footers are smaller, so one request suffices."""
FOOTER_END_BYTES: Final = 8

_last = attrgetter("last")


class Sink(Protocol):
    """Takes a file's bytes: a local file, or the writer that `obstore.open_writer` returns."""

    def write(self, data: Any, /) -> Any: ...

    def close(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """The properties of a written file, for its record."""

    file_bytes: int
    checksum: int
    entries: int
    length_bytes: int
    first: Position
    last: Position


class _Counted(io.RawIOBase):
    """Counts and checksums the bytes that it passes to a sink. Closing it leaves the sink open.

    `group_checksum` covers the bytes since it was set to 0. While `footer` is a list, it collects
    the footer's bytes instead of passing them on.
    """

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink
        self.size = 0
        self.checksum = 0
        self.group_checksum = 0
        self.footer: list[bytes] | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any, /) -> int:
        chunk = bytes(data)
        if self.footer is not None:
            self.footer.append(chunk)
        else:
            self._sink.write(chunk)
            self.checksum = google_crc32c.extend(self.checksum, chunk)
            self.group_checksum = google_crc32c.extend(self.group_checksum, chunk)
        self.size += len(chunk)
        return len(chunk)

    def seal(self) -> None:
        """Writes the collected footer with its own checksum."""
        footer, self.footer = sealed_footer(b"".join(self.footer or ())), None
        self._sink.write(footer)
        self.checksum = google_crc32c.extend(self.checksum, footer)

    def drop(self) -> None:
        """Discards all further bytes."""
        self.footer = []


class EntryFileWriter:
    """Writes one entry file to a sink. Not thread-safe.

    `compression` is that of the data column: "none" (producers compress most entries), or "zstd".
    After an error call `abandon`, and delete the incomplete file.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        managed_ledger: str,
        properties: Mapping[str, str] | None = None,
        compression: str = "none",
        group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        import pyarrow.parquet as pq

        self._sink = sink
        self._counted = _Counted(sink)
        self._group_bytes = group_bytes
        self._rows = GroupRows()
        self._groups: list[GroupIndex] = []
        self._first = self._last = EARLIEST
        self._length_bytes = self._entries = 0
        self._head = {
            KEY_VERSION: b"%d" % FORMAT_VERSION,
            KEY_MANAGED_LEDGER: managed_ledger.encode(),
            KEY_PROPERTIES: msgspec.json.encode(dict(properties or {})),
        }
        names = [name for name in schema().names if name != DATA]
        self._writer = pq.ParquetWriter(
            self._counted,
            schema(),
            version="2.6",
            compression=dict.fromkeys((*names, *PROPERTIES_COLUMNS), "zstd") | {DATA: compression},
            use_dictionary=["partition_key", "producer", "compression", "schema_version"],
            write_statistics=[name for name in names if name not in (CRC, "properties")],
            write_page_checksum=True,
            store_schema=False,
        )

    def add(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        """Appends an entry. Raises ValueError if it does not follow the previous one."""
        position = Position(ledger_id, entry_id)
        if position <= self._last:
            raise ValueError(f"entry {position} comes after {self._last}")
        if not self._entries:
            self._first = position
        self._last = position
        self._entries += 1
        self._length_bytes += len(data)
        rows = self._rows
        rows.add(ledger_id, entry_id, data)
        if rows.data_bytes >= self._group_bytes or len(rows) >= ROW_GROUP_ROWS_MAX:
            self._flush()

    def add_entries(self, ledger_id: int, entries: Iterable[StoredEntry]) -> None:
        """Appends entries of one ledger."""
        for entry_id, data in entries:
            self.add(ledger_id, entry_id, data)

    def close(self) -> WrittenFile:
        """Completes the file and closes the sink. The file is whole when this returns."""
        if len(self._rows):
            self._flush()
        index = FileIndex(tuple(self._groups), self._entries, self._length_bytes)
        self._counted.footer = []
        self._writer.add_key_value_metadata(self._head | encode_index(index))
        self._writer.close()
        self._counted.seal()
        self._sink.close()
        return WrittenFile(
            self._counted.size,
            self._counted.checksum,
            self._entries,
            self._length_bytes,
            self._first,
            self._last,
        )

    def abandon(self) -> None:
        """Releases memory without completing the file; leaves the sink open."""
        self._rows = GroupRows()
        self._counted.drop()
        self._writer.close()

    def _flush(self) -> None:
        rows, self._rows = self._rows, GroupRows()
        counted = self._counted
        start, counted.group_checksum = counted.size, 0
        self._writer.write_table(rows.table(), row_group_size=len(rows))
        self._groups.append(rows.index(start, counted.size, counted.group_checksum))


@dataclass(frozen=True, slots=True)
class Group:
    """One row group of a file: its entries, and its byte range."""

    number: int
    first: Position
    last: Position
    rows: int
    data_bytes: int
    publish_ms_min: int
    publish_ms_max: int
    start: int
    end: int


class EntryFile:
    """A file that is open for reading. It holds only the footer, and may be shared."""

    __slots__ = ("_executor", "_footer", "_index", "_store", "file_bytes", "groups", "path")

    def __init__(self, store: "ObjectStore", path: str, file_bytes: int, footer: Any) -> None:
        """Called by `open`, in a thread."""
        self._store = store
        self._executor: Executor | None = None
        self.path = path
        self.file_bytes = file_bytes
        self._footer = footer
        try:
            self._index = decode_index(footer.metadata)
            self.groups: Sequence[Group] = _groups(footer, self._index)
        except (ValueError, IndexError, OSError) as error:
            raise ColdFileCorrupt(f"{path}: {error}") from error

    @classmethod
    async def open(
        cls,
        store: "ObjectStore",
        path: str,
        *,
        file_bytes: int | None = None,
        executor: Executor | None = None,
    ) -> "EntryFile":
        """Reads the footer, with one request if `file_bytes` is given and the footer is small.

        Raises ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable.
        """
        expected = file_bytes
        if file_bytes is None:
            file_bytes = await size_of(store, path)
        if file_bytes < FOOTER_END_BYTES + len(PARQUET_MAGIC):
            raise ColdFileCorrupt(f"{path} has {file_bytes} bytes: it is cut short")
        try:
            tail = await fetch(store, path, max(0, file_bytes - TAIL_BYTES), file_bytes)
        except (ColdStoreUnavailable, ColdFileCorrupt):
            # Stores answer a range beyond the end of a file in different ways.
            if expected is None or (size := await size_of(store, path)) == expected:
                raise
            raise ColdFileCorrupt(f"{path} has {size} bytes, not {expected}") from None
        footer_bytes = int.from_bytes(tail[-8:-4], "little") + FOOTER_END_BYTES
        if tail[-4:] != PARQUET_MAGIC or footer_bytes > file_bytes:
            raise ColdFileCorrupt(f"{path} does not end in a Parquet footer")
        if footer_bytes > len(tail):
            tail = await fetch(store, path, file_bytes - footer_bytes, file_bytes)
        tail = tail[-footer_bytes:]
        loop = asyncio.get_running_loop()
        opened = await loop.run_in_executor(executor, _opened, cls, store, path, tail, file_bytes)
        opened._executor = executor
        return opened

    @property
    def entries(self) -> int:
        return self._index.entries

    @property
    def length_bytes(self) -> int:
        """The sum of the sizes of all entries."""
        return self._index.length_bytes

    @property
    def managed_ledger(self) -> str:
        return str(self._footer.metadata[KEY_MANAGED_LEDGER].decode())

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the writer was given."""
        properties: dict[str, str] = msgspec.json.decode(self._footer.metadata[KEY_PROPERTIES])
        return properties

    def group_of(self, position: Position) -> int:
        """The number of the first group that ends at or after `position`; len(groups) if none."""
        return bisect_left(self.groups, position, key=_last)

    async def read_group(self, number: int) -> list[ColdEntry]:
        """The entries of one group. Raises as `open`."""
        group = self.groups[number]
        data = await fetch(self._store, self.path, group.start, group.end)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.decode_group, number, data)

    async def publish_times(self, number: int) -> list[int | None]:
        """The publish times of a group's entries in order, in ms since 1970; None if unknown.

        Fetches only that column, and checks it by its pages' checksums. Raises as `open`.
        """
        start, end = times_range(self._footer, number)
        data = await fetch(self._store, self.path, start, end)
        loop = asyncio.get_running_loop()
        what = f"{self.path}, row group {number}: its publish times"
        try:
            times = await loop.run_in_executor(
                self._executor, publish_times, self._footer, number, data, start, self.file_bytes
            )
        except Exception as error:
            raise ColdFileCorrupt(f"{what} cannot be read: {error}") from error
        if len(times) != self.groups[number].rows:
            raise ColdFileCorrupt(f"{what} are {len(times)}, not {self.groups[number].rows}")
        return times

    def decode_group(self, number: int, data: bytes, *, verify: bool = False) -> list[ColdEntry]:
        """The entries of a group, from the bytes of its range. Blocks. Raises ColdFileCorrupt.

        With `verify`, all columns are decoded and every entry is checked against its checksum.
        """
        what, group = f"{self.path}, row group {number}", self.groups[number]
        if crc32c(data) != self._index.groups[number].checksum:
            raise ColdFileCorrupt(f"{what}: its bytes do not match their checksum")
        try:
            entries = decode(
                self._footer, self._index.groups[number], number, data, self.file_bytes, verify
            )
        except BadEntry as error:
            raise ColdFileCorrupt(f"{what}: {error}") from None
        except Exception as error:
            raise ColdFileCorrupt(f"{what} cannot be read: {error}") from error
        if len(entries) != group.rows:
            raise ColdFileCorrupt(f"{what} has {len(entries)} entries, not {group.rows}")
        return entries


def _opened(
    cls: type[EntryFile], store: "ObjectStore", path: str, footer_bytes: bytes, file_bytes: int
) -> EntryFile:
    try:
        check_footer(footer_bytes)
        footer = read_footer(footer_bytes)
    except Exception as error:
        raise ColdFileCorrupt(f"{path}: its footer cannot be read: {error}") from error
    return cls(store, path, file_bytes, footer)


def _groups(footer: Any, index: FileIndex) -> list[Group]:
    if footer.num_row_groups != len(index.groups):
        raise ValueError(f"{footer.num_row_groups} row groups, {len(index.groups)} in its index")
    return [
        Group(
            number,
            group.first,
            group.last,
            group.rows,
            group.data_bytes,
            group.publish_ms_min,
            group.publish_ms_max,
            group.start,
            group.end,
        )
        for number, group in enumerate(index.groups)
    ]


class _StoreCall:
    """Sets a deadline on a request to a store, and converts the store's errors into ours."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._timeout = asyncio.timeout(FETCH_TIMEOUT_S)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            slow = TimeoutError(f"no answer in {FETCH_TIMEOUT_S:g} s")
            raise store_error(slow, self._path) from late
        if isinstance(error, Exception):
            raise store_error(error, self._path) from error


async def size_of(store: "ObjectStore", path: str) -> int:
    """The file's size. Raises ColdFileMissing, ColdStoreUnavailable."""
    import obstore

    async with _StoreCall(path):
        if (folder := _folder_of(store)) is not None:
            return await in_thread_of(folder, lambda: Path(folder, path).stat().st_size)
        return int((await obstore.head_async(store, path))["size"])


async def fetch(store: "ObjectStore", path: str, start: int, end: int) -> bytes:
    """Reads a range of a file. Raises ColdFileMissing, ColdStoreUnavailable, ColdFileCorrupt."""
    import obstore

    async with _StoreCall(path):
        if (folder := _folder_of(store)) is not None:
            data = await in_thread_of(folder, lambda: read_range(Path(folder, path), start, end))
        else:
            buffer = await obstore.get_range_async(store, path, start=start, end=end)
            data = buffer.to_bytes()
    if len(data) != end - start:
        raise ColdFileCorrupt(f"{path} is cut short: no bytes {start + len(data)} to {end}")
    return data


def _folder_of(store: "ObjectStore") -> str | None:
    from obstore.store import LocalStore

    return str(store.prefix) if isinstance(store, LocalStore) and store.prefix else None
