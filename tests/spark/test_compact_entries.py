"""The two passes of a compaction equal the reference, without Spark and without a cluster.

Hypothesis draws the logs, and further entries for the next compactions.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compaction import LogEntry, compacted, messages

from magnetar.compaction.records import CompactionRecord
from magnetar.core.ids import EARLIEST, Position
from magnetar.jobs.compaction.chunks import (
    OPEN_MS_MAX,
    chunks_of,
    mark_of,
    settled,
    staying,
)
from magnetar.jobs.compaction.entries import Kind, parse, without_others
from magnetar.jobs.compaction.first_pass import Counts, latest_places
from magnetar.jobs.compaction.part_entries import PlacedEntry
from magnetar.jobs.compaction.plan import PART_SHIFT
from magnetar.jobs.compaction.second_pass import kept_entries, survivors_of
from magnetar.offload.stores import StoreSpec
from magnetar.wire._pb.PulsarApi_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import build_batch, messages_of
from magnetar.wire.compression import compress
from magnetar.wire.entry import build_entry, parse_metadata, with_broker_entry_metadata
from magnetar.wire.framing import MalformedEntry

KEYS = st.sampled_from(["a", "b", "c", "schlüssel", ""])
VALUES = st.one_of(st.none(), st.binary(max_size=12))
MESSAGES = st.tuples(st.one_of(st.none(), KEYS), VALUES)


def metadata_of(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)


def single(key: str | None, value: bytes | None, *, compression: int = 0) -> bytes:
    data = value or b""
    metadata = metadata_of(
        partition_key=key, null_value=value is None or None, uncompressed_size=len(data)
    )
    if compression and data:
        metadata.compression = compression  # type: ignore[assignment]
        data = compress(compression, data)
    return build_entry(metadata, data)


def batch(inside: list[tuple[str | None, bytes | None]], *, compression: int = 0) -> bytes:
    plain = build_batch(
        (SingleMessageMetadata(partition_key=key, null_value=value is None or None), value or b"")
        for key, value in inside
    )
    metadata = metadata_of(num_messages_in_batch=len(inside), uncompressed_size=len(plain))
    metadata.compression = compression  # type: ignore[assignment]
    return build_entry(metadata, compress(compression, plain))


COMPRESSIONS = st.sampled_from(CompressionType.values())
ENTRIES = st.one_of(
    st.builds(lambda message, c: single(*message, compression=c), MESSAGES, COMPRESSIONS),
    st.builds(
        lambda inside, c: batch(inside, compression=c),
        st.lists(MESSAGES, min_size=1, max_size=6),
        COMPRESSIONS,
    ),
    st.builds(
        lambda inside: with_broker_entry_metadata(batch(inside), 7, 9),
        st.lists(MESSAGES, min_size=1, max_size=3),
    ),
)
LOGS = st.lists(ENTRIES, max_size=20)


def log_of(entries: Iterable[bytes], *, ledger_id: int = 3) -> list[LogEntry]:
    return [LogEntry(Position(ledger_id, at), data) for at, data in enumerate(entries)]


def placed(log: list[LogEntry]) -> list[PlacedEntry]:
    return [PlacedEntry(number, *each.position, each.data) for number, each in enumerate(log)]


def compact(*parts: list[LogEntry], settled: Position = EARLIEST) -> list[LogEntry]:
    """Runs both passes over the parts, as the job does."""
    latest: dict[bytes, int] = {}
    for number, part in enumerate(parts):
        for found in latest_places(number, placed(part), Counts()):
            latest |= found
    places = {place for place in latest.values() if place & 1}
    rows = [
        row for number, part in enumerate(parts) for row in chunks_of(number, placed(part), settled)
    ]
    places |= staying(rows, places)
    left: list[LogEntry] = []
    for number, part in enumerate(parts):
        some = sorted(place for place in places if place >> PART_SHIFT == number)
        for ledger_id, entry_id, data, count in kept_entries(placed(part), survivors_of(some)):
            left.append(LogEntry(Position(ledger_id, entry_id), data))
            assert count == _count(data)
    return left


def _count(entry: bytes) -> int:
    """Returns the number of messages left in an entry; of an unreadable one, as declared.

    A chunked message counts once, with its last chunk.
    """
    if parse(entry).kind is Kind.CHUNK:
        return 0
    try:
        return len(messages([LogEntry(Position(0, 0), entry)]))
    except MalformedEntry:
        return parse_metadata(entry).num_messages_in_batch


def kept(log: list[LogEntry]) -> list[tuple[Position, int, str | None, bytes | None]]:
    return sorted(messages(log))


@settings(max_examples=200, deadline=None)
@given(LOGS, LOGS, LOGS)
def test_what_is_left_is_the_latest_value_of_each_key(
    first: list[bytes], second: list[bytes], third: list[bytes]
) -> None:
    log = [log_of(part, ledger_id=at) for at, part in enumerate((first, second, third), 3)]
    once = compact(*log)
    assert kept(once) == compacted([*log[0], *log[1], *log[2]])
    # Compaction in steps gives the same bytes, except of batches that were compressed twice.
    steps = compact(compact(compact(log[0]), log[1]), log[2])
    assert kept(steps) == kept(once)
    # Compaction without new entries changes nothing.
    assert compact(once) == once


@settings(max_examples=100, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=8), COMPRESSIONS, st.data())
def test_a_batch_keeps_its_shape(
    inside: list[tuple[str | None, bytes | None]], compression: int, data: st.DataObject
) -> None:
    survivors = data.draw(st.sets(st.integers(0, len(inside) - 1), min_size=1))
    before = with_broker_entry_metadata(batch(inside, compression=compression), 5)
    after, count = without_others(before, survivors)
    assert count == len(survivors)
    metadata, left = messages_of(after)
    assert metadata.num_messages_in_batch == len(inside) == len(left)
    assert metadata.compression == compression
    for index, ((old, value), (new, payload)) in enumerate(zip(inside, left, strict=True)):
        assert new is not None
        assert new.compacted_out == (index not in survivors)
        if index in survivors:
            assert payload == (value or b"")
            assert new.HasField("partition_key") == (old is not None)
    if len(survivors) == len(inside):
        assert after is before
    else:
        assert list(metadata.compacted_batch_indexes) == sorted(survivors)
        assert after.startswith(before[:4])  # the broker's part


def test_encrypted_batches_and_what_cannot_be_decoded_stay_whole() -> None:
    hidden = metadata_of(num_messages_in_batch=1)
    hidden.encryption_keys.add(key="k", value=b"v")
    assert parse(build_entry(hidden, b"x")).kind is Kind.OPAQUE
    secret = build_entry(hidden, b"nobody reads this")
    broken = build_entry(metadata_of(num_messages_in_batch=2), b"\0\0\0\xff")
    log = log_of([secret, broken, batch([("a", b"1")]), batch([("a", None)])])
    assert compact(log) == log[:2]


def test_markers_go() -> None:
    marker = build_entry(metadata_of(marker_type=21, partition_key="a"), b"x")
    log = log_of([single("a", b"1"), marker])
    assert compact(log) == log[:1]


def test_an_encrypted_single_message_has_its_key() -> None:
    first, second = metadata_of(partition_key="a"), metadata_of(partition_key="a")
    for each in (first, second):
        each.encryption_keys.add(key="k", value=b"v")
    log = log_of([build_entry(first, b"one"), build_entry(second, b"two")])
    assert compact(log) == log[1:]


def chunks(key: str, uuid: str, count: int) -> list[bytes]:
    made = []
    for number in range(count):
        metadata = metadata_of(
            partition_key=key, uuid=uuid, chunk_id=number, num_chunks_from_msg=count
        )
        made.append(build_entry(metadata, b"part"))
    return made


def test_chunks_stay_together() -> None:
    old, new = chunks("a", "u1", 3), chunks("a", "u2", 2)
    log = log_of([old[0], new[0], old[1], single("b", b"1"), old[2], new[1]])
    assert parse(old[0]).kind is Kind.CHUNK
    assert compact(log) == [log[1], log[3], log[5]]
    # Also across parts. Only the last chunk decides the order: that of u2 is first.
    assert compact(log[:2], log[2:4], log[4:]) == [log[1], log[3], log[5]]
    turned = log_of([old[0], new[0], new[1], old[1], old[2]])
    assert compact(turned) == [turned[0], turned[3], turned[4]]


def test_a_message_that_is_not_complete_below_the_horizon_is_waited_for() -> None:
    """Its publish time does not matter: `metadata_of` writes 1970."""
    one = chunks("a", "u1", 2)
    log = log_of([single("a", b"1"), one[0]])
    first = compact(log, settled=log[0].position)
    assert first == log  # its key keeps the former value until then
    rest = [LogEntry(Position(4, 0), one[1])]
    assert compact(first, rest) == [log[1], *rest]
    assert compact(first, rest, settled=log[1].position) == [log[1], *rest]
    assert compact(first, settled=log[1].position) == log[:1]


def test_a_name_that_was_given_again_is_another_message() -> None:
    """A restarted producer begins with sequence id 0 again."""
    old, new = chunks("a", "p-0", 2), chunks("b", "p-0", 2)
    log = log_of([*old, *new])
    assert compact(log) == log
    assert compact([*log, *log_of([single("b", None)], ledger_id=4)]) == log[:2]
    assert compact([*log, *log_of([single("a", b"1")], ledger_id=4)])[:2] == log[2:]


DAY_MS = 24 * 3_600_000


def test_what_is_settled_was_in_the_log_for_long() -> None:
    """A run drops only messages that existed OPEN_MS_MAX before, and drops each of them at last."""
    spec = StoreSpec("filesystem", "/nowhere")
    for every_ms in (DAY_MS // 4, DAY_MS, 6 * DAY_MS, 30 * DAY_MS):
        known: CompactionRecord | None = None
        horizons: list[tuple[Position, int]] = []
        for run in range(100):
            now_ms, horizon = 1_000 + run * every_ms, Position(run, 0)
            upto = settled(known, now_ms)
            assert all(at <= now_ms - OPEN_MS_MAX for place, at in horizons if place == upto)
            old = [place for place, at in horizons if at <= now_ms - 2 * OPEN_MS_MAX - every_ms]
            # A run between two marks drops nothing; the run before it did.
            assert upto == EARLIEST or upto >= max(old, default=EARLIEST)
            horizons.append((horizon, now_ms))
            marked, marked_ms = mark_of(known, horizon, now_ms)
            known = CompactionRecord(
                horizon, 1, "a", spec, now_ms, marked=marked, marked_ms=marked_ms
            )
        assert known is not None
        assert known.marked_ms > now_ms - OPEN_MS_MAX
    # A clock that was far ahead does not decide for ever.
    assert mark_of(known, Position(200, 0), 500) == (Position(200, 0), 500)


def test_a_hot_key_is_one_row_and_the_dictionary_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from magnetar.jobs.compaction import first_pass

    monkeypatch.setattr(first_pass, "KEYS_MAX", 4)
    monkeypatch.setattr(first_pass, "KEY_BYTES_MAX", 300)
    hot = log_of([batch([("hot", b"1")] * 50) for _ in range(20)])
    assert [len(found) for found in latest_places(0, placed(hot), Counts())] == [1]
    many = log_of([batch([(str(at), b"1")]) for at in range(10)])
    assert [len(found) for found in latest_places(0, placed(many), Counts())] == [4, 4, 2]
    long = log_of([batch([(str(at) * 200, b"1")]) for at in range(10)])
    assert [len(found) for found in latest_places(0, placed(long), Counts())] == [2] * 5


def test_an_entry_without_metadata_is_an_error() -> None:
    with pytest.raises(MalformedEntry):
        parse(b"\x0e\x01\0\0\0\0\0\0\0\xff")
    assert parse_metadata(single("a", b"1")).partition_key == "a"
