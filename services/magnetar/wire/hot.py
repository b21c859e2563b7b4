"""Hand-written scanners of the small hot commands, at a tenth of the cost of parsing.

A scanner accepts exactly one shape: the fields that official clients write, tags of one byte, and
varints of at most nine bytes. For anything else it returns None, and the caller parses the command
with protobuf, so that the two never disagree.
"""

from typing import Final

from magnetar.wire._pb.PulsarApi_pb2 import CommandAck, CommandSend
from magnetar.wire.events import AckOne, Flow
from magnetar.wire.framing import CHECKSUM_HEADER_BYTES, CHECKSUM_MAGIC, METADATA_SIZE_BYTES
from magnetar.wire.message_id import signed64

_CHECKSUM_MAGIC: Final = CHECKSUM_MAGIC.to_bytes(2)
SEQUENCE_ID_MAX: Final = 2**63 - 1
MESSAGE_COUNT_MAX: Final = 2**31 - 1
DELIVER_AT_TAG: Final = b"\x98\x01"
"""The tag of `MessageMetadata.deliver_at_time` (field 19, a varint)."""
COMMAND_BYTES_MAX: Final = 131
"""The largest `BaseCommand` whose field has a one-byte length."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the varint at `at` and its end; the value is negative if it exceeds nine bytes."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 63, 7):
        byte = data[at]
        at += 1
        if byte < 0x80:
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
    return -1, at


def scan_ack(data: bytes) -> AckOne | None:
    """Scans `type=ACK ack{consumer_id, ack_type=Individual, message_id{ledgerId, entryId}}`."""
    size = len(data)
    if not 5 < size <= COMMAND_BYTES_MAX or data[2:5] != bytes((0x52, size - 4, 0x08)):
        return None
    try:
        consumer_id, at = _varint(data, 5)
        if data[at : at + 3] != b"\x10\x00\x1a" or data[at + 3] != size - at - 4:
            return None
        if data[at + 4] != 0x08:
            return None
        ledger_id, at = _varint(data, at + 5)
        if data[at] != 0x10:
            return None
        entry_id, at = _varint(data, at + 1)
    except IndexError:
        return None
    if at != size or consumer_id < 0 or ledger_id < 0 or entry_id < 0:
        return None
    return AckOne(consumer_id, ledger_id, entry_id)


def scan_flow(data: bytes) -> Flow | None:
    """Scans `type=FLOW flow{consumer_id, messagePermits}`."""
    size = len(data)
    if not 5 < size <= COMMAND_BYTES_MAX or data[2:5] != bytes((0x5A, size - 4, 0x08)):
        return None
    try:
        consumer_id, at = _varint(data, 5)
        if data[at] != 0x10:
            return None
        permits, at = _varint(data, at + 1)
    except IndexError:
        return None
    if at != size or consumer_id < 0 or not 0 <= permits < 2**32:
        return None
    return Flow(consumer_id, permits)


def plain_send(command: CommandSend) -> tuple[int, int, int, int] | None:
    """Returns (producer id, sequence id, highest sequence id, message count) of a plain SEND."""
    has = command.HasField
    if has("txnid_least_bits") or has("txnid_most_bits") or has("marker") or has("message_id"):
        return None
    sequence_id = command.sequence_id
    highest_sequence_id = command.highest_sequence_id
    if max(sequence_id, highest_sequence_id) > SEQUENCE_ID_MAX or command.num_messages < 1:
        return None
    return command.producer_id, sequence_id, highest_sequence_id, command.num_messages


def txn_send(command: CommandSend) -> tuple[int, int] | None:
    """Returns the transaction of a SEND that is plain but for it, else None."""
    has = command.HasField
    if not (has("txnid_least_bits") or has("txnid_most_bits")) or has("marker"):
        return None
    if has("message_id") or command.num_messages < 1:
        return None
    if max(command.sequence_id, command.highest_sequence_id) > SEQUENCE_ID_MAX:
        return None
    return command.txnid_most_bits, command.txnid_least_bits


def may_be_delayed(entry: bytes) -> bool:
    """Whether an entry's metadata may have a delivery time: the bytes of its tag occur in it.

    A false positive costs one parse; nearly all entries lack the bytes and are not parsed.
    """
    size_at = CHECKSUM_HEADER_BYTES if entry[:2] == _CHECKSUM_MAGIC else 0
    start = size_at + METADATA_SIZE_BYTES
    size = int.from_bytes(entry[size_at:start])
    return entry.find(DELIVER_AT_TAG, start, start + size) > 0


def plain_ack(command: CommandAck) -> AckOne | None:
    """Returns the compact form of an ACK, or None if the ACK has more than that form holds."""
    if command.ack_type != CommandAck.Individual or len(command.message_id) != 1:
        return None
    has = command.HasField
    if command.properties or has("validation_error") or has("request_id"):
        return None
    if has("txnid_least_bits") or has("txnid_most_bits"):
        return None
    message_id = command.message_id[0]
    if message_id.ack_set or message_id.HasField("first_chunk_message_id"):
        return None
    return AckOne(command.consumer_id, signed64(message_id.ledgerId), signed64(message_id.entryId))
