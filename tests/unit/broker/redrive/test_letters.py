"""The messages of entries, and what they become at their origin."""

import base64
from typing import Any

import pytest

from magnetar.broker.redrive.letters import (
    Letter,
    Skip,
    letters_of,
    properties_at_origin,
)
from magnetar.core.ids import Position
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import build_batch
from magnetar.wire.entry import build_entry

AT = Position(7, 3)


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)


def letters(entry: bytes) -> list[Letter]:
    found = letters_of(entry, AT)
    assert isinstance(found, list)
    return found


def test_a_message_keeps_its_key_times_properties_and_schema() -> None:
    head = metadata(
        partition_key="k",
        ordering_key=b"o",
        event_time=5,
        schema_version=b"\0" * 7 + b"\2",
        properties=[pb.KeyValue(key="a", value="b")],
    )
    (letter,) = letters(build_entry(head, b"body"))
    assert letter == Letter(
        *(AT, 0, 1, b"body", False, "k", None, b"o", {"a": "b"}, 5, b"\0" * 7 + b"\2")
    )
    assert letter.left == 0
    assert (letter.seen.key, letter.seen.properties) == ("k", {"a": "b"})


@pytest.mark.parametrize("compression", [pb.NONE, pb.ZLIB])
def test_each_message_of_a_batch_is_a_letter(compression: Any) -> None:
    import zlib

    body = build_batch(
        (pb.SingleMessageMetadata(partition_key=f"k{n}", null_value=n == 1), b"%d" % n)
        for n in range(3)
    )
    head = metadata(num_messages_in_batch=3, compression=compression, uncompressed_size=len(body))
    payload = zlib.compress(body) if compression == pb.ZLIB else body
    found = letters(build_entry(head, payload))
    assert [letter.payload for letter in found] == [b"0", b"1", b"2"]
    assert [letter.key for letter in found] == ["k0", "k1", "k2"]
    assert [letter.null_value for letter in found] == [False, True, False]
    assert [letter.left for letter in found] == [0b110, 0b101, 0b011]


@pytest.mark.parametrize("key", [b"\0\xff", b""])
def test_a_key_of_bytes_stays_one(key: bytes) -> None:
    text = base64.b64encode(key).decode()
    (letter,) = letters(
        build_entry(metadata(partition_key=text, partition_key_b64_encoded=True), b"")
    )
    assert (letter.key, letter.key_bytes) == (None, key)
    (letter,) = letters(
        build_entry(metadata(partition_key="no base64!", partition_key_b64_encoded=True), b"")
    )
    assert (letter.key, letter.key_bytes) == ("no base64!", None)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (b"no entry", Skip.UNREADABLE),
        (build_entry(metadata(num_messages_in_batch=2), b"no batch"), Skip.UNREADABLE),
        (
            build_entry(metadata(compression=pb.ZLIB, uncompressed_size=4), b"no zlib"),
            Skip.UNREADABLE,
        ),
        (
            build_entry(
                metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]), b"secret"
            ),
            Skip.ENCRYPTED,
        ),
        (build_entry(metadata(num_chunks_from_msg=2, chunk_id=0), b"half"), Skip.CHUNKED),
        (build_entry(metadata(null_partition_key=True), b"v"), Skip.NULL_KEY),
        (build_entry(metadata(marker_type=21), b""), None),
    ],
)
def test_what_cannot_be_moved_has_a_reason(entry: bytes, found: Skip | None) -> None:
    assert letters_of(entry, AT) is found


@pytest.mark.parametrize(
    ("before", "after"), [(None, "1"), ("1", "2"), ("x", "1"), ("-1", "1"), ("9" * 10, "1")]
)
def test_the_properties_of_letters_are_dropped_and_redrives_are_counted(
    before: str | None, after: str
) -> None:
    properties = {
        "REAL_TOPIC": "t",
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": "1:2:-1",
        "ORIGIN_MESSAGE_IDY_TIME": "1:2:-1",
        "RECONSUMETIMES": "3",
        "DELAY_TIME": "1000",
        "mine": "x",
    }
    if before is not None:
        properties["REDRIVES"] = before
    assert properties_at_origin(properties) == {"mine": "x", "REDRIVES": after}


def test_the_names_of_the_properties_are_those_of_the_client() -> None:
    from magnetar.broker.redrive import letters as ours
    from magnetar.client.consumer import letters as clients

    assert ours.ORIGIN == clients.REAL_TOPIC
    assert {
        *(clients.REAL_TOPIC, clients.REAL_SUBSCRIPTION, clients.ORIGIN_MESSAGE_ID),
        *(clients.ORIGIN_MESSAGE_ID_OLD, clients.RECONSUME_TIMES, clients.DELAY_TIME),
    } == ours.SYSTEM_PROPERTIES
