"""Collects entries into the rows of one row group, and builds the group's Arrow table.

Metadata of an entry goes into columns beside its bytes, for queries on the file. If the metadata
cannot be parsed, the columns stay empty; a number outside the range of its column is left out.
"""

from typing import TYPE_CHECKING, Any

from magnetar.core.ids import Position
from magnetar.offload.file_layout import (
    COMPRESSION_NAMES,
    GroupIndex,
    schema,
    time_or_none,
)
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.checksum import crc32c
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

if TYPE_CHECKING:
    import pyarrow as pa


class GroupRows:
    """The rows of a group under construction."""

    __slots__ = ("_columns", "_crcs", "_data", "_entry_ids", "_ledger_ids", "data_bytes")

    def __init__(self) -> None:
        self._ledger_ids: list[int] = []
        self._entry_ids: list[int] = []
        self._crcs: list[int] = []
        self._data: list[bytes] = []
        self._columns: list[tuple[Any, ...]] = []
        self.data_bytes = 0

    def __len__(self) -> int:
        return len(self._data)

    def add(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        """Adds one entry."""
        self._ledger_ids.append(ledger_id)
        self._entry_ids.append(entry_id)
        self._crcs.append(crc32c(data))
        self._data.append(data)
        self._columns.append(_columns_of(data))
        self.data_bytes += len(data)

    def index(self, start: int, end: int, checksum: int) -> GroupIndex:
        """The index of this group, whose bytes were written from `start` to `end`."""
        times = [row[0] for row in self._columns if row[0] is not None]
        return GroupIndex(
            first=Position(self._ledger_ids[0], self._entry_ids[0]),
            last=Position(self._ledger_ids[-1], self._entry_ids[-1]),
            rows=len(self._data),
            data_bytes=self.data_bytes,
            start=start,
            end=end,
            checksum=checksum,
            publish_ms_min=min(times, default=0),
            publish_ms_max=max(times, default=0),
        )

    def table(self) -> "pa.Table":
        """The rows as an Arrow table."""
        import pyarrow as pa

        fields = schema()
        between = zip(*self._columns, strict=True)
        values: list[Any] = [self._ledger_ids, self._entry_ids, *between, self._crcs, self._data]
        arrays = [
            pa.array(column, type=field.type) for column, field in zip(values, fields, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=fields)


_NOTHING = (None, None, None, None, None, None, 0, None, None, None)


def _columns_of(data: bytes) -> tuple[Any, ...]:
    """The values of publish_time, event_time, partition_key, ordering_key, producer, sequence_id,
    messages, compression, schema_version and properties."""
    try:
        metadata = parse_metadata(data)
    except MalformedEntry:
        return _NOTHING
    has = metadata.HasField
    compression = metadata.compression
    return (
        time_or_none(metadata.publish_time),
        time_or_none(metadata.event_time) if has("event_time") else None,
        _text(metadata.partition_key) if has("partition_key") else None,
        metadata.ordering_key if has("ordering_key") else None,
        _text(metadata.producer_name),
        metadata.sequence_id if metadata.sequence_id < 1 << 63 else None,
        _messages(metadata),
        COMPRESSION_NAMES[compression] if compression < len(COMPRESSION_NAMES) else None,
        metadata.schema_version if has("schema_version") else None,
        [(_text(item.key), _text(item.value)) for item in metadata.properties]
        if metadata.properties
        else None,
    )


def _messages(metadata: MessageMetadata) -> int:
    """The number of messages in an entry: none in a marker, one in an unbatched entry."""
    return 0 if metadata.HasField("marker_type") else metadata.num_messages_in_batch


def _text(value: str | bytes) -> str:
    """Text as `str`: the protobuf runtime returns bytes if it is not UTF-8."""
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
