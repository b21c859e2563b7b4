"""Entries: their parts, what dispatchers ask of them, and the broker's own metadata in front."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire import frames

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.checksum import entry_fault
from magnetar.wire.entry import (
    build_entry,
    in_transaction,
    parse_metadata,
    payload_of,
    peek,
    split_entry,
    sticky_key,
    with_broker_entry_metadata,
    without_broker_entry_metadata,
)
from magnetar.wire.framing import MalformedEntry

METADATA = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_700_000_000_000)


@given(st.binary(max_size=50), st.booleans(), st.none() | st.integers(0, 2**63 - 1))
def test_parts(payload: bytes, checksum: bool, index: int | None) -> None:
    entry = build_entry(METADATA, payload, checksum=checksum)
    assert entry_fault(entry) is None
    stamped = with_broker_entry_metadata(entry, 1234, index)
    for data, broker in ((entry, False), (stamped, True)):
        assert parse_metadata(data) == METADATA
        assert payload_of(data) == payload
        parts = split_entry(data)
        assert data[parts.metadata_start : parts.payload_start] == METADATA.SerializeToString()
        assert data[parts.payload_start :] == payload
        assert (parts.broker_entry_metadata is not None) == broker
        assert without_broker_entry_metadata(data) == entry
    stamp = split_entry(stamped).broker_entry_metadata
    assert stamp == pb.BrokerEntryMetadata(broker_timestamp=1234, index=index)


def test_stripping_nothing_copies_nothing() -> None:
    entry = frames.entry()
    assert without_broker_entry_metadata(entry) is entry


def test_broker_entry_metadata_layout() -> None:
    stamped = with_broker_entry_metadata(b"entry", 1, 2)
    assert stamped == b"\x0e\x02\x00\x00\x00\x04\x08\x01\x10\x02entry"


@pytest.mark.parametrize("entry", [frames.entry(), with_broker_entry_metadata(frames.entry(), 1)])
def test_an_entry_cut_before_its_payload_is_malformed(entry: bytes) -> None:
    payload_start = split_entry(entry).payload_start
    for size in range(payload_start):
        for read in (split_entry, parse_metadata, payload_of, peek):
            with pytest.raises(MalformedEntry):
                read(entry[:size])
    assert payload_of(entry[:payload_start]) == b""


@given(
    st.binary(max_size=60), st.sampled_from([b"", b"\x0e\x01", b"\x0e\x02", b"\x0e\x02\0\0\0\0"])
)
def test_garbage_raises_nothing_else(data: bytes, start: bytes) -> None:
    for read in (split_entry, parse_metadata, payload_of, peek, without_broker_entry_metadata):
        try:
            read(start + data)
        except MalformedEntry:
            continue


def test_facts_of_a_plain_message() -> None:
    facts = peek(build_entry(METADATA, b""))
    assert (facts.message_count, facts.is_batch) == (1, False)
    assert facts.publish_time_ms == 1_700_000_000_000
    assert facts.sticky_key is None
    assert (facts.deliver_at_ms, facts.marker_type, facts.in_transaction) == (0, None, False)


def test_facts_of_others() -> None:
    facts = peek(frames.entry(num_messages_in_batch=1, deliver_at_time=5, marker_type=0))
    assert (facts.message_count, facts.is_batch) == (1, True)
    assert (facts.deliver_at_ms, facts.marker_type) == (5, 0)
    assert peek(frames.entry(txnid_most_bits=0)).in_transaction


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, None),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": ""}, b""),
        ({"partition_key": "k\u00e9"}, "k\u00e9".encode()),
        ({"partition_key": "aGk=", "partition_key_b64_encoded": True}, b"hi"),
        ({"partition_key": "aGk=", "partition_key_b64_encoded": False}, b"aGk="),
        ({"partition_key": "!", "partition_key_b64_encoded": True}, b"!"),
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        ({"ordering_key": b""}, b""),
    ],
)
def test_sticky_key(fields: dict[str, str | bytes | bool], key: bytes | None) -> None:
    metadata = pb.MessageMetadata.FromString(METADATA.SerializeToString())
    for name, value in fields.items():
        setattr(metadata, name, value)
    assert sticky_key(metadata) == key
    assert peek(build_entry(metadata, b"")).sticky_key == key


def test_a_key_that_is_not_text_is_taken_as_it_is() -> None:
    metadata = pb.MessageMetadata.FromString(METADATA.SerializeToString() + b"\x32\x01\xff")
    assert sticky_key(metadata) == b"\xff"


def test_metadata_without_a_required_field_joins_no_transaction() -> None:
    data = frames.entry()
    metadata = parse_metadata(data)
    metadata.ClearField("producer_name")
    with pytest.raises(MalformedEntry, match="producer_name"):
        in_transaction(data, metadata, 0, 1)
