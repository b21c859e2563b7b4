"""Chunked messages of one range, joined at their last chunk."""

from collections.abc import Iterator

import pytest

from magnetar.bookie.api import StoredEntry
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry
from magnetar_spark.decode.chunks import Chunks

LEDGER = 5


def chunk(number: int, count: int = 4) -> MessageMetadata:
    return MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        uuid="u",
        chunk_id=number,
        num_chunks_from_msg=count,
        total_chunk_msg_size=count,
    )


def chunks_behind(*numbers: int) -> Chunks:
    """Returns the chunks before the range, which begins after them."""
    stored = [StoredEntry(at, build_entry(chunk(n), b"%d" % n)) for at, n in enumerate(numbers)]

    def read_back(_: int) -> Iterator[tuple[int, list[StoredEntry]]]:
        yield LEDGER, stored

    return Chunks(read_back)


@pytest.mark.parametrize("before", [(0, 1, 2), (0, 1, 1, 2), (0, 1, 0, 1, 2)])
def test_chunks_before_the_range_are_found(before: tuple[int, ...]) -> None:
    found = chunks_behind(*before).add(LEDGER, len(before), chunk(3), b"3")
    assert found is not None
    assert found[0] == b"0123"


@pytest.mark.parametrize(
    ("before", "number"),
    [
        *(((), 3), ((1, 2), 3), ((0, 2), 3), ((0, 1), 3), ((0, 2, 2), 3), ((0, 0, 2), 3)),
        ((0, 2), 2),  # this chunk is repeated, and the one before it is missing
    ],
)
def test_a_message_with_a_gap_before_the_range_is_left_out(
    before: tuple[int, ...], number: int
) -> None:
    """Its producer never sent the chunk, so the task omits the message."""
    assert chunks_behind(*before).add(LEDGER, len(before), chunk(number), b"n") is None
