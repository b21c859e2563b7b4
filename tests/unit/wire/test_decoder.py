"""Frames in, events out: cut anywhere, broken anyhow, and always like the slow reference."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire import frames
from tests.unit.wire.reference import decoded, expected, flatten, reference_events

from magnetar.core.errors import ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import FIELD_OF_TYPE, CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.events import (
    AckOne,
    BadSend,
    Command,
    Event,
    Flow,
    Send,
    SendRun,
    UncheckedSends,
)
from magnetar.wire.framing import FRAME_BYTES_MAX_DEFAULT, ProtocolError
from magnetar.wire.receive_buffer import SLACK_BYTES, SMALL_BUFFER_BYTES

MIXED = b"".join(
    (
        frames.send(3, 1),
        frames.send(3, 200, num_messages=3, highest_sequence_id=202),
        frames.send(300, 70_000),
        frames.ack(1, 123_456, 7),
        frames.ping(),
        frames.flow(1, 500),
        frames.send(3, 3, txnid_most_bits=1),
        frames.send(3, 3, marker=True),
        frames.send(3, 4, b"\x0e\x01broken"),
        frames.send(3, 5),
    )
)


def decode(stream: bytes, cuts: list[int] | None = None) -> list[Event]:
    decoder = FrameDecoder()
    events: list[Event] = []
    for start, stop in zip([0, *(cuts or [])], [*(cuts or []), len(stream)], strict=True):
        events += decoder.feed(stream[start:stop])
    return events


def test_consecutive_sends_of_a_producer_are_one_run() -> None:
    entries = [frames.entry(n, b"x" * n) for n in range(4)]
    stream = b"".join(frames.send(7, 20_000 + n, entries[n]) for n in range(4))
    assert decode(stream) == [
        SendRun(7, [20_000, 20_001, 20_002, 20_003], [20_000, 20_001, 20_002, 20_003], [1] * 4,
                entries, sum(map(len, entries))),
    ]  # fmt: skip


def test_what_ends_a_run() -> None:
    kinds = [type(event) for event in decode(MIXED)]
    assert kinds == [
        SendRun, SendRun, AckOne, Command, Flow, UncheckedSends, Send, BadSend, SendRun,
    ]  # fmt: skip
    first = decode(MIXED)[0]
    assert isinstance(first, SendRun)
    assert (first.sequence_ids, first.highest_sequence_ids) == ([1, 200], [1, 202])
    assert first.message_counts == [1, 3]


def test_sends_of_a_transaction_are_runs_of_their_own_by_producer() -> None:
    def sent(producer: int, sequence_id: int, least: int | None) -> bytes:
        if least is None:
            return frames.send(producer, sequence_id)
        return frames.send(producer, sequence_id, txnid_most_bits=2, txnid_least_bits=least)

    stream = b"".join(
        (
            *(sent(7, 1, 5), sent(8, 1, 5), sent(7, 2, 5)),  # two producers take turns
            *(sent(7, 3, 6), sent(7, 4, 5)),  # of each producer, the order stays
            *(sent(7, 5, None), sent(7, 6, 5)),  # and that with messages outside
            *(frames.ping(), sent(7, 7, 5)),
        )
    )
    found = [
        (event.run.producer_id, event.run.txn, event.run.sequence_ids)
        if isinstance(event, UncheckedSends)
        else type(event)
        for event in decode(stream)
    ]
    assert found == [
        (7, (2, 5), [1, 2]),
        (8, (2, 5), [1]),
        (7, (2, 6), [3]),
        (7, (2, 5), [4]),
        SendRun,
        (7, (2, 5), [6]),
        Command,
        (7, (2, 5), [7]),
    ]


def test_sends_with_delivery_times_are_runs_of_their_own_by_producer() -> None:
    def sent(producer: int, sequence_id: int) -> bytes:
        return frames.send(producer, sequence_id)

    def late(producer: int, sequence_id: int) -> bytes:
        entry = frames.entry(sequence_id, deliver_at_time=2)
        return frames.send(producer, sequence_id, entry)

    stream = b"".join(
        (
            *(sent(7, 1), late(7, 2), late(8, 1), late(7, 3)),
            *(sent(7, 4), late(7, 5)),  # the producer's order stays
        )
    )
    found: list[tuple[type[Event], int, list[int]]] = []
    for event in decode(stream):
        assert isinstance(event, SendRun | UncheckedSends)
        run = event if isinstance(event, SendRun) else event.run
        found.append((type(event), run.producer_id, run.sequence_ids))
    assert found == [
        (SendRun, 7, [1]),
        (UncheckedSends, 7, [2, 3]),
        (UncheckedSends, 8, [1]),
        (SendRun, 7, [4]),
        (UncheckedSends, 7, [5]),
    ]


def test_slow_and_fast_sends_join_in_one_run() -> None:
    # The second one has its fields in another order, which only protobuf reads.
    odd_order = b"\x08\x06\x32\x04\x10\x02\x08\x07"
    stream = frames.send(7, 1) + frames.frame(odd_order, frames.entry(2)) + frames.send(7, 3)
    (run,) = decode(stream)
    assert isinstance(run, SendRun)
    assert run.sequence_ids == [1, 2, 3]


def test_cut_at_every_byte() -> None:
    whole = flatten(decode(MIXED))
    for cut in range(1, len(MIXED)):
        assert flatten(decode(MIXED, [cut])) == whole


def test_byte_by_byte() -> None:
    assert flatten(decode(MIXED, list(range(1, len(MIXED))))) == flatten(decode(MIXED))


@given(st.lists(st.integers(0, len(MIXED)), max_size=8))
def test_cut_anywhere(cuts: list[int]) -> None:
    assert flatten(decode(MIXED, sorted(cuts))) == flatten(decode(MIXED))


@pytest.mark.parametrize("number", sorted(FIELD_OF_TYPE))
def test_every_command_as_the_reference_reads_it(number: int) -> None:
    rng = random.Random(number)
    for _ in range(30):
        rest = frames.entry() if number in (CommandType.SEND, CommandType.MESSAGE) else b""
        stream = frames.frame(frames.any_command(rng, number).SerializeToString(), rest)
        assert flatten(decode(stream)) == reference_events(stream, FRAME_BYTES_MAX_DEFAULT)


def test_message_frames_carry_their_entry() -> None:
    message = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=1, entryId=2))
    base = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message)
    (event,) = decode(frames.frame(base.SerializeToString(), frames.entry()))
    assert event == Command(pb.BaseCommand.MESSAGE, message, frames.entry())


def broken_entry(kind: str) -> bytes:
    good = frames.entry(1)
    return {
        "flipped bit": good[:-1] + bytes((good[-1] ^ 1,)),
        "flipped checksum": good[:2] + bytes((good[2] ^ 1,)) + good[3:],
        "only the magic": good[:2],
        "no metadata size": good[:8],
        "nothing": b"",
        "metadata of no bytes": bytes(4),
        "metadata beyond the end": b"\x00\x00\x00\x09" + bytes(8),
        "broker entry metadata": b"\x0e\x02\x00\x00\x00\x00" + good,
    }[kind]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("flipped bit", ServerError.CHECKSUM_ERROR),
        ("flipped checksum", ServerError.CHECKSUM_ERROR),
        ("only the magic", ServerError.CHECKSUM_ERROR),
        ("no metadata size", ServerError.CHECKSUM_ERROR),
        ("nothing", ServerError.NOT_ALLOWED_ERROR),
        ("metadata of no bytes", ServerError.NOT_ALLOWED_ERROR),
        ("metadata beyond the end", ServerError.NOT_ALLOWED_ERROR),
        ("broker entry metadata", ServerError.NOT_ALLOWED_ERROR),
    ],
)
def test_a_damaged_entry_costs_one_message_only(kind: str, code: ServerError) -> None:
    stream = frames.send(7, 1) + frames.send(7, 2, broken_entry(kind)) + frames.send(7, 3)
    before, bad, after = decode(stream)
    assert isinstance(before, SendRun)
    assert isinstance(after, SendRun)
    assert (before.sequence_ids, after.sequence_ids) == ([1], [3])
    assert isinstance(bad, BadSend)
    assert (bad.producer_id, bad.sequence_id, bad.code) == (7, 2, code)


def test_checksum_error_is_the_text_of_pulsar() -> None:
    (bad,) = decode(frames.send(7, 2, broken_entry("flipped bit")))
    assert isinstance(bad, BadSend)
    assert bad.reason == "Checksum failed on the broker"


def test_an_entry_may_come_without_a_checksum() -> None:
    bare = frames.entry(1)[6:]
    (run,) = decode(frames.send(7, 1, bare))
    assert isinstance(run, SendRun)
    assert run.entries == [bare]


@pytest.mark.parametrize(
    "stream",
    [
        b"\x7f\xff\xff\xff\x00\x00\x00\x05",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x04\x00\x00\x00\x00",
        b"\x00\x00\x00\x02\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x05\x08\x12\x92\x01",
        frames.frame(b"\x08\x12"),
        frames.frame(b"\x08\x63\x92\x01\x00"),
        frames.frame(b"\x92\x01\x00"),
        frames.frame(b"\x08\x17\xba\x01\x02\x0a\x00"),
        frames.frame(b"\x08\x17\xba\x01\x05\x0a\x01\xff\x10\x01"),
        frames.frame(b"\xff" * 30),
        frames.frame(b"\x08\x06\x32\x02\x08\x01", frames.entry()),
    ],
    ids=[
        "oversized",
        "another protocol",
        "no command",
        "smaller than its sizes",
        "command larger than its frame",
        "type without its message",
        "unknown type",
        "no type",
        "required field missing",
        "text that is not UTF-8",
        "garbage",
        "SEND without sequence id",
    ],
)
def test_unreadable_streams(stream: bytes) -> None:
    decoder = FrameDecoder()
    with pytest.raises(ProtocolError) as caught:
        decoder.feed(frames.ping() + frames.send(1, 1) + stream)
    assert [type(event) for event in caught.value.events] == [Command, SendRun]
    assert str(caught.value)


def test_the_greatest_frame() -> None:
    largest = frames.send(1, 1, frames.entry(1, bytes(2000)))
    assert FrameDecoder(len(largest)).feed(largest)
    with pytest.raises(ProtocolError, match="exceeds"):
        FrameDecoder(len(largest) - 1).feed(largest[:8])
    with pytest.raises(ProtocolError, match="exceeds"):
        FrameDecoder(len(largest) - 1).feed(largest)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 2**32))
def test_decoders_share_spare_buffers_without_mixing(count: int, seed: int) -> None:
    rng = random.Random(seed)
    streams = [
        b"".join(
            frames.send(n, i, frames.entry(i, rng.randbytes(rng.randint(0, 4000))))
            for i in range(9)
        )
        for n in range(count)
    ]
    decoders = [FrameDecoder() for _ in streams]
    found: list[list[Event]] = [[] for _ in streams]
    at = [0] * count
    while any(position < len(stream) for position, stream in zip(at, streams, strict=True)):
        n = rng.randrange(count)
        free = decoders[n].get_buffer()
        other = decoders[rng.randrange(count)].get_buffer()
        assert other is free or len(other) > 0
        piece = streams[n][at[n] : at[n] + min(rng.randint(1, 9000), len(free))]
        free[: len(piece)] = piece
        at[n] += len(piece)
        found[n] += decoders[n].received(len(piece))
    for stream, events in zip(streams, found, strict=True):
        assert flatten(events) == reference_events(stream, FRAME_BYTES_MAX_DEFAULT)


@pytest.mark.parametrize(
    "last",
    [
        frames.frame(b"\x08\x06\x32\x04\x08\x01\x10\x01"),
        frames.frame(b"\x08\x06\x32\x04\x08\x01\x10\x80"),
        frames.frame(b"\x08\x06\x32\x03\x08\x01\x10"),
        frames.frame(b"\x08\x06"),
        frames.send(1, 2, b"\x0e\x01"),
        frames.ping()[:-3],
    ],
)
def test_scanning_stops_at_the_end_of_the_memory(last: bytes) -> None:
    stream = frames.send(1, 1) + last
    decoder = FrameDecoder(FRAME_BYTES_MAX_DEFAULT, len(stream))
    assert decoded(decoder, stream) == expected(stream)


def test_idle_connections_hold_no_memory() -> None:
    decoder = FrameDecoder()
    assert decoder.held_bytes == 0
    decoder.feed(MIXED)
    assert decoder.held_bytes == 0


def test_a_trickling_connection_holds_a_small_buffer() -> None:
    decoder = FrameDecoder()
    for byte in frames.send(1, 1, frames.entry(1, bytes(5000)))[:-1]:
        decoder.feed(bytes((byte,)))
        assert decoder.held_bytes <= SMALL_BUFFER_BYTES + SLACK_BYTES


def test_memory_grows_with_what_arrives_not_with_what_is_announced() -> None:
    large = frames.send(1, 1, frames.entry(1, bytes(4_000_000)))
    decoder = FrameDecoder()
    arrived = 0
    for start in range(0, len(large) - 1, 3000):
        piece = large[start : min(start + 3000, len(large) - 1)]
        assert decoder.feed(piece) == []
        arrived += len(piece)
        assert decoder.held_bytes <= max(2 * arrived, SMALL_BUFFER_BYTES) + 3000 + SLACK_BYTES
    assert decoder.held_bytes <= FRAME_BYTES_MAX_DEFAULT + SLACK_BYTES
    (run,) = decoder.feed(large[-1:])
    assert isinstance(run, SendRun)
    assert run.size_bytes == len(frames.entry(1, bytes(4_000_000)))
    assert decoder.held_bytes == 0


def test_sends_are_gathered_by_producer_up_to_another_command() -> None:
    """What a client spreads over partitions still makes one run for each of its producers."""
    sends = [frames.send(number % 3, number) for number in range(9)]
    flow = frames.flow(1, 2)
    events = decode(b"".join([*sends, flow, sends[0]]))
    runs = [event for event in events if isinstance(event, SendRun)]
    assert [(run.producer_id, run.sequence_ids) for run in runs] == [
        (0, [0, 3, 6]),
        (1, [1, 4, 7]),
        (2, [2, 5, 8]),
        (0, [0]),
    ]
    assert isinstance(events[3], Flow)
