"""Format version 1 of an entry file: its columns, index and bounds (docs/offload-format.md).

The file is Parquet, one row per entry. Beside Parquet's own footer there is an index in the
footer's key-value metadata: of each row group its first and last position, its rows, its bytes
and a checksum over the columns of ids and of checksums; and a checksum of the index itself. So all
that a reader of entries relies on is covered: index → ids and checksums → the entries' bytes.

pyarrow is imported when the first file is written or read, not before.
"""

from array import array
from functools import cache
from typing import TYPE_CHECKING, Final

import google_crc32c
import msgspec

from magnetar.core.ids import Position
from magnetar.wire.checksum import crc32c

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION: Final = 1
ROW_GROUP_BYTES: Final = 4 << 20
"""Of entries' data; a group ends with the entry that reaches it."""
ROW_GROUP_ROWS_MAX: Final = 16_384

KEY_VERSION: Final = b"magnetar.format-version"
KEY_MANAGED_LEDGER: Final = b"magnetar.managed-ledger"
KEY_PROPERTIES: Final = b"magnetar.properties"
KEY_INDEX: Final = b"magnetar.index"
KEY_INDEX_CRC: Final = b"magnetar.index-crc32c"

LEDGER_ID: Final = "ledger_id"
ENTRY_ID: Final = "entry_id"
CRC: Final = "crc32c"
DATA: Final = "data"
ENTRY_COLUMNS: Final = (LEDGER_ID, ENTRY_ID, CRC, DATA)
"""What a reader of entries needs; the last two are the last of the file's columns."""

COMPRESSION_NAMES: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


class GroupIndex(msgspec.Struct, frozen=True, array_like=True):
    """One row group. `checksum` is over its ledger ids, entry ids and crc32c, as int64s."""

    first: Position
    last: Position
    rows: int
    data_bytes: int
    checksum: int
    publish_ms_min: int = 0
    publish_ms_max: int = 0


class FileIndex(msgspec.Struct, frozen=True):
    """What the index says of the whole file."""

    groups: tuple[GroupIndex, ...]
    entries: int
    length_bytes: int


_encode = msgspec.json.Encoder().encode
_index_decoder = msgspec.json.Decoder(FileIndex)


def encode_index(index: FileIndex) -> dict[bytes, bytes]:
    """The index as key-value metadata."""
    value = _encode(index)
    return {KEY_INDEX: value, KEY_INDEX_CRC: b"%08x" % crc32c(value)}


def decode_index(metadata: dict[bytes, bytes]) -> FileIndex:
    """Raises ValueError saying what is wrong."""
    version = metadata.get(KEY_VERSION)
    if version is None:
        raise ValueError(f"no {KEY_VERSION.decode()} in its footer: not an entry file")
    if version != b"%d" % FORMAT_VERSION:
        raise ValueError(f"format version {version!r} is not known here: {FORMAT_VERSION} is")
    value = metadata.get(KEY_INDEX, b"")
    if metadata.get(KEY_INDEX_CRC) != b"%08x" % crc32c(value):
        raise ValueError("the checksum of its index does not match")
    try:
        return _index_decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise ValueError(f"its index cannot be read: {error}") from error


def ids_checksum(ledger_ids: bytes, entry_ids: bytes, crcs: bytes) -> int:
    """The checksum of a group's ids and checksums, each as little-endian int64s."""
    extend = google_crc32c.extend
    return int(extend(extend(crc32c(ledger_ids), entry_ids), crcs))


def int64s(values: list[int]) -> bytes:
    """As they lie in memory: little-endian on all that Arrow runs on."""
    return array("q", values).tobytes()


@cache
def schema() -> "pa.Schema":
    """The columns, in their order."""
    import pyarrow as pa

    milliseconds = pa.timestamp("ms", tz="UTC")
    return pa.schema(
        [
            pa.field(LEDGER_ID, pa.int64(), nullable=False),
            pa.field(ENTRY_ID, pa.int64(), nullable=False),
            pa.field("publish_time", milliseconds),
            pa.field("event_time", milliseconds),
            pa.field("partition_key", pa.string()),
            pa.field("ordering_key", pa.binary()),
            pa.field("producer", pa.string()),
            pa.field("sequence_id", pa.int64()),
            pa.field("messages", pa.int32(), nullable=False),
            pa.field("compression", pa.string()),
            pa.field("schema_version", pa.binary()),
            pa.field("properties", pa.map_(pa.string(), pa.string())),
            pa.field(CRC, pa.int64(), nullable=False),
            pa.field(DATA, pa.binary(), nullable=False),
        ]
    )
