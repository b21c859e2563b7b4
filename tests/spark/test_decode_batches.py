"""Batches of any shape against `magnetar.wire.batch`, which parses each message by itself."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField

from magnetar.jobs.log.ranges import Interval, Range
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.offload.file_layout import TIME_MS_MAX, time_or_none
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import build_batch, iterate_batch
from magnetar.wire.entry import build_entry
from magnetar.wire.framing import MalformedEntry
from magnetar_spark.decode.batches import ALIKE_MIN, add_batch
from magnetar_spark.decode.chunks import Chunks
from magnetar_spark.decode.entries import EntryDecoder
from magnetar_spark.decode.heads import walked
from magnetar_spark.decode.rows import Rows
from magnetar_spark.table import schema_of
from magnetar_spark.values import Values

SCHEMA = to_arrow_schema(schema_of([StructField("value", BinaryType())]), timezone="UTC")
VALUES = pa.schema([SCHEMA.field("value")])
TEXTS = st.text(max_size=5)
KINDS = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": st.sampled_from(["", "a", "key-1", "ключ"]),
        "ordering_key": st.binary(max_size=3),
        "event_time": st.sampled_from(
            [1, 127, 128, 1_700_000_000_000, TIME_MS_MAX, TIME_MS_MAX + 1, 2**63, 2**64 - 1]
        ),
        "sequence_id": st.sampled_from([0, 126, 127, 128, 16_383, 2**63, 2**64 - 1]),
        "null_value": st.booleans(),
        "compacted_out": st.booleans(),
        "partition_key_b64_encoded": st.booleans(),
        "properties": st.lists(st.tuples(TEXTS, TEXTS), max_size=3),
    },
)


def message(kind: dict[str, object], step: int) -> SingleMessageMetadata:
    made = SingleMessageMetadata(payload_size=0)
    for name, value in kind.items():
        if name == "properties":
            for key, text in value:  # type: ignore[attr-defined]
                made.properties.add(key=key, value=text)
        elif name == "sequence_id":
            made.sequence_id = (value + step) % 2**64  # type: ignore[operator]
        else:
            setattr(made, name, value)
    return made


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[SingleMessageMetadata, bytes]]:
    """Draws batches with runs of similar messages, as producers write them."""
    made: list[tuple[SingleMessageMetadata, bytes]] = []
    for _ in range(draw(st.integers(1, 4))):
        kind, payload = draw(KINDS), draw(st.binary(max_size=20))
        for step in range(draw(st.integers(1, 3 * ALIKE_MIN))):
            made.append((message(kind, step), payload))
    return made


def decoded(plain: bytes, count: int, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    rows = Rows("persistent://public/default/t", -1, schema, Values())
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=5)
    rows.begin(7, 8, metadata, count)
    add_batch(rows, plain, count)
    rows.end(len(plain))
    batch = rows.take()
    batch.validate(full=True)
    return batch


def expected(plain: bytes, count: int) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for index, (metadata, payload) in enumerate(iterate_batch(plain, count)):
        assert metadata is not None
        if metadata.compacted_out:
            continue
        key = metadata.partition_key.encode() if metadata.HasField("partition_key") else None
        sequence = metadata.sequence_id
        rows.append(
            (
                None if metadata.null_value else payload,
                key if not metadata.partition_key_b64_encoded else ...,
                metadata.ordering_key if metadata.HasField("ordering_key") else None,
                time_or_none(metadata.event_time) or None,
                sequence - 2**64 if sequence >= 2**63 else sequence,
                {each.key: each.value for each in metadata.properties},
                index,
            )
        )
    return rows


@settings(deadline=None)
@given(batches())
@example([(message({"sequence_id": 100}, step), b"x" * 100) for step in range(60)])
def test_any_batch_has_the_rows_of_its_messages(
    messages: list[tuple[SingleMessageMetadata, bytes]],
) -> None:
    plain = build_batch(messages)
    table = decoded(plain, len(messages))
    found = [
        (
            row["value"],
            row["__key"],
            row["__orderingKey"],
            row["__eventTime"] and round(row["__eventTime"].timestamp() * 1000),
            row["__sequenceId"],
            dict(row["__messageProperties"]),
            row["__batchIndex"],
        )
        for row in table.to_pylist()
    ]
    wanted = expected(plain, len(messages))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert all(b is ... or a == b for a, b in zip(one, other, strict=True)), (one, other)


@settings(deadline=None)
@given(batches(), st.data())
def test_harmed_batches_are_refused_or_parsed_as_protobuf_does(
    messages: list[tuple[SingleMessageMetadata, bytes]], data: st.DataObject
) -> None:
    plain = bytearray(build_batch(messages))
    at = data.draw(st.integers(0, len(plain) - 1))
    plain[at] = data.draw(st.integers(0, 255))
    del plain[data.draw(st.integers(0, len(plain))) :]
    harmed = bytes(plain)
    try:
        parsed = list(iterate_batch(harmed, len(messages)))
    except MalformedEntry:
        with pytest.raises(MalformedEntry):
            decoded(harmed, len(messages), VALUES)
        return
    wanted = [
        None if metadata.null_value else payload
        for metadata, payload in parsed
        if metadata is not None and not metadata.compacted_out
    ]
    assert decoded(harmed, len(messages), VALUES).column("value").to_pylist() == wanted


def test_messages_that_are_alike_are_not_parsed_one_by_one() -> None:
    plain = build_batch([(message({"sequence_id": 1}, step), b"abc") for step in range(50)])
    head = walked(plain, 0)
    assert head is not None
    assert head.payload_bytes == 3
    assert head.sequence is not None


@pytest.mark.parametrize("beyond", [TIME_MS_MAX + 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("wanted", [Interval(), Interval(low=5)])
def test_what_is_no_time_is_null_and_fails_no_query(beyond: int, wanted: Interval) -> None:
    """No condition on the time is true for null."""
    ledger = LedgerMetadata(7, (), 1)
    ranged = Range("persistent://a/b/c", -1, ledger, 0, 1, 1, publish_ms=wanted)
    rows = Rows(ranged.topic, ranged.partition, SCHEMA, Values())
    decoder = EntryDecoder(ranged, rows, Chunks(lambda _: iter(())))
    for entry_id, time_ms in enumerate([beyond, 6]):
        metadata = MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=time_ms, event_time=time_ms
        )
        decoder.add(entry_id, build_entry(metadata, b"x"))
    found = [
        (row["__entryId"], row["__publishTime"], row["__eventTime"])
        for row in rows.take().to_pylist()
    ]
    six = datetime.fromtimestamp(0.006, UTC)
    assert found[-1] == (1, six, six)
    assert found[:-1] == ([(0, None, None)] if wanted == Interval() else [])
