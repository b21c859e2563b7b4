"""Batches that compaction has left in part: the client delivers the messages that are left."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.consumer.entry import ReceivedEntry, split
from magnetar.jobs.compaction.entries import without_others
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import build_batch
from magnetar.wire.entry import build_entry, parse_metadata
from magnetar.wire.framing import CHECKSUM_HEADER_BYTES, METADATA_SIZE_BYTES
from magnetar.wire.message_id import ack_set_words

SIZES = st.integers(1, 70)


def payload_of(entry: bytes) -> bytes:
    start = CHECKSUM_HEADER_BYTES + METADATA_SIZE_BYTES
    return entry[start + int.from_bytes(entry[CHECKSUM_HEADER_BYTES:start]) :]


def received(entry: bytes, ack_set: tuple[int, ...] = ()) -> list[int]:
    """The messages that a consumer gets, by their values."""
    source: Any = SimpleNamespace(acks=None)
    metadata = parse_metadata(entry)
    whole = ReceivedEntry(source, 3, 7, metadata, None, 0, source.acks)
    messages, _ = split(whole, payload_of(entry), ack_set)
    return [int(message.data) for message in messages]


@given(st.data())
def test_what_compaction_has_left_is_delivered_and_nothing_else(data: st.DataObject) -> None:
    count = data.draw(SIZES)
    left = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    unacked = data.draw(st.none() | st.sets(st.integers(0, count - 1), min_size=1))
    batch = build_batch(
        (SingleMessageMetadata(partition_key=f"k{index}"), b"%d" % index) for index in range(count)
    )
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.num_messages_in_batch = count
    entry, _ = without_others(build_entry(metadata, batch), left)
    if unacked is None:
        assert received(entry) == sorted(left)
    else:
        words = tuple(ack_set_words(sum(1 << index for index in unacked)))
        assert received(entry, words) == sorted(left & unacked)


def test_indexes_that_a_batch_does_not_have_are_left_out() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.num_messages_in_batch = 2
    metadata.compacted_batch_indexes.extend([1, 1, -1, (1 << 31) - 1])
    batch = build_batch((SingleMessageMetadata(), b"%d" % index) for index in range(2))
    assert received(build_entry(metadata, batch)) == [1]
