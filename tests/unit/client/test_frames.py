"""The client's hand-written frames and scanners agree with protobuf."""

import base64

from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.producer.encode import ChunkPlace, FrameEncoder, single_head
from magnetar.client.producer.outgoing import OutgoingMessage
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.client_decoder import Answer, ClientDecoder, ClientEvent, Delivery, Receipt
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import MessageFramer, encode_command, encode_receipts, encode_send

NUMBERS = st.integers(0, 2**40) | st.integers(0, 300)
TEXTS = st.text(max_size=20)
PAYLOADS = st.binary(max_size=300)
TRANSACTIONS = st.none() | st.tuples(NUMBERS, NUMBERS)


@st.composite
def messages(draw: st.DrawFn) -> OutgoingMessage:
    as_bytes = draw(st.booleans())
    return OutgoingMessage(
        draw(PAYLOADS),
        None if as_bytes else draw(st.none() | TEXTS),
        draw(st.none() | PAYLOADS) if as_bytes else None,
        draw(st.none() | PAYLOADS),
        draw(st.dictionaries(TEXTS, TEXTS, max_size=3)),
        draw(NUMBERS),
        -1,
        draw(NUMBERS),
        tuple(draw(st.lists(TEXTS, max_size=2))),
        draw(st.booleans()),
    )


def fill(metadata: pb.MessageMetadata | pb.SingleMessageMetadata, message: OutgoingMessage) -> None:
    metadata.properties.extend(
        pb.KeyValue(key=key, value=value) for key, value in message.properties.items()
    )
    if message.key is not None:
        metadata.partition_key = message.key
    if message.key_bytes is not None:
        metadata.partition_key = base64.b64encode(message.key_bytes).decode()
        metadata.partition_key_b64_encoded = True
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms
    if message.null_value:
        metadata.null_value = True


@given(messages(), NUMBERS)
def test_messages_of_a_batch(message: OutgoingMessage, sequence_id: int) -> None:
    expected = pb.SingleMessageMetadata(payload_size=len(message.payload), sequence_id=sequence_id)
    fill(expected, message)
    head = single_head(message, sequence_id)
    assert int.from_bytes(head[:4]) == len(head) - 4
    assert head[4:] == expected.SerializeToString()


@given(messages(), NUMBERS, NUMBERS, TRANSACTIONS, st.booleans(), st.binary(max_size=8))
def test_entries_of_one_message(
    message: OutgoingMessage,
    sequence_id: int,
    time_ms: int,
    transaction: tuple[int, int] | None,
    chunked: bool,
    version: bytes,
) -> None:
    metadata = pb.MessageMetadata(
        producer_name="p-ü", sequence_id=sequence_id, publish_time=time_ms
    )
    fill(metadata, message)
    metadata.replicate_to.extend(message.replicate_to)
    metadata.compression = pb.ZLIB
    metadata.uncompressed_size = len(message.payload)
    command = pb.CommandSend(producer_id=300, sequence_id=sequence_id)
    if version:
        metadata.schema_version = version
    if message.deliver_at_ms:
        metadata.deliver_at_time = message.deliver_at_ms
    if transaction is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = transaction
        command.txnid_most_bits, command.txnid_least_bits = transaction
    chunk = None
    if chunked:
        chunk = ChunkPlace("p-1", 2, 5, 1000)
        metadata.uuid = "p-1"
        metadata.chunk_id, metadata.num_chunks_from_msg = 2, 5
        metadata.total_chunk_msg_size = 1000
        command.is_chunk = True
    payload = b"compressed"
    head, tail = FrameEncoder(300, "p-ü", version).single(
        message, sequence_id, time_ms, payload, int(pb.ZLIB), transaction, chunk
    )
    assert head + tail == encode_send(command, metadata, payload)


@given(NUMBERS, NUMBERS, st.integers(1, 2000), TRANSACTIONS, st.booleans())
def test_batches(
    sequence_id: int, more: int, count: int, transaction: tuple[int, int] | None, keyed: bool
) -> None:
    highest = sequence_id + more
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=sequence_id,
        publish_time=5,
        uncompressed_size=7,
        num_messages_in_batch=count,
        highest_sequence_id=highest,
    )
    command = pb.CommandSend(
        producer_id=1, sequence_id=sequence_id, num_messages=count, highest_sequence_id=highest
    )
    first = OutgoingMessage(b"", "key", None, b"ordering") if keyed else None
    if keyed:
        metadata.partition_key, metadata.ordering_key = "key", b"ordering"
    if transaction is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = transaction
        command.txnid_most_bits, command.txnid_least_bits = transaction
    head, tail = FrameEncoder(1, "p", b"").batch(
        first, sequence_id, highest, count, 5, b"payload", 0, 7, transaction
    )
    assert head + tail == encode_send(command, metadata, b"payload")


def decoded(data: bytes, step: int) -> list[ClientEvent]:
    decoder = ClientDecoder()
    events: list[ClientEvent] = []
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        buffer = decoder.get_buffer()
        buffer[: len(piece)] = piece
        events += decoder.received(len(piece))
    return events


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), NUMBERS, NUMBERS, st.integers(0, 2), st.booleans(), st.booleans()
        ),
        max_size=8,
    ),
    st.integers(1, 200),
)
def test_deliveries(sent: list[tuple[int, int, int, int, bool, bool]], step: int) -> None:
    framers = [MessageFramer(number, partition=number - 1) for number in range(4)]
    data, expected = b"", []
    for consumer, ledger, entry, redeliveries, acked, with_epoch in sent:
        body = b"entry%d" % entry
        ack_set = (5, -1) if acked else ()
        epoch = 3 if with_epoch else None
        header = framers[consumer].header(ledger, entry, len(body), redeliveries, ack_set, epoch)
        data += header + body
        expected.append(
            Delivery(
                consumer,
                ledger,
                entry,
                consumer - 1,
                redeliveries,
                ack_set,
                3 if with_epoch else -1,
                -1,
                body,
            )
        )
    assert decoded(data, step) == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 200), NUMBERS, NUMBERS, NUMBERS, st.integers(1, 4)), max_size=6
    ),
    st.integers(1, 200),
)
def test_receipts(runs: list[tuple[int, int, int, int, int]], step: int) -> None:
    data, expected = b"", []
    for producer, sequence_id, ledger, entry, count in runs:
        ids = list(range(sequence_id, sequence_id + count))
        data += encode_receipts(producer, ids, ids, ledger, entry)
        expected += [
            Receipt(producer, number, number, ledger, entry + index)
            for index, number in enumerate(ids)
        ]
    assert decoded(data, step) == expected


def test_a_duplicate_and_other_answers() -> None:
    duplicate = pb.CommandSendReceipt(producer_id=1, sequence_id=2)
    duplicate.message_id.ledgerId = duplicate.message_id.entryId = 2**64 - 1
    success = pb.CommandSuccess(request_id=9)
    data = encode_command(CommandType.SEND_RECEIPT, duplicate)
    data += encode_command(CommandType.SUCCESS, success)
    receipt, answer = decoded(data, 10)
    assert receipt == Receipt(1, 2, 0, -1, -1)
    assert isinstance(answer, Answer)
    assert answer.message == success
