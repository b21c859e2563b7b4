"""What is written from templates is byte for byte what protobuf writes."""

import random
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire import frames

from magnetar.core.errors import ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import FIELD_OF_TYPE, CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import (
    PING_FRAME,
    PONG_FRAME,
    MessageFramer,
    encode_ack_response,
    encode_command,
    encode_error,
    encode_receipts,
    encode_send,
    encode_send_error,
    encode_success,
    encode_transaction_answer,
)
from magnetar.wire.events import Command, SendRun
from magnetar.wire.message_id import unsigned64

# Where varints change their length, and where the templates' tables do.
EDGES = (-1, 0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2**21 - 1, 2**21, 2**35, 2**62)

ids = st.sampled_from(EDGES) | st.integers(-1, 2**62)


def receipts_by_protobuf(
    producer_id: int, sequence_ids: list[int], highest_ids: list[int], ledger_id: int, entry_id: int
) -> bytes:
    parts = []
    for i, (sequence_id, highest_id) in enumerate(zip(sequence_ids, highest_ids, strict=True)):
        receipt = pb.CommandSendReceipt(
            producer_id=producer_id,
            sequence_id=unsigned64(sequence_id),
            highest_sequence_id=unsigned64(highest_id),
            message_id=pb.MessageIdData(
                ledgerId=unsigned64(ledger_id), entryId=unsigned64(entry_id + i)
            ),
        )
        base = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=receipt)
        parts.append(frames.frame(base.SerializeToString()))
    return b"".join(parts)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (CommandType.NEW_TXN_RESPONSE, pb.CommandNewTxnResponse),
        (CommandType.ADD_PARTITION_TO_TXN_RESPONSE, pb.CommandAddPartitionToTxnResponse),
        (CommandType.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, pb.CommandAddSubscriptionToTxnResponse),
        (CommandType.END_TXN_RESPONSE, pb.CommandEndTxnResponse),
    ],
)
def test_answers_of_transactions_at_every_edge(kind: int, answer: Any) -> None:
    for request_id, most, least in product((0, *EDGES), EDGES, EDGES):
        message = answer(
            request_id=unsigned64(request_id),
            txnid_most_bits=unsigned64(most),
            txnid_least_bits=unsigned64(least),
        )
        got = encode_transaction_answer(kind, request_id, (most, least))
        assert got == encode_command(kind, message)


def test_receipts_at_every_edge() -> None:
    for first, highest, entry_id in product(EDGES, EDGES, EDGES):
        run = ([first, first + 1, first + 2], [highest, highest + 1, highest + 2])
        got = encode_receipts(300, *run, 5, entry_id)
        assert got == receipts_by_protobuf(300, *run, 5, entry_id)


@settings(max_examples=200)
@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.tuples(ids, ids), min_size=1, max_size=40),
    st.integers(-1, 2**63 - 1),
    ids,
)
def test_receipts(
    producer_id: int, sequences: list[tuple[int, int]], ledger_id: int, entry_id: int
) -> None:
    run = ([s for s, _ in sequences], [h for _, h in sequences])
    got = encode_receipts(producer_id, *run, ledger_id, entry_id)
    assert got == receipts_by_protobuf(producer_id, *run, ledger_id, entry_id)


def header_by_protobuf(message: pb.CommandMessage, entry_bytes: int) -> bytes:
    base = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message)
    return frames.frame(base.SerializeToString(), bytes(entry_bytes))[: -entry_bytes or None]


@settings(max_examples=200)
@given(
    st.integers(0, 2**64 - 1),
    st.sampled_from([-1, -1, 0, 200]),
    st.lists(
        st.tuples(
            ids,
            ids,
            st.integers(0, 5_000),
            st.sampled_from([0, 0, 0, 1, 200]),
            st.sampled_from([[], [], [-1], [5, -(2**63)]]),
            st.sampled_from([None, None, 0, 1, 300]),
            st.sampled_from([-1, -1, 0, 7]),
        ),
        max_size=8,
    ),
)
def test_message_headers(
    consumer_id: int, partition: int, deliveries: list[tuple[int, ...]]
) -> None:
    framer = MessageFramer(consumer_id, partition)
    for ledger_id, entry_id, size, redelivered, ack_set, epoch, index in deliveries:
        got = framer.header(
            ledger_id, entry_id, size, redelivered, ack_set, epoch, index  # type: ignore[arg-type]
        )  # fmt: skip
        place = pb.MessageIdData(ledgerId=unsigned64(ledger_id), entryId=unsigned64(entry_id))
        if partition >= 0:
            place.partition = partition
        if index >= 0:
            place.batch_index = index
        message = pb.CommandMessage(consumer_id=consumer_id, message_id=place, ack_set=ack_set)  # type: ignore[arg-type]
        if redelivered:
            message.redelivery_count = redelivered
        if epoch is not None:
            message.consumer_epoch = epoch
        assert got == header_by_protobuf(message, size)


def test_headers_do_not_depend_on_those_before() -> None:
    framer = MessageFramer(3)
    for ledger_id, entry_id, epoch in product((5, 6), EDGES, (None, 1)):
        fresh = MessageFramer(3).header(ledger_id, entry_id, 10, consumer_epoch=epoch)
        assert framer.header(ledger_id, entry_id, 10, consumer_epoch=epoch) == fresh


@pytest.mark.parametrize("number", sorted(FIELD_OF_TYPE))
def test_any_command_by_number_and_by_name(number: int) -> None:
    rng = random.Random(number)
    for _ in range(5):
        base = frames.any_command(rng, number)
        message = getattr(base, FIELD_OF_TYPE[number])
        want = frames.frame(base.SerializeToString())
        assert encode_command(number, message) == want
        assert encode_command(CommandType.Name(number), message) == want  # type: ignore[arg-type]


def only_command(frame: bytes) -> Command:
    (event,) = FrameDecoder().feed(frame)
    assert isinstance(event, Command)
    return event


def test_conveniences() -> None:
    assert only_command(PING_FRAME).type == CommandType.PING
    assert only_command(PONG_FRAME).type == CommandType.PONG
    assert only_command(encode_success(9)).message == pb.CommandSuccess(request_id=9)
    assert only_command(
        encode_error(-1, ServerError.AUTHENTICATION_ERROR, "no")
    ).message == pb.CommandError(request_id=2**64 - 1, error=pb.AuthenticationError, message="no")
    assert only_command(
        encode_send_error(3, 4, ServerError.CHECKSUM_ERROR, "bad")
    ).message == pb.CommandSendError(
        producer_id=3, sequence_id=4, error=pb.ChecksumError, message="bad"
    )
    assert only_command(encode_ack_response(3, 4)).message == pb.CommandAckResponse(
        consumer_id=3, request_id=4
    )
    refused = encode_ack_response(3, 4, ServerError.NOT_ALLOWED_ERROR, "no")
    assert only_command(refused).message == pb.CommandAckResponse(
        consumer_id=3, request_id=4, error=pb.NotAllowedError, message="no"
    )


@pytest.mark.parametrize("checksum", [True, False])
def test_send_is_read_back(checksum: bool) -> None:
    command = pb.CommandSend(producer_id=3, sequence_id=4, num_messages=2)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=4, publish_time=5)
    (run,) = FrameDecoder().feed(encode_send(command, metadata, b"data", checksum=checksum))
    assert isinstance(run, SendRun)
    assert (run.sequence_ids, run.message_counts) == ([4], [2])
    assert run.entries[0].endswith(metadata.SerializeToString() + b"data")
    assert run.entries[0].startswith(b"\x0e\x01") == checksum
