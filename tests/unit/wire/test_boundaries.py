"""The wire at its bounds: entries that just fit or just do not, forged sizes, delays, payloads."""

from concurrent.futures import ThreadPoolExecutor
from random import Random
from struct import pack

import cramjam
import pytest
from tests.unit.wire.frames import entry, flow, frame, send

from magnetar.core.errors import ServerError
from magnetar.wire import receive_buffer
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import build_batch, iterate_batch
from magnetar.wire.checksum import entry_fault, with_checksum
from magnetar.wire.compression import compress, decompress
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import encode_receipts
from magnetar.wire.entry import (
    parse_metadata,
    payload_of,
    split_entry,
    with_broker_entry_metadata,
    without_broker_entry_metadata,
)
from magnetar.wire.events import BadSend, Flow, Send, SendRun, UncheckedSends
from magnetar.wire.framing import MalformedEntry, ProtocolError
from magnetar.wire.hot import (
    MESSAGE_COUNT_MAX,
    SEQUENCE_ID_MAX,
    may_be_delayed,
    plain_send,
    scan_ack,
    scan_flow,
)
from magnetar.wire.receive_buffer import (
    BUFFER_BYTES_DEFAULT,
    GROWN_BYTES,
    SLACK_BYTES,
    SMALL_BUFFER_BYTES,
    SPARE_BUFFERS_MAX,
    ReceiveBuffer,
)

HEAD = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()


def forged(metadata_size: int, rest: bytes = HEAD, *, checksum: bool = True) -> bytes:
    """Returns an entry whose metadata declares this size; its checksum is right."""
    body = pack(">I", metadata_size) + rest
    return with_checksum(body) if checksum else body


# -- entries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("checksum", [True, False])
def test_metadata_fits_its_entry_to_the_byte(checksum: bool) -> None:
    room = len(HEAD)
    assert entry_fault(forged(room, checksum=checksum)) is None
    assert entry_fault(forged(1, b"\0", checksum=checksum)) is None
    for size in (0, room + 1, 1 << 31):
        fault = entry_fault(forged(size, checksum=checksum))
        assert fault is not None
        assert fault[0] is ServerError.NOT_ALLOWED_ERROR


def test_an_entry_too_short_for_its_head_has_a_fault() -> None:
    whole = forged(len(HEAD))
    for size in range(len(whole)):
        assert entry_fault(whole[:size]) is not None
    for data in (b"", b"\0", b"\0\0\0", b"\0\0\0\1"):
        fault = entry_fault(data)
        assert fault is not None
        assert fault[0] is ServerError.NOT_ALLOWED_ERROR


@pytest.mark.parametrize("size", [0, len(HEAD), len(HEAD) + 1])
@pytest.mark.parametrize("count", [1, 2])
def test_a_send_whose_metadata_does_not_fit_is_bad_and_the_next_one_is_not(
    size: int, count: int
) -> None:
    good = send(1, 6, num_messages=count)
    events = FrameDecoder().feed(send(1, 5, forged(size), num_messages=count) + good)
    if size == len(HEAD):
        (run,) = events
        assert isinstance(run, SendRun)
        assert run.sequence_ids == [5, 6]
        return
    bad, run = events
    assert isinstance(bad, BadSend)
    assert (bad.producer_id, bad.sequence_id) == (1, 5)
    assert isinstance(run, SendRun)
    assert run.sequence_ids == [6]
    assert run.size_bytes == len(run.entries[0])


def test_parts_of_an_entry_are_read_to_the_byte() -> None:
    for checksum in (True, False):
        data = forged(len(HEAD), HEAD + b"payload", checksum=checksum)
        assert parse_metadata(data).producer_name == "p"
        assert payload_of(data) == b"payload"
        assert payload_of(forged(len(HEAD), checksum=checksum)) == b""
        short = forged(len(HEAD) + 1, checksum=checksum)
        for read in (parse_metadata, payload_of, split_entry):
            with pytest.raises(MalformedEntry):
                read(short)
        with pytest.raises(MalformedEntry, match="cannot be parsed"):
            parse_metadata(forged(2, b"\xff\xff", checksum=checksum))


def test_the_brokers_part_of_an_entry_is_read_to_the_byte() -> None:
    data = entry()
    ours = with_broker_entry_metadata(data, 77, 5)
    parts = split_entry(ours)
    assert parts.broker_entry_metadata is not None
    assert (parts.broker_entry_metadata.broker_timestamp, parts.broker_entry_metadata.index) == (
        77,
        5,
    )
    assert without_broker_entry_metadata(ours) == data
    assert without_broker_entry_metadata(data) is data
    assert ours[parts.payload_start :] == b"payload"
    assert parse_metadata(ours).producer_name == "p"
    begins = len(ours) - len(data)
    for size in range(2, begins):
        with pytest.raises(MalformedEntry, match="broker entry metadata"):
            split_entry(ours[:size])
    unreadable = ours[:2] + pack(">I", 2) + b"\xff\xff" + data
    with pytest.raises(MalformedEntry, match="cannot be parsed"):
        split_entry(unreadable)


@pytest.mark.parametrize("checksum", [True, False])
def test_a_delay_is_seen_in_the_metadata_and_nowhere_else(checksum: bool) -> None:
    delayed = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, deliver_at_time=99
    ).SerializeToString()
    alone = pb.MessageMetadata(deliver_at_time=99).SerializePartialToString()
    for head in (delayed, alone):
        assert may_be_delayed(forged(len(head), head, checksum=checksum))
    assert not may_be_delayed(forged(len(HEAD), HEAD + b"\x98\x01" * 9, checksum=checksum))
    assert not may_be_delayed(forged(len(HEAD), HEAD[:-1] + b"\x98\x01", checksum=checksum))
    tag_as_size = forged(0x9801, HEAD, checksum=checksum)
    assert not may_be_delayed(tag_as_size)


@pytest.mark.parametrize("checksum", [True, False])
def test_a_delayed_send_is_distinguished_from_a_plain_one(checksum: bool) -> None:
    delayed = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, deliver_at_time=99
    ).SerializeToString()
    (event,) = FrameDecoder().feed(send(1, 5, forged(len(delayed), delayed, checksum=checksum)))
    assert isinstance(event, UncheckedSends)
    payload = forged(len(HEAD), HEAD + b"\x98\x01\x05", checksum=checksum)
    (event,) = FrameDecoder().feed(send(1, 5, payload))
    assert isinstance(event, SendRun)
    (event,) = FrameDecoder().feed(
        send(1, 5, forged(len(delayed), delayed, checksum=checksum), num_messages=2)
    )
    assert isinstance(event, UncheckedSends), "a batch may be delayed as a whole"


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["sequence_id", "highest_sequence_id"])
def test_numbers_beyond_the_largest_are_no_plain_send(field: str) -> None:
    for value, plain in ((SEQUENCE_ID_MAX, True), (SEQUENCE_ID_MAX + 1, False)):
        command = pb.CommandSend(producer_id=1, sequence_id=0)
        setattr(command, field, value)
        assert (plain_send(command) is not None) == plain
        (event,) = FrameDecoder().feed(send(1, **{"sequence_id": 0} | {field: value}))  # type: ignore[arg-type]
        assert isinstance(event, SendRun if plain else Send)


@pytest.mark.parametrize(("count", "plain"), [(0, False), (1, True), (MESSAGE_COUNT_MAX, True)])
def test_a_send_has_one_message_at_least(count: int, plain: bool) -> None:
    (event,) = FrameDecoder().feed(send(1, 5, num_messages=count))
    assert isinstance(event, SendRun if plain else Send)
    if isinstance(event, SendRun):
        assert event.message_counts == [count]
        assert event.highest_sequence_ids == [5]


def test_the_permits_of_a_flow_are_of_32_bits() -> None:
    for permits in (0, 1, 2**31, 2**32 - 1):
        (event,) = FrameDecoder().feed(flow(3, permits))
        assert event == Flow(3, permits)
    huge = b"\x08\x0b\x5a\x08\x08\x03\x10" + b"\x80\x80\x80\x80\x10"
    assert scan_flow(huge) is None


def test_a_scanner_raises_nothing_whatever_it_is_given() -> None:
    rng = Random(3)
    for tag, scan in ((0x52, scan_ack), (0x5A, scan_flow)):
        for size in range(4, 140):
            for fill in (b"\x08", b"\x80", b"\xff", b"\x10"):
                data = bytes((0x08, 6, tag, (size - 4) & 0xFF, 0x08)) + fill * size
                scan(data[:size])
            scan(bytes((0x08, 6, tag, (size - 4) & 0xFF, 0x08)) + rng.randbytes(size))
        for size in range(5):
            assert scan(bytes(size)) is None


def test_receipts_of_a_run_whose_parts_disagree_are_an_error() -> None:
    for sequence_ids in ([500], [1]):
        with pytest.raises(ValueError, match=r"zip\(\)"):
            encode_receipts(1, sequence_ids, [500, 501], 7, 500)


# -- payloads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", range(5))
def test_a_payload_comes_out_by_its_own_compression_and_no_other(compression: int) -> None:
    plain = b"payload " * 40
    packed = compress(compression, plain)
    assert decompress(compression, packed, len(plain)) == plain
    if compression:
        assert decompress(compression, packed, len(plain), len(plain)) == plain
        with pytest.raises(MalformedEntry, match="exceeds"):
            decompress(compression, packed, len(plain), len(plain) - 1)
        for size in (len(plain) - 1, len(plain) + 1, 0):
            with pytest.raises(MalformedEntry):
                decompress(compression, packed, size)
    for other in range(1, 5):
        if other != compression:
            with pytest.raises(MalformedEntry):
                decompress(other, packed, len(plain))
    with pytest.raises(MalformedEntry, match="No compression has the number 9"):
        decompress(9, bytes(cramjam.snappy.compress_raw(plain)), len(plain))
    with pytest.raises(ValueError, match="number 9"):
        compress(9, plain)


def test_a_bomb_is_refused_by_what_its_header_says() -> None:
    """Otherwise memory would be allocated before the size is compared."""
    bomb = compress(pb.CompressionType.ZSTD, bytes(1 << 20))
    with pytest.raises(MalformedEntry, match="longer than promised"):
        decompress(pb.CompressionType.ZSTD, bomb, 10)
    assert len(decompress(pb.CompressionType.ZSTD, bomb, 1 << 20)) == 1 << 20


def test_every_thread_has_its_own_working_memory() -> None:
    with ThreadPoolExecutor(1) as other:
        for compression in range(5):
            packed = other.submit(compress, compression, b"payload").result()
            assert other.submit(decompress, compression, packed, 7).result() == b"payload"


def test_the_error_of_a_frame_that_is_too_large_names_its_size() -> None:
    decoder = FrameDecoder(frame_bytes_max=1000)
    assert len(decoder.feed(frame(b"\x08\x12\x92\x01\x00"))) == 1
    with pytest.raises(ProtocolError, match="A frame of 1001 bytes exceeds 1000"):
        decoder.feed(pack(">II", 997, 5))
    with pytest.raises(ProtocolError, match="A command of 94 bytes does not fit its frame of 101"):
        FrameDecoder().feed(pack(">II", 97, 94))


def test_a_batch_is_cut_to_the_byte() -> None:
    metadata = pb.SingleMessageMetadata(partition_key="k")
    whole = build_batch([(metadata, b"one"), (pb.SingleMessageMetadata(), b"")])
    assert [message.payload for message in iterate_batch(whole, 2)] == [b"one", b""]
    assert [message.payload for message in iterate_batch(whole, 1)] == [b"one"]
    with pytest.raises(MalformedEntry):
        list(iterate_batch(whole, 3))
    for size in range(len(whole)):
        with pytest.raises(MalformedEntry):
            list(iterate_batch(whole[:size], 2))


# -- buffers --------------------------------------------------------------------------------------


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare buffers of this test alone."""
    monkeypatch.setattr(receive_buffer, "_spare", [])
    monkeypatch.setattr(receive_buffer, "_spare_grown", {})


def received(buffer: ReceiveBuffer, size: int) -> None:
    """So many bytes arrive, and no frame is whole."""
    while size:
        count = min(len(buffer.writable()), size)
        buffer.end += count
        size -= count


@pytest.mark.usefixtures("pools")
def test_an_idle_connection_holds_nothing_and_its_buffer_serves_the_next() -> None:
    buffers = [ReceiveBuffer(1 << 22, BUFFER_BYTES_DEFAULT) for _ in range(SPARE_BUFFERS_MAX + 2)]
    for buffer in buffers:
        received(buffer, 100)
        assert buffer.held_bytes == BUFFER_BYTES_DEFAULT + SLACK_BYTES
    data = [buffer.data for buffer in buffers]
    for buffer in buffers:
        buffer.start = buffer.end
        buffer.settle(100)
        assert buffer.held_bytes == buffer.start == buffer.end == 0
    assert len(receive_buffer._spare) == SPARE_BUFFERS_MAX
    buffers[0].writable()
    assert buffers[0].data is data[SPARE_BUFFERS_MAX - 1], "the latest first"
    other = ReceiveBuffer(1 << 22, 1000)
    other.writable()
    assert other.held_bytes == 1000 + SLACK_BYTES
    assert len(receive_buffer._spare) == SPARE_BUFFERS_MAX - 1


@pytest.mark.usefixtures("pools")
def test_memory_grows_as_a_frame_fills_it_and_up_to_the_largest_frame() -> None:
    buffer = ReceiveBuffer(5000, 1000)
    held = []
    for _ in range(4):
        received(buffer, len(buffer.writable()))
        held.append(buffer.held_bytes - SLACK_BYTES)
    assert held == [1000, 2000, 4000, 5000]


@pytest.mark.usefixtures("pools")
def test_what_is_left_moves_to_the_front_before_memory_grows() -> None:
    buffer = ReceiveBuffer(1 << 20, 1000)
    received(buffer, 1000)
    buffer.data[500:1000] = bytes(range(250)) * 2
    buffer.start = 500
    free = buffer.writable()
    assert (buffer.start, buffer.end, len(free)) == (0, 500, 500)
    assert bytes(buffer.data[:500]) == bytes(range(250)) * 2
    received(buffer, 500)
    buffer.start = 499
    buffer.writable()
    assert buffer.held_bytes == 2000 + SLACK_BYTES, "more than half is left"
    assert (buffer.start, buffer.end) == (0, 501)


@pytest.mark.usefixtures("pools")
def test_a_connection_that_trickles_is_moved_to_a_small_buffer() -> None:
    buffer = ReceiveBuffer(1 << 20, BUFFER_BYTES_DEFAULT)
    received(buffer, 100)
    buffer.data[60:100] = b"x" * 40
    buffer.start = 60
    buffer.settle(SMALL_BUFFER_BYTES - 40)
    assert buffer.held_bytes == BUFFER_BYTES_DEFAULT + SLACK_BYTES
    buffer.settle(SMALL_BUFFER_BYTES - 41)
    assert buffer.held_bytes == SMALL_BUFFER_BYTES + SLACK_BYTES
    assert bytes(buffer.data[buffer.start : buffer.end]) == b"x" * 40
    small = buffer.data
    buffer.settle(0)
    assert buffer.data is small


@pytest.mark.usefixtures("pools")
def test_one_grown_buffer_of_each_size_serves_the_next_large_frame() -> None:
    buffer = ReceiveBuffer(1 << 22, BUFFER_BYTES_DEFAULT)
    received(buffer, GROWN_BYTES[1])
    grown = buffer.data
    assert len(grown) == GROWN_BYTES[1] + SLACK_BYTES
    assert set(receive_buffer._spare_grown) == {GROWN_BYTES[0]}
    buffer.start = buffer.end
    buffer.settle(1)
    assert set(receive_buffer._spare_grown) == set(GROWN_BYTES)
    received(buffer, GROWN_BYTES[1])
    assert buffer.data is grown


def test_a_decoder_says_what_it_holds_of_a_frame_under_way() -> None:
    decoder = FrameDecoder()
    whole = frame(b"\x08\x12\x92\x01\x00")
    assert (decoder.held_bytes, decoder.unfinished_bytes) == (0, 0)
    decoder.feed(whole + whole[:7])
    assert decoder.unfinished_bytes == 7
    assert decoder.held_bytes > 0
    decoder.feed(whole[7:])
    assert (decoder.held_bytes, decoder.unfinished_bytes) == (0, 0)


@pytest.mark.parametrize("buffer_bytes", [64, BUFFER_BYTES_DEFAULT])
def test_what_came_before_a_broken_frame_is_kept_however_the_bytes_came(buffer_bytes: int) -> None:
    decoder = FrameDecoder(buffer_bytes=buffer_bytes)
    with pytest.raises(ProtocolError) as broken:
        decoder.feed(b"".join(flow(1, permits) for permits in range(1, 40)) + b"\xff" * 64)
    assert broken.value.events == [Flow(1, permits) for permits in range(1, 40)]
