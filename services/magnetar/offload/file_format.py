"""Writes and reads entry files: Parquet, one row per entry, in the order of their positions.

The writer takes entries in order and keeps one row group of them in memory (ROW_GROUP_BYTES of
data, or the entry that goes over it). It counts and checksums what it writes.

The reader fetches the footer when it opens the file, and then one row group per request. Nothing it
returns is unchecked: positions against the index, every entry's bytes against its CRC-32C. Arrow's
work is done in an executor's thread, never on the event loop.
"""

import asyncio
import io
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import google_crc32c
import msgspec

from magnetar.bookie.api import StoredEntry
from magnetar.core.ids import EARLIEST, Position
from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.file_layout import (
    CRC,
    DATA,
    ENTRY_COLUMNS,
    ENTRY_ID,
    FORMAT_VERSION,
    KEY_MANAGED_LEDGER,
    KEY_PROPERTIES,
    KEY_VERSION,
    LEDGER_ID,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS_MAX,
    FileIndex,
    GroupIndex,
    decode_index,
    encode_index,
    ids_checksum,
    schema,
)
from magnetar.offload.file_rows import GroupRows
from magnetar.offload.stores import store_error
from magnetar.wire.checksum import crc32c

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FETCH_TIMEOUT_S: Final = 90.0
"""One request of a file's bytes, with the store's own retries."""
TAIL_BYTES: Final = 64 << 10
"""Fetched first: most footers are smaller, and then are had with one request."""
FOOTER_END_BYTES: Final = 8
PARQUET_MAGIC: Final = b"PAR1"


class ColdEntry(NamedTuple):
    """An entry, as it was on the bookies."""

    ledger_id: int
    entry_id: int
    data: bytes


class Sink(Protocol):
    """Takes a file's bytes: a local file, or what `obstore.open_writer` returns."""

    def write(self, data: Any, /) -> Any: ...

    def close(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What was written, for the record of the file."""

    file_bytes: int
    checksum: int
    entries: int
    length_bytes: int
    first: Position
    last: Position


class _Counted(io.RawIOBase):
    """Passes bytes on, with their number and checksum. Closing it leaves the sink open."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink
        self.size = 0
        self.checksum = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any, /) -> int:
        chunk = bytes(data)
        self._sink.write(chunk)
        self.size += len(chunk)
        self.checksum = google_crc32c.extend(self.checksum, chunk)
        return len(chunk)


class EntryFileWriter:
    """See the module's text. Not for two threads at once.

    `compression` is of the data column: "none" (entries are mostly compressed by their producers),
    or "zstd". After an error in the middle call `abandon`, and delete what there is of the file.
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
            compression=dict.fromkeys(names, "zstd") | {DATA: compression},
            use_dictionary=["partition_key", "producer", "compression", "schema_version"],
            write_statistics=[name for name in names if name not in (CRC, "properties")],
            write_page_checksum=True,
            store_schema=False,
        )

    def add(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        """Appends an entry; raises ValueError where it is not behind the one before."""
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
        """Ends the file and closes the sink: the file is whole once this has returned."""
        if len(self._rows):
            self._flush()
        index = FileIndex(tuple(self._groups), self._entries, self._length_bytes)
        self._writer.add_key_value_metadata(self._head | encode_index(index))
        self._writer.close()
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
        """Gives up: memory is let go, the sink is not closed (what it has is no file)."""
        self._rows = GroupRows()
        self._sink = _Nowhere()
        self._counted._sink = self._sink
        self._writer.close()

    def _flush(self) -> None:
        rows, self._rows = self._rows, GroupRows()
        self._writer.write_table(rows.table(), row_group_size=len(rows))
        self._groups.append(rows.index())


class _Nowhere:
    """Takes what Parquet still writes when a file is abandoned."""

    def write(self, data: Any, /) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Group:
    """One row group of a file: which entries it has, and where its bytes are."""

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
    """A file that is open for reading; it holds its footer, nothing else. Safe to share."""

    __slots__ = ("_executor", "_footer", "_index", "_store", "file_bytes", "groups", "path")

    def __init__(self, store: "ObjectStore", path: str, file_bytes: int, footer: Any) -> None:
        """See `open`, which calls it in a thread."""
        self._store = store
        self._executor: Executor | None = None
        self.path = path
        self.file_bytes = file_bytes
        self._footer = footer
        try:
            self._index = decode_index(footer.metadata or {})
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
        """Reads the footer; one request where `file_bytes` is known and the footer is small.

        Raises ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable.
        """
        import obstore

        if file_bytes is None:
            async with _Asking(path):
                file_bytes = int((await obstore.head_async(store, path))["size"])
        if file_bytes < FOOTER_END_BYTES + len(PARQUET_MAGIC):
            raise ColdFileCorrupt(f"{path} has {file_bytes} bytes: it is cut short")
        tail = await fetch(store, path, max(0, file_bytes - TAIL_BYTES), file_bytes)
        footer_bytes = int.from_bytes(tail[-8:-4], "little") + FOOTER_END_BYTES
        if tail[-4:] != PARQUET_MAGIC or footer_bytes > file_bytes:
            raise ColdFileCorrupt(f"{path} does not end in a Parquet footer")
        if footer_bytes > len(tail):
            tail = await fetch(store, path, file_bytes - footer_bytes, file_bytes)
        loop = asyncio.get_running_loop()
        opened = await loop.run_in_executor(executor, _opened, cls, store, path, tail, file_bytes)
        opened._executor = executor
        return opened

    @property
    def entries(self) -> int:
        return self._index.entries

    @property
    def length_bytes(self) -> int:
        """Of all entries together."""
        return self._index.length_bytes

    @property
    def managed_ledger(self) -> str:
        return str(self._footer.metadata[KEY_MANAGED_LEDGER].decode())

    @property
    def properties(self) -> dict[str, str]:
        """What the writer was given beside the entries."""
        found = msgspec.json.decode(self._footer.metadata[KEY_PROPERTIES], type=dict[str, str])
        return dict(found)

    def group_of(self, position: Position) -> int:
        """The number of the first group that ends at or behind `position`; len(groups) if none."""
        low, high = 0, len(self.groups)
        while low < high:
            middle = (low + high) // 2
            if self.groups[middle].last < position:
                low = middle + 1
            else:
                high = middle
        return low

    async def read_group(self, number: int) -> list[ColdEntry]:
        """All entries of one group, checked. Raises as `open` does."""
        group = self.groups[number]
        data = await fetch(self._store, self.path, group.start, group.end)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.decode_group, number, data)

    def decode_group(
        self, number: int, data: bytes, *, all_columns: bool = False
    ) -> list[ColdEntry]:
        """The entries of a group from the bytes of its range; blocks. Raises ColdFileCorrupt."""
        what = f"{self.path}, row group {number}"
        try:
            entries, checksum = _decode(
                self._footer, number, self.groups[number], data, self.file_bytes, all_columns
            )
        except _BadEntry as error:
            raise ColdFileCorrupt(f"{what}: {error}") from None
        except Exception as error:  # whatever Arrow makes of bytes that are broken
            raise ColdFileCorrupt(f"{what} cannot be read: {error}") from error
        expected = self._index.groups[number]
        if checksum != expected.checksum or len(entries) != expected.rows:
            raise ColdFileCorrupt(f"{what}: its ids do not match their checksum")
        return entries


class _BadEntry(Exception):
    """An entry's bytes do not match its checksum."""


class _Sparse(io.RawIOBase):
    """Some bytes of a file at their place in it; Parquet asks for no others."""

    def __init__(self, data: bytes, start: int, size: int) -> None:
        super().__init__()
        self._data, self._start, self._size = data, start, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        at = self._at - self._start
        end = len(self._data) if size is None or size < 0 else at + size
        if at < 0 or end > len(self._data):
            raise OSError(f"bytes {self._at} to {self._start + end} are not of this row group")
        self._at = self._start + end
        return self._data[at:end]


def _opened(
    cls: type[EntryFile], store: "ObjectStore", path: str, tail: bytes, file_bytes: int
) -> EntryFile:
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(_Sparse(tail, file_bytes - len(tail), file_bytes))
    except Exception as error:
        raise ColdFileCorrupt(f"{path}: its footer cannot be read: {error}") from error
    return cls(store, path, file_bytes, footer)


def _groups(footer: Any, index: FileIndex) -> list[Group]:
    if footer.num_row_groups != len(index.groups):
        raise ValueError(f"{footer.num_row_groups} row groups, {len(index.groups)} in its index")
    groups = []
    for number, each in enumerate(index.groups):
        found = footer.row_group(number)
        chunks = [found.column(column) for column in range(found.num_columns)]
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
        end = start + sum(chunk.total_compressed_size for chunk in chunks)
        groups.append(
            Group(
                number,
                each.first,
                each.last,
                each.rows,
                each.data_bytes,
                each.publish_ms_min,
                each.publish_ms_max,
                start,
                end,
            )
        )
    return groups


def _decode(
    footer: Any, number: int, group: Group, data: bytes, file_bytes: int, all_columns: bool
) -> tuple[list[ColdEntry], int]:
    """The entries, and the checksum of their ids."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(
        _Sparse(data, group.start, file_bytes),
        metadata=footer,
        memory_map=False,
        pre_buffer=False,
        page_checksum_verification=True,
    )
    table = file.read_row_group(
        number, columns=None if all_columns else list(ENTRY_COLUMNS), use_threads=False
    )
    ledger_ids, entry_ids, crcs = (_numbers(table.column(n)) for n in (LEDGER_ID, ENTRY_ID, CRC))
    entries: list[ColdEntry] = []
    append, check = entries.append, crc32c
    rows = zip(
        memoryview(ledger_ids).cast("q"),
        memoryview(entry_ids).cast("q"),
        memoryview(crcs).cast("q"),
        _slices(table.column(DATA)),
        strict=True,
    )
    for ledger_id, entry_id, crc, entry in rows:
        if check(entry) != crc:
            raise _BadEntry(f"entry {ledger_id}:{entry_id} does not match its checksum")
        append(ColdEntry(ledger_id, entry_id, entry))
    return entries, ids_checksum(ledger_ids, entry_ids, crcs)


def _numbers(column: Any) -> bytes:
    """A column of int64 without nulls, as it lies in memory."""
    parts = []
    for chunk in column.chunks:
        values = chunk.buffers()[1]
        parts.append(values.slice(chunk.offset * 8, len(chunk) * 8).to_pybytes())
    return b"".join(parts)


def _slices(column: Any) -> Iterable[bytes]:
    """The values of a binary column: slices of Arrow's buffer, without an object of Arrow each."""
    for chunk in column.chunks:
        _, offsets_buffer, data_buffer = chunk.buffers()
        first, count = chunk.offset, len(chunk)
        offsets = memoryview(offsets_buffer).cast("b").cast("i")[first : first + count + 1]
        data = memoryview(data_buffer) if data_buffer is not None else memoryview(b"")
        start = offsets[0]
        for end in offsets[1:]:
            yield bytes(data[start:end])
            start = end


class _Asking:
    """A deadline, and the store's errors as ours."""

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


async def fetch(store: "ObjectStore", path: str, start: int, end: int) -> bytes:
    """These bytes of a file. Raises ColdFileMissing, ColdStoreUnavailable, ColdFileCorrupt."""
    import obstore

    async with _Asking(path):
        found = await obstore.get_range_async(store, path, start=start, end=end)
    data = found.to_bytes()
    if len(data) != end - start:
        raise ColdFileCorrupt(f"{path} is cut short: no bytes {start + len(data)} to {end}")
    return data
