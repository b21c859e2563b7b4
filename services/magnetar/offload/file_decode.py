"""Decodes the bytes of an entry file into entries: the part of reading that needs Arrow.

All functions block; run them in a thread. Arrow gets the bytes of one row group at their offset in
an otherwise absent file.
"""

import io
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from magnetar.offload.file_layout import (
    CRC,
    DATA,
    ENTRY_ID,
    LEDGER_ID,
    PUBLISH_TIME,
    GroupIndex,
)
from magnetar.wire.checksum import crc32c

PARQUET_MAGIC: Final = b"PAR1"


class ColdEntry(NamedTuple):
    """An entry with the bytes that the bookies had."""

    ledger_id: int
    entry_id: int
    data: bytes


class BadEntry(Exception):
    """An entry's bytes do not match its checksum."""


def read_footer(footer: bytes) -> Any:
    """Decodes Parquet's metadata from a verified footer."""
    import pyarrow.parquet as pq

    return pq.read_metadata(io.BytesIO(PARQUET_MAGIC + footer))


def decode(
    footer: Any, group: GroupIndex, number: int, data: bytes, file_bytes: int, verify: bool
) -> list[ColdEntry]:
    """The entries of a row group, from its bytes. Raises BadEntry, or any error of Arrow."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(
        Sparse(data, group.start, file_bytes),
        metadata=footer,
        memory_map=False,
        pre_buffer=False,
        page_checksum_verification=verify,
    )
    columns = None if verify else [LEDGER_ID, ENTRY_ID, DATA]
    table = file.read_row_group(number, columns=columns, use_threads=False)
    ids = (_numbers(table.column(name)) for name in (LEDGER_ID, ENTRY_ID))
    entries = list(map(ColdEntry, *ids, _slices(table.column(DATA))))
    if verify:
        for (ledger_id, entry_id, entry), crc in zip(
            entries, _numbers(table.column(CRC)), strict=True
        ):
            if crc32c(entry) != crc:
                raise BadEntry(f"entry {ledger_id}:{entry_id} does not match its checksum")
    return entries


def times_range(footer: Any, number: int) -> tuple[int, int]:
    """The byte range of a group's publish times: data pages only, since the writer makes no
    dictionary for them."""
    group = footer.row_group(number)
    chunks = (group.column(number) for number in range(group.num_columns))
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == PUBLISH_TIME)
    start = chunk.data_page_offset
    return start, start + chunk.total_compressed_size


def publish_times(
    footer: Any, number: int, data: bytes, start: int, file_bytes: int
) -> list[int | None]:
    """A group's publish times in ms since 1970, from the bytes of `times_range`. Raises any error
    of Arrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(
        Sparse(data, start, file_bytes),
        metadata=footer,
        memory_map=False,
        pre_buffer=False,
        page_checksum_verification=True,
    )
    column = file.read_row_group(number, columns=[PUBLISH_TIME], use_threads=False)
    times: list[int | None] = column.column(PUBLISH_TIME).cast(pa.int64()).to_pylist()
    return times


def _numbers(column: Any) -> Iterable[int]:
    """The values of an int64 column without nulls."""
    for chunk in column.chunks:
        first, count = chunk.offset, len(chunk)
        yield from memoryview(chunk.buffers()[1]).cast("b").cast("q")[first : first + count]


def _slices(column: Any) -> Iterable[bytes]:
    """The values of a binary column, sliced from Arrow's buffer without an Arrow object each."""
    for chunk in column.chunks:
        _, offsets_buffer, data_buffer = chunk.buffers()
        first, count = chunk.offset, len(chunk)
        offsets = memoryview(offsets_buffer).cast("b").cast("i")[first : first + count + 1]
        data = memoryview(data_buffer) if data_buffer is not None else memoryview(b"")
        start = offsets[0]
        for end in offsets[1:]:
            yield bytes(data[start:end])
            start = end


class Sparse(io.RawIOBase):
    """A file of which only some bytes are present; Parquet reads no others."""

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
            raise OSError(f"bytes {self._at} to {self._start + end} are outside this row group")
        self._at = self._start + end
        return self._data[at:end]
