"""Bytes of the official clients and of Pulsar itself, and what we make of them.

`*_client_*.bin` is all that a client sent on its connections, captured by a server in between: each
producer of the Python client uses another compression, batched and not. The `.txt` beside each says
what was in it. `pulsar_4_2_4.txt` has frames that Pulsar's own `Commands` built, to be equalled.
"""

import hashlib
from pathlib import Path

import pytest
from google.protobuf import text_format

from magnetar.core.errors import ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import messages_of
from magnetar.wire.commands import CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import encode_command, encode_error, encode_receipts
from magnetar.wire.events import AckOne, Command, Event, Flow, SendRun, UncheckedSends

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"
CLIENTS = ["python_client_3_13_0", "java_client_4_0_8"]
PULSAR = dict(line.split() for line in (GOLDEN / "pulsar_4_2_4.txt").read_text().splitlines())


def described(events: list[Event]) -> list[str]:
    """One line for each command and message."""
    lines = []
    for event in events:
        if isinstance(event, SendRun | UncheckedSends):  # the latter with a delivery time
            run = event if isinstance(event, SendRun) else event.run
            for numbers in zip(
                run.sequence_ids,
                run.highest_sequence_ids,
                run.message_counts,
                run.entries,
                strict=True,
            ):
                lines += _send(run.producer_id, *numbers)
        elif isinstance(event, Command):
            name = CommandType.Name(event.type)  # type: ignore[arg-type]
            lines.append(f"{name} {one_line(event.message)}".rstrip())
        else:
            assert isinstance(event, (AckOne, Flow))
            lines.append(repr(event))
    return lines


def _send(
    producer_id: int, sequence_id: int, highest_id: int, count: int, entry: bytes
) -> list[str]:
    lines = [f"SEND {producer_id} {sequence_id}-{highest_id} x{count}"]
    metadata, messages = messages_of(entry)
    lines.append(f"  metadata {one_line(metadata)}")
    for message in messages:
        about = one_line(message.metadata) if message.metadata is not None else ""
        digest = hashlib.sha256(message.payload).hexdigest()[:16]
        lines.append(f"  message {about} {message.payload[:20]!r} {digest}")
    return lines


def one_line(message: object) -> str:
    return text_format.MessageToString(message, as_one_line=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_official_clients(client: str, piece: int) -> None:
    stream = (GOLDEN / f"{client}.bin").read_bytes()
    decoder = FrameDecoder()
    events: list[Event] = []
    for start in range(0, len(stream), piece):
        events += decoder.feed(stream[start : start + piece])
    assert decoder.held_bytes == 0
    lines = [line for event in events for line in described([event])]
    assert lines == (GOLDEN / f"{client}.txt").read_text().splitlines()


def test_receipt_as_pulsar_writes_it() -> None:
    assert encode_receipts(3, [1_000_000], [-1], 123_456, 77).hex() == PULSAR["receipt"]


def test_error_as_pulsar_writes_it() -> None:
    assert encode_error(-1, ServerError.AUTHENTICATION_ERROR, "no").hex() == PULSAR["error"]


def test_flow_as_pulsar_writes_it() -> None:
    flow = pb.CommandFlow(consumer_id=3, messagePermits=1000)
    assert encode_command("FLOW", flow).hex() == PULSAR["flow"]
    assert FrameDecoder().feed(bytes.fromhex(PULSAR["flow"])) == [Flow(3, 1000)]


def test_acks_as_pulsar_writes_them() -> None:
    assert FrameDecoder().feed(bytes.fromhex(PULSAR["ack"])) == [AckOne(3, 12, 34)]
    ack = pb.CommandAck(
        consumer_id=3,
        ack_type=pb.CommandAck.Individual,
        message_id=[pb.MessageIdData(ledgerId=12, entryId=34)],
        request_id=5,
    )
    assert encode_command("ACK", ack).hex() == PULSAR["ack-with-request"]
    (event,) = FrameDecoder().feed(bytes.fromhex(PULSAR["ack-with-request"]))
    assert event == Command(CommandType.ACK, ack)
