"""Message ids on the wire: signed and unsigned numbers, and batch ack sets.

Ids are unsigned 64-bit numbers on the wire and signed everywhere else: -1 is sent as 2**64 - 1. An
ack set is a bit set of batch indexes in which 1 means *not yet acknowledged*. On the wire it is a
list of signed 64-bit words, lowest indexes first (Java's `BitSet.toLongArray`); here it is one int.
"""

from collections.abc import Sequence
from typing import Final

from magnetar.wire._pb.PulsarApi_pb2 import MessageIdData

_MASK64: Final = 2**64 - 1
_SIGN64: Final = 2**63
ACK_SET_WORDS_MAX: Final = 1024
"""Words read from a peer: enough for batches of 65,536 messages, far beyond those of clients."""


def signed64(value: int) -> int:
    """Converts an unsigned 64-bit number to the signed number with the same bits."""
    return value - 2**64 if value >= _SIGN64 else value


def unsigned64(value: int) -> int:
    """Converts a signed 64-bit number to the unsigned number with the same bits."""
    return value & _MASK64


def ack_set_bits(words: Sequence[int]) -> int:
    """Returns the bit set of wire words; words beyond `ACK_SET_WORDS_MAX` are ignored."""
    bits = 0
    for index, word in enumerate(words[:ACK_SET_WORDS_MAX]):
        bits |= (word & _MASK64) << (index << 6)
    return bits


def ack_set_words(bits: int) -> list[int]:
    """Returns the wire words of a bit set, without zero words at the end."""
    words = []
    while bits:
        words.append(signed64(bits & _MASK64))
        bits >>= 64
    return words


def full_ack_set(message_count: int) -> int:
    """Returns the ack set of a batch without acknowledged messages."""
    return (1 << message_count) - 1


def message_id_data(
    ledger_id: int, entry_id: int, partition: int = -1, batch_index: int = -1
) -> MessageIdData:
    """Builds a wire message id; omits the partition and the batch index if they are -1."""
    message_id = MessageIdData(ledgerId=ledger_id & _MASK64, entryId=entry_id & _MASK64)
    if partition != -1:
        message_id.partition = partition
    if batch_index != -1:
        message_id.batch_index = batch_index
    return message_id
