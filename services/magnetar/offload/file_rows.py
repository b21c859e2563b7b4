"""Entries on their way into a file: the rows of one row group. Pure but for the building of Arrow.

What an entry's metadata says goes into columns beside its bytes, for those who query the file. An
entry whose metadata cannot be read has its bytes, and nothing in the columns; a number that is no
time, or is beyond what its column takes, is left out of that column.
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
    """The rows of a group that is being filled."""

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
        self._ledger_ids.append(ledger_id)
        self._entry_ids.append(entry_id)
        self._crcs.append(crc32c(data))
        self._data.append(data)
        self._columns.append(_columns_of(data))
        self.data_bytes += len(data)

    def index(self, start: int, end: int, checksum: int) -> GroupIndex:
        """What the file's index says of this group, whose bytes were written there."""
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
        """The rows in Arrow's form."""
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
    """publish_time, event_time, partition_key, ordering_key, producer, sequence_id, messages,
    compression, schema_version, properties."""
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
        [(_text(each.key), _text(each.value)) for each in metadata.properties]
        if metadata.properties
        else None,
    )


def _messages(metadata: MessageMetadata) -> int:
    """A marker is no message; what is not batched is one."""
    return 0 if metadata.HasField("marker_type") else metadata.num_messages_in_batch


def _text(value: str | bytes) -> str:
    """The runtime hands out bytes for text that is not UTF-8."""
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
