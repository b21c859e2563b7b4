"""Batches and compression: round trips, bombs, and payloads that lie about their size."""

import zlib
from contextlib import suppress

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire._pb.PulsarApi_pb2 import CompressionType, SingleMessageMetadata
from magnetar.wire.batch import BatchMessage, build_batch, iterate_batch, messages_of
from magnetar.wire.compression import compress, decompress
from magnetar.wire.entry import build_entry
from magnetar.wire.framing import MalformedEntry

ALL = sorted(CompressionType.values())
REAL = [number for number in ALL if number != CompressionType.NONE]
TEXT = b"the same words again and again, " * 40

payloads = st.lists(st.binary(max_size=200) | st.just(TEXT), max_size=6)


@pytest.mark.parametrize("compression", ALL)
@given(data=st.binary(max_size=2000) | st.just(TEXT) | st.just(b""))
def test_round_trip(compression: int, data: bytes) -> None:
    assert decompress(compression, compress(compression, data), len(data)) == data


def test_other_libraries_read_what_we_write_and_the_reverse() -> None:
    assert zlib.decompress(compress(CompressionType.ZLIB, TEXT)) == TEXT
    assert bytes(cramjam.zstd.decompress(compress(CompressionType.ZSTD, TEXT))) == TEXT
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    assert decompress(CompressionType.ZSTD, streamed, len(TEXT)) == TEXT
    # A literal-only block, by hand: token (length 5), the bytes.
    assert decompress(CompressionType.LZ4, b"\x50hello", 5) == b"hello"
    assert decompress(CompressionType.SNAPPY, b"\x05\x10hello", 5) == b"hello"


@pytest.mark.parametrize("compression", REAL)
@pytest.mark.parametrize("wrong_by", [-1, 1, -len(TEXT)])
def test_a_wrong_size_is_an_error(compression: int, wrong_by: int) -> None:
    with pytest.raises(MalformedEntry):
        decompress(compression, compress(compression, TEXT), len(TEXT) + wrong_by)


@pytest.mark.parametrize("compression", REAL)
def test_a_bomb_is_refused(compression: int) -> None:
    bomb = compress(compression, bytes(10_000_000))
    with pytest.raises(MalformedEntry, match="exceeds"):
        decompress(compression, bomb, 10_000_000, 1_000_000)
    with pytest.raises(MalformedEntry):
        decompress(compression, bomb, 1000)


@pytest.mark.parametrize("compression", REAL)
@given(data=st.binary(max_size=100), size_bytes=st.integers(0, 1000))
def test_garbage_raises_nothing_else(compression: int, data: bytes, size_bytes: int) -> None:
    with suppress(MalformedEntry):
        assert len(decompress(compression, data, size_bytes)) == size_bytes


def test_a_cut_off_stream_is_an_error() -> None:
    for compression in REAL:
        with pytest.raises(MalformedEntry):
            decompress(compression, compress(compression, TEXT)[:-3], len(TEXT))


def test_an_unknown_compression() -> None:
    with pytest.raises(MalformedEntry):
        decompress(9, b"", 0)
    with pytest.raises(ValueError, match="9"):
        compress(9, b"")


@pytest.mark.parametrize("compression", ALL)
@given(contents=payloads)
def test_batches(compression: int, contents: list[bytes]) -> None:
    singles = [
        SingleMessageMetadata(payload_size=0, partition_key=f"k{i}", sequence_id=i)
        for i in range(len(contents))
    ]
    plain = build_batch(zip(singles, contents, strict=True))
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        compression=compression,  # type: ignore[arg-type]
        uncompressed_size=len(plain),
        num_messages_in_batch=len(contents),
    )
    entry = build_entry(metadata, compress(compression, plain))
    found, messages = messages_of(entry)
    assert found == metadata
    assert messages == [BatchMessage(*pair) for pair in zip(singles, contents, strict=True)]


def test_a_message_that_is_no_batch() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    assert messages_of(build_entry(metadata, b"x"))[1] == [BatchMessage(None, b"x")]


def test_what_is_encrypted_stays_so() -> None:
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        compression=CompressionType.LZ4,
        num_messages_in_batch=3,
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
    )
    assert messages_of(build_entry(metadata, b"secret"))[1] == [BatchMessage(None, b"secret")]


def test_a_batch_cut_anywhere_is_malformed() -> None:
    single = SingleMessageMetadata(payload_size=0, partition_key="k")
    batch = build_batch([(single, b"one"), (single, b"two")])
    assert [m.payload for m in iterate_batch(batch, 2)] == [b"one", b"two"]
    for size in range(len(batch)):
        with pytest.raises(MalformedEntry):
            list(iterate_batch(batch[:size], 2))


def test_a_negative_payload_size_is_malformed() -> None:
    head = SingleMessageMetadata(payload_size=-3).SerializeToString()
    with pytest.raises(MalformedEntry):
        list(iterate_batch(len(head).to_bytes(4) + head + b"abc", 1))
