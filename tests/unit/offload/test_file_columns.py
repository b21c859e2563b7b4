"""The columns of an entry file: types and values."""

import io

import obstore
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore
from tests.unit.offload.test_entry_files import PATH, written

from magnetar.offload.file_layout import schema
from magnetar.offload.file_rows import GroupRows
from magnetar.wire._pb.PulsarApi_pb2 import CompressionType, MessageMetadata
from magnetar.wire.checksum import crc32c
from magnetar.wire.entry import build_entry


async def test_other_engines_find_the_columns_and_what_is_in_them() -> None:
    """As docs/formats/offload-format.md says; statistics let them pass over row groups."""
    schema.cache_clear()
    store = MemoryStore()
    written(store)
    footer = pq.read_metadata(io.BytesIO(obstore.get(store, PATH).bytes().to_bytes()))
    fields = footer.schema.to_arrow_schema()
    assert [(field.name, str(field.type)) for field in fields] == [
        ("ledger_id", "int64"),
        ("entry_id", "int64"),
        ("publish_time", "timestamp[ms, tz=UTC]"),
        ("event_time", "timestamp[ms, tz=UTC]"),
        ("partition_key", "string"),
        ("ordering_key", "binary"),
        ("producer", "string"),
        ("sequence_id", "int64"),
        ("messages", "int32"),
        ("compression", "string"),
        ("schema_version", "binary"),
        ("properties", "map<string, string ('properties')>"),
        ("crc32c", "int64"),
        ("data", "binary"),
    ]
    needed = {field.name for field in fields if not field.nullable}
    assert needed == {"ledger_id", "entry_id", "messages", "crc32c", "data"}
    assert not [key for key in footer.metadata if not key.startswith(b"magnetar.")]
    group = footer.row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    for name, column in columns.items():
        compressed = "UNCOMPRESSED" if name == "data" else "ZSTD"
        assert column.compression == compressed, name
        has_statistics = name not in ("crc32c", "data") and not name.startswith("properties")
        assert column.is_stats_set == has_statistics, name
        repeated = name in ("partition_key", "producer", "compression", "schema_version")
        assert column.has_dictionary_page == repeated, name
    assert columns["entry_id"].statistics.min == 0
    assert columns["entry_id"].statistics.max == group.num_rows - 1


def test_what_an_entrys_metadata_says_is_in_its_row() -> None:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=7,
        publish_time=5,
        event_time=6,
        partition_key="key",
        ordering_key=b"\xff",
        num_messages_in_batch=3,
        compression=CompressionType.ZSTD,
        schema_version=b"\x01",
    )
    for name in ("first", "second"):
        metadata.properties.add(key=name, value=name.upper())
    marker = MessageMetadata(producer_name="p", sequence_id=1, publish_time=9, marker_type=1)
    rows = GroupRows()
    for entry_id, each in enumerate((metadata, marker)):
        rows.add(5, entry_id, build_entry(each, b"payload"))
    rows.add(5, 2, b"no entry")
    whole, other, nothing = rows.table().to_pylist()
    times = whole.pop("publish_time"), whole.pop("event_time")
    assert [each.microsecond for each in times] == [5_000, 6_000]
    data = build_entry(metadata, b"payload")
    assert whole == {
        "ledger_id": 5,
        "entry_id": 0,
        "partition_key": "key",
        "ordering_key": b"\xff",
        "producer": "p",
        "sequence_id": 7,
        "messages": 3,
        "compression": "ZSTD",
        "schema_version": b"\x01",
        "properties": [("first", "FIRST"), ("second", "SECOND")],
        "crc32c": crc32c(data),
        "data": data,
    }
    assert (other["messages"], other["compression"], other["properties"]) == (0, "NONE", None)
    unsaid = ("event_time", "partition_key", "ordering_key", "schema_version")
    assert [other[name] for name in unsaid] == [None] * 4
    known = {name for name, value in nothing.items() if value is not None}
    assert known == {"ledger_id", "entry_id", "messages", "crc32c", "data"}
    assert (nothing["messages"], nothing["data"]) == (0, b"no entry")


def test_text_that_is_no_text_is_in_its_column_as_far_as_it_can_be() -> None:
    """A producer in another language may send any bytes; its entry is kept as it is."""
    entry = build_entry(MessageMetadata(producer_name="PPP", sequence_id=1, publish_time=9), b"x")
    for bad, text in ((b"PPP", "PPP"), (b"P\xffP", "P\ufffdP")):
        rows = GroupRows()
        rows.add(5, 0, entry.replace(b"PPP", bad))
        (row,) = rows.table().to_pylist()
        assert row["producer"] == text
        assert row["data"] == entry.replace(b"PPP", bad)


@pytest.mark.parametrize(
    ("sequence_id", "shown"),
    [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, None), (2**64 - 1, None)],
)
def test_no_sequence_id_keeps_an_entry_out_of_its_file(sequence_id: int, shown: int | None) -> None:
    """The protocol's number is unsigned and the column's is not: a client may send any."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=9)
    rows = GroupRows()
    rows.add(5, 0, build_entry(metadata, b"payload"))
    (row,) = rows.table().to_pylist()
    assert row["sequence_id"] == shown
