"""The messages that compaction counts, keeps and drops, by kind and at each boundary."""

from typing import Any

import pytest
from tests.spark.test_compact_entries import batch, log_of, metadata_of, placed, single

from magnetar.core.errors import PersistenceError
from magnetar.jobs.compaction import first_pass
from magnetar.jobs.compaction.entries import (
    KeyedMessage,
    Kind,
    Parsed,
    keyed_messages,
    parse,
    without_others,
)
from magnetar.jobs.compaction.first_pass import Counts, latest_places
from magnetar.jobs.compaction.part_entries import PlacedEntry
from magnetar.jobs.compaction.plan import place_of
from magnetar.jobs.compaction.second_pass import Survivors, kept_entries, survivors_of
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import build_batch
from magnetar.wire.entry import build_entry, with_broker_entry_metadata
from magnetar.wire.framing import MalformedEntry
from magnetar_spark.jobs.compact import batches as batching
from magnetar_spark.jobs.compact.batches import latest_batches


def sealed(metadata: MessageMetadata) -> MessageMetadata:
    metadata.encryption_keys.add(key="k", value=b"v")
    return metadata


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        (metadata_of(partition_key="k"), Kind.SINGLE),
        (metadata_of(partition_key=""), Kind.SINGLE),
        (metadata_of(), Kind.NOTHING),
        (metadata_of(marker_type=1, partition_key="k"), Kind.NOTHING),
        (metadata_of(num_messages_in_batch=1), Kind.BATCH),
        (metadata_of(num_messages_in_batch=1, partition_key="k"), Kind.BATCH),
        (sealed(metadata_of(num_messages_in_batch=1)), Kind.OPAQUE),
        (sealed(metadata_of(partition_key="k")), Kind.SINGLE),
        (metadata_of(partition_key="k", num_chunks_from_msg=1, chunk_id=0), Kind.SINGLE),
        (metadata_of(partition_key="k", num_chunks_from_msg=2, chunk_id=0), Kind.CHUNK),
        (metadata_of(partition_key="k", num_chunks_from_msg=2, chunk_id=1), Kind.SINGLE),
        (metadata_of(num_chunks_from_msg=2, chunk_id=0), Kind.NOTHING),
    ],
)
def test_how_an_entry_is_dealt_with(metadata: MessageMetadata, kind: Kind) -> None:
    for checksum in (True, False):
        entry = build_entry(metadata, b"payload", checksum=checksum)
        assert parse(entry) == Parsed(kind, metadata, b"payload")
    whole = with_broker_entry_metadata(build_entry(metadata, b"payload"), 5, 9)
    assert parse(whole) == Parsed(kind, metadata, b"payload")


def test_an_entry_may_end_with_its_metadata_and_no_sooner() -> None:
    entry = build_entry(metadata_of(partition_key="k"), b"")
    assert parse(entry).payload == b""
    with pytest.raises(MalformedEntry, match="ends within its message metadata"):
        parse(entry[:-1])
    with pytest.raises(MalformedEntry, match="cannot be parsed"):
        parse(b"\x00\x00\x00\x02\xff\xff")


@pytest.mark.parametrize(
    ("fields", "payload", "alive"),
    [
        ({}, b"x", True),
        ({}, b"", False),
        ({"null_value": True}, b"x", False),
        ({"uncompressed_size": 1}, b"", True),
        ({"uncompressed_size": 0}, b"x", False),
        ({"num_chunks_from_msg": 2, "chunk_id": 1}, b"", True),
        ({"num_chunks_from_msg": 2, "chunk_id": 1, "uncompressed_size": 0}, b"", True),
        ({"num_chunks_from_msg": 2, "chunk_id": 1, "null_value": True}, b"x", False),
        ({"num_chunks_from_msg": 1, "chunk_id": 0}, b"", False),
    ],
)
def test_a_message_without_a_value_removes_its_key(
    fields: dict[str, Any], payload: bytes, alive: bool
) -> None:
    parsed = parse(build_entry(metadata_of(partition_key="k", **fields), payload))
    assert keyed_messages(parsed) == [KeyedMessage(0, b"k", alive)]


def test_of_a_batch_those_with_keys_that_are_left() -> None:
    inside = [
        (SingleMessageMetadata(partition_key="a"), b"1"),
        (SingleMessageMetadata(), b"no key"),
        (SingleMessageMetadata(partition_key="b"), b""),
        (SingleMessageMetadata(partition_key="c", null_value=True), b"x"),
        (SingleMessageMetadata(partition_key="d", compacted_out=True), b""),
        (SingleMessageMetadata(partition_key="e"), b"2"),
    ]
    parsed = parse(build_entry(metadata_of(num_messages_in_batch=6), build_batch(inside)))
    assert keyed_messages(parsed) == [
        KeyedMessage(0, b"a", True),
        KeyedMessage(2, b"b", False),
        KeyedMessage(3, b"c", False),
        KeyedMessage(5, b"e", True),
    ]


def batch_with(plain: bytes, count: int) -> bytes:
    return build_entry(metadata_of(num_messages_in_batch=count), plain)


@pytest.mark.parametrize(
    "plain",
    [
        build_batch([(SingleMessageMetadata(partition_key="a"), b"1234")])[:-1],
        build_batch([(SingleMessageMetadata(partition_key="a"), b"")])[:-1],
        b"\x00\x00\x00\x02\xff\xff",
        b"",
        SingleMessageMetadata(payload_size=-1).SerializeToString(),
        b"\x00\x00\x00\x0b" + SingleMessageMetadata(payload_size=-3).SerializeToString(),
    ],
    ids=["within a message", "within its metadata", "no metadata", "empty", "torn", "before it"],
)
def test_a_batch_that_cannot_be_read_stays_whole(plain: bytes) -> None:
    entry = batch_with(plain, 1)
    assert keyed_messages(parse(entry)) is None
    assert without_others(entry, {0}) == (entry, 1)
    (latest,) = latest_places(3, placed(log_of([entry])), Counts())
    assert list(latest.values()) == [place_of(3, 0, 0, alive=True)]


def test_a_batch_of_which_all_stay_is_the_entry_itself() -> None:
    entry = batch([("a", b"1"), ("b", b"2")])
    assert without_others(entry, {0, 1}) == (entry, 2)
    once, count = without_others(entry, {1})
    assert count == 1
    assert without_others(once, {1}) == (once, 1)
    assert keyed_messages(parse(once)) == [KeyedMessage(1, b"b", True)]


def test_what_is_no_batch_stays_and_counts_as_it_says() -> None:
    one = single("a", b"1")
    assert without_others(one, {0}) == (one, 1)
    opaque = build_entry(sealed(metadata_of(num_messages_in_batch=4)), b"x")
    assert without_others(opaque, {0}) == (opaque, 4)
    piece = build_entry(metadata_of(partition_key="k", num_chunks_from_msg=2, chunk_id=0), b"x")
    assert without_others(piece, {0}) == (piece, 0)


def test_what_a_task_counts() -> None:
    whole = batch([("a", b"1"), ("a", b"2"), (None, b"3")])
    left, _ = without_others(whole, {0, 1})
    piece = build_entry(metadata_of(partition_key="k", num_chunks_from_msg=2, chunk_id=0), b"x")
    marker = build_entry(metadata_of(marker_type=1), b"")
    entries = [whole, left, single("b", b"x"), single(None, b"y"), piece, marker]
    told: list[Counts] = []
    counts = Counts(report=told.append)
    (latest,) = latest_places(1, placed(log_of(entries)), counts)
    assert told == [counts]
    assert (counts.entries, counts.bytes) == (6, sum(map(len, entries)))
    assert counts.messages == 3 + 2 + 1 + 1 + 0 + 1
    assert counts.chunks == 1
    assert latest == {
        b"ka": place_of(1, 1, 1, alive=True),
        b"kb": place_of(1, 2, 0, alive=True),
    }


def test_an_entry_that_is_none_is_named() -> None:
    with pytest.raises(PersistenceError, match="entry 3:9 cannot be decoded"):
        list(latest_places(0, [PlacedEntry(4, 3, 9, b"\x00")], Counts()))


def test_the_dictionary_is_handed_on_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_pass, "KEYS_MAX", 3)
    entries = [single(f"k{n}", b"x") for n in range(7)]
    sizes = [len(found) for found in latest_places(0, placed(log_of(entries)), Counts())]
    assert sizes == [3, 3, 1]
    monkeypatch.setattr(first_pass, "KEYS_MAX", 100)
    monkeypatch.setattr(first_pass, "KEY_BYTES_MAX", 40)
    long = [single(f"{n:010d}", b"x") for n in range(9)]
    sizes = [len(found) for found in latest_places(0, placed(log_of(long)), Counts())]
    assert sizes == [4, 4, 1]
    # A hot key's bytes count once.
    hot = [single("0123456789", b"x")] * 40
    assert [len(found) for found in latest_places(0, placed(log_of(hot)), Counts())] == [1]


def test_rows_go_to_spark_in_batches_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "ROWS_MAX", 2)
    latest = {b"k%d" % n: n for n in range(5)}
    batches = list(latest_batches([latest, {b"x": 9}]))
    assert [each.num_rows for each in batches] == [2, 2, 1, 1]
    rows = [tuple(row.values()) for each in batches for row in each.to_pylist()]
    assert rows == [*latest.items(), (b"x", 9)]
    assert batches[0].schema.names == ["key", "place"]


def test_survivors_are_gathered_by_entry() -> None:
    places = [
        place_of(0, 0, 0, alive=True),
        place_of(0, 0, 0, alive=True),
        place_of(0, 0, 5, alive=True),
        place_of(0, 7, 1, alive=True),
        place_of(2, 0, 0, alive=True),
    ]
    assert list(survivors_of(places)) == [
        Survivors(0, 0, frozenset({0, 5})),
        Survivors(0, 7, frozenset({1})),
        Survivors(2, 0, frozenset({0})),
    ]
    assert list(survivors_of([])) == []


def test_reading_ends_behind_the_last_survivor() -> None:
    seen: list[int] = []

    def entries() -> Any:
        for each in placed(log_of([single(f"k{n}", b"x") for n in range(9)])):
            seen.append(each.number)
            yield each

    wanted = [Survivors(0, 1, frozenset({0})), Survivors(0, 3, frozenset({0}))]
    left = list(kept_entries(entries(), iter(wanted)))
    assert [(each.entry_id, each.messages) for each in left] == [(1, 1), (3, 1)]
    assert seen == [0, 1, 2, 3]
    assert list(kept_entries(entries(), iter([]))) == []
    with pytest.raises(AssertionError, match="entry 99 of part 4 was not read again"):
        list(kept_entries(entries(), iter([Survivors(4, 99, frozenset({0}))])))
