"""Format version 1 of an entry file: columns, index and bounds (docs/formats/offload-format.md).

The file is Parquet with one row per entry. Beside Parquet's own index, the footer's key-value
metadata holds an index of row groups: first and last position, rows, byte range, and checksum. The
footer also holds a checksum of itself, computed with zeros in its place. So Arrow never parses
bytes that differ from what was written: its parsers expect sound files, and a changed byte may
crash the process.

pyarrow is imported when the first file is written or read.
"""

from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from magnetar.core.ids import Position
from magnetar.wire.checksum import crc32c

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION: Final = 1
ROW_GROUP_BYTES: Final = 4 << 20
"""Bytes of entries; a group ends with the entry that reaches the bound."""
ROW_GROUP_ROWS_MAX: Final = 16_384

KEY_VERSION: Final = b"magnetar.format-version"
KEY_MANAGED_LEDGER: Final = b"magnetar.managed-ledger"
KEY_PROPERTIES: Final = b"magnetar.properties"
KEY_INDEX: Final = b"magnetar.index"
KEY_FOOTER_CRC: Final = b"magnetar.footer-crc32c"
NO_CRC: Final = b"00000000"
"""Placeholder for the footer's checksum, of the same length."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, beyond which Python, SQL and Spark have no times."""

LEDGER_ID: Final = "ledger_id"
ENTRY_ID: Final = "entry_id"
PUBLISH_TIME: Final = "publish_time"
CRC: Final = "crc32c"
DATA: Final = "data"
PROPERTIES_COLUMNS: Final = ("properties.key_value.key", "properties.key_value.value")
"""Parquet's columns of the map; Arrow sets compression by these names."""

COMPRESSION_NAMES: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


class GroupIndex(msgspec.Struct, frozen=True, array_like=True):
    """The index of one row group: the file's bytes from `start` to `end`, with their CRC-32C."""

    first: Position
    last: Position
    rows: int
    data_bytes: int
    start: int
    end: int
    checksum: int
    publish_ms_min: int = 0
    publish_ms_max: int = 0


class FileIndex(msgspec.Struct, frozen=True):
    """The index of a whole file."""

    groups: tuple[GroupIndex, ...]
    entries: int
    length_bytes: int


_encode = msgspec.json.Encoder().encode
_index_decoder = msgspec.json.Decoder(FileIndex)


def encode_index(index: FileIndex) -> dict[bytes, bytes]:
    """The index as key-value metadata, with a placeholder for the footer's checksum."""
    return {KEY_INDEX: _encode(index), KEY_FOOTER_CRC: NO_CRC}


def decode_index(metadata: dict[bytes, bytes]) -> FileIndex:
    """Decodes the index. Raises ValueError with the reason."""
    version = metadata.get(KEY_VERSION)
    if version is None:
        raise ValueError(f"no {KEY_VERSION.decode()} in its footer: not an entry file")
    if version != b"%d" % FORMAT_VERSION:
        raise ValueError(f"format version {version!r} is unsupported; supported: {FORMAT_VERSION}")
    try:
        return _index_decoder.decode(metadata.get(KEY_INDEX, b""))
    except msgspec.MsgspecError as error:
        raise ValueError(f"its index cannot be read: {error}") from error


def sealed_footer(footer: bytes) -> bytes:
    """The footer with its checksum in the placeholder. Raises ValueError."""
    at = _crc_offset(footer)
    return footer[:at] + b"%08x" % crc32c(footer) + footer[at + len(NO_CRC) :]


def check_footer(footer: bytes) -> None:
    """Verifies the footer's checksum. Raises ValueError."""
    at = _crc_offset(footer)
    end = at + len(NO_CRC)
    if footer[at:end] != b"%08x" % crc32c(footer[:at] + NO_CRC + footer[end:]):
        raise ValueError("the checksum of its footer does not match")


def time_or_none(time_ms: int) -> int | None:
    """The value for a column of times; None beyond its range, as producers may send any 64 bits."""
    return time_ms if time_ms <= TIME_MS_MAX else None


def _crc_offset(footer: bytes) -> int:
    """The offset of the checksum: after its key, a field header (0x18) and the length."""
    at = footer.rfind(KEY_FOOTER_CRC)
    value = at + len(KEY_FOOTER_CRC) + 2
    if at < 0 or footer[value - 2 : value] != b"\x18%c" % len(NO_CRC):
        raise ValueError("its footer has no checksum: it is no entry file, or was changed")
    return value


@cache
def schema() -> "pa.Schema":
    """The columns, in order."""
    import pyarrow as pa

    milliseconds = pa.timestamp("ms", tz="UTC")
    return pa.schema(
        [
            pa.field(LEDGER_ID, pa.int64(), nullable=False),
            pa.field(ENTRY_ID, pa.int64(), nullable=False),
            pa.field(PUBLISH_TIME, milliseconds),
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
