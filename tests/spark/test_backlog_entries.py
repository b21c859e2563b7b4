"""The scan's counts of compressed, encrypted, chunked and malformed entries, and of markers."""

from typing import Any

import pytest

from magnetar.core.errors import PersistenceError
from magnetar.jobs.log.ranges import Range
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.wire._pb.PulsarApi_pb2 import (
    CompressionType,
    EncryptionKeys,
    MessageMetadata,
    SingleMessageMetadata,
)
from magnetar.wire.batch import build_batch
from magnetar.wire.compression import compress
from magnetar.wire.entry import build_entry
from magnetar_spark.jobs.backlog.scan.partials import (
    BY_KEY,
    BY_MINUTE,
    BY_SIZE,
    FLOW,
    SCANNED,
    UNREAD,
    KeySums,
)
from magnetar_spark.jobs.backlog.scan.plan import ScanRange, View
from magnetar_spark.jobs.backlog.scan.scan import RangeScan

TOPIC = "persistent://a/b/c"
NOW_MS = 1_795_300_000_000
LZ4 = CompressionType.Value("LZ4")
VALUE = b"some value " * 20
SECRET = [EncryptionKeys(key="k", value=b"v")]
Row = dict[str, Any]


def metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=5, **fields)


def scanned(*entries: bytes, views: tuple[View, ...] = ()) -> list[Row]:
    whole = Range(TOPIC, -1, LedgerMetadata(7, (), 1), 3, 2 + len(entries), 1)
    keys = KeySums()
    scan = RangeScan(ScanRange(whole, views), keys, NOW_MS)
    for number, entry in enumerate(entries, 3):
        scan.add(number, entry)
    return [row for batch in (*scan.finish(), *keys.take()) for row in batch.to_pylist()]


def of(kind: int, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def sizes(rows: list[Row]) -> dict[int, tuple[int, int]]:
    return {row["number"]: (row["messages"], row["bytes"]) for row in of(BY_SIZE, rows)}


def keys(rows: list[Row]) -> dict[bytes | None, int]:
    return {row["key"]: row["messages"] for row in of(BY_KEY, rows)}


def batch_of(*names: str) -> bytes:
    return build_batch([(SingleMessageMetadata(partition_key=name), VALUE) for name in names])


def test_what_is_compressed_counts_by_what_is_in_it() -> None:
    inside = batch_of("a", "b", "b")
    size = len(VALUE)
    for entry in (
        build_entry(
            metadata(compression=LZ4, uncompressed_size=len(inside), num_messages_in_batch=3),
            compress(LZ4, inside),
        ),
        build_entry(metadata(num_messages_in_batch=3), inside),
    ):
        rows = scanned(entry)
        assert sizes(rows) == {size.bit_length(): (3, 3 * size)}
        assert keys(rows) == {b"a": 1, b"b": 2}
        (told,) = of(SCANNED, rows)
        assert (told["entries"], told["messages"], told["bytes"]) == (1, 3, len(entry))
    single = metadata(compression=LZ4, uncompressed_size=size, partition_key="a")
    assert sizes(scanned(build_entry(single, compress(LZ4, VALUE)))) == {
        size.bit_length(): (1, size)
    }


def test_what_is_encrypted_counts_by_its_outside() -> None:
    sealed = b"sealed" * 9
    more = {"encryption_keys": SECRET, "compression": LZ4, "uncompressed_size": 10_000}
    entry = build_entry(metadata(num_messages_in_batch=5, partition_key="a", **more), sealed)
    rows = scanned(entry)
    assert sizes(rows) == {len(sealed).bit_length(): (1, len(sealed))}
    (told,) = of(SCANNED, rows)
    assert told["messages"] == 5, "as brokers count"


def test_each_chunk_counts_by_itself_and_is_not_decompressed() -> None:
    piece = b"piece" * 5
    chunks = [
        build_entry(
            metadata(
                num_chunks_from_msg=2,
                chunk_id=number,
                uuid="u",
                partition_key="a",
                compression=LZ4,
                uncompressed_size=10_000,
            ),
            piece,
        )
        for number in range(2)
    ]
    rows = scanned(*chunks)
    assert sizes(rows) == {len(piece).bit_length(): (2, 2 * len(piece))}
    assert keys(rows) == {b"a": 2}
    assert of(SCANNED, rows)[0]["messages"] == 2


def test_a_message_in_one_chunk_is_decompressed() -> None:
    whole = metadata(num_chunks_from_msg=1, compression=LZ4, uncompressed_size=len(VALUE))
    rows = scanned(build_entry(whole, compress(LZ4, VALUE)))
    assert sizes(rows) == {len(VALUE).bit_length(): (1, len(VALUE))}


def test_markers_are_entries_and_no_messages() -> None:
    marker = build_entry(metadata(marker_type=10), b"")
    rows = scanned(marker, build_entry(metadata(), VALUE), marker)
    (told,) = of(SCANNED, rows)
    assert (told["number"], told["entries"], told["messages"]) == (2, 3, 1)
    assert sum(row["messages"] for row in of(BY_MINUTE, rows)) == 1


@pytest.mark.parametrize("entry", [b"", b"\x0e\x01" + b"\xff" * 40, b"\x00\x00\x00\x09abc"])
def test_an_entry_that_is_none_is_named(entry: bytes) -> None:
    with pytest.raises(PersistenceError, match="entry 7:3 cannot be decoded"):
        scanned(entry)


def dead_letter(times: str, value: bytes = VALUE) -> MessageMetadata:
    made = metadata()
    for key, text in (("REAL_TOPIC", "t"), ("RECONSUMETIMES", times)):
        made.properties.add(key=key, value=text)
    return made


def test_messages_that_come_again_are_known_inside_of_what_is_compressed() -> None:
    single = SingleMessageMetadata()
    for key, text in (("REAL_TOPIC", "t"), ("RECONSUMETIMES", "4")):
        single.properties.add(key=key, value=text)
    inside = build_batch([(single, VALUE), (SingleMessageMetadata(), VALUE)])
    packed = metadata(compression=LZ4, uncompressed_size=len(inside), num_messages_in_batch=2)
    rows = scanned(
        build_entry(packed, compress(LZ4, inside)),
        build_entry(dead_letter("7"), VALUE),
        build_entry(dead_letter("often"), VALUE),
        build_entry(metadata(), VALUE),
    )
    found = {row["number"]: (row["key"], row["messages"], row["bytes"]) for row in of(FLOW, rows)}
    one = (b"t", 1, len(VALUE))
    assert found == {4: one, 7: one, 0: one}
    assert {(row["oldest_ms"], row["newest_ms"]) for row in of(FLOW, rows)} == {(5, 5)}


def test_what_is_taken_on_the_way_is_counted_once() -> None:
    whole = Range(TOPIC, -1, LedgerMetadata(7, (), 1), 0, 9, 1)
    sums = KeySums()
    scan = RangeScan(ScanRange(whole, (View("s", -1, b"", {}),)), sums, NOW_MS)
    rows: list[Row] = []
    for number in range(10):
        scan.add(number, build_entry(metadata(partition_key="a"), VALUE))
        if number % 3 == 0:
            rows += [row for batch in scan.take() for row in batch.to_pylist()]
            assert list(scan.take()) == [], "nothing is left"
    rows += [row for batch in (*scan.finish(), *sums.take()) for row in batch.to_pylist()]
    assert sum(row["messages"] for row in of(BY_SIZE, rows)) == 10
    assert keys(rows) == {b"a": 10}
    (unread,) = of(UNREAD, rows)
    assert (unread["messages"], unread["oldest_ms"], unread["subscription"]) == (10, 5, "s")


def test_sums_by_key_are_handed_on_before_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from magnetar_spark.jobs.backlog.scan import partials

    monkeypatch.setattr(partials, "KEYS_PENDING_MAX", 3)
    whole = Range(TOPIC, -1, LedgerMetadata(7, (), 1), 0, 9, 1)
    sums = KeySums()
    scan = RangeScan(ScanRange(whole, ()), sums, NOW_MS)
    handed: list[int] = []
    for number in range(8):
        scan.add(number, build_entry(metadata(partition_key=f"k{number}"), VALUE))
        rows = [row for batch in scan.take() for row in batch.to_pylist()]
        handed.append(len(of(BY_KEY, rows)))
    assert handed == [0, 0, 0, 4, 0, 0, 0, 4]
    assert list(sums.take()) == []


def test_an_empty_value_and_one_of_one_byte_have_sizes_of_their_own() -> None:
    rows = scanned(*(build_entry(metadata(), b"x" * size) for size in (0, 1, 2, 3, 4)))
    assert sizes(rows) == {0: (1, 0), 1: (1, 1), 2: (2, 5), 3: (1, 4)}
