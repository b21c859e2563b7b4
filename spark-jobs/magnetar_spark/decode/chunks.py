"""Joins chunked messages, exactly once, at their last chunk.

A chunked message belongs to the range that has its last chunk. If a range meets chunk k > 0 of a
message without its first one, it reads back for the earlier chunks; a message whose last chunk is
after the range belongs to another range. If the first chunk cannot be found (it was trimmed, or is
more than LOOK_BACK_BYTES_MAX away), the message is incomplete and left out, as consumers do.

Duplicate chunks (of a producer that sent again) are dropped; a duplicate first chunk starts again.
Memory: the chunks of a range, and the entries read back for them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.api import StoredEntry
from magnetar.core.log import get_logger
from magnetar.wire._pb.PulsarApi_pb2 import MessageIdData, MessageMetadata
from magnetar.wire.entry import split_entry

LOOK_BACK_BYTES_MAX: Final = 256 << 20
LOOK_BACK_ENTRIES: Final = 64
"""Read at once to look for earlier chunks."""

ReadBack = Callable[[int], Iterator[tuple[int, list[StoredEntry]]]]
"""Groups of entries before the range with their ledger's id, the newest group first."""

log = get_logger("magnetar.spark.chunks")


@dataclass(slots=True)
class _Message:
    """The chunks of one message from the first on, without a gap."""

    first: MessageIdData
    parts: list[bytes] = field(default_factory=list)


class Chunks:
    """The chunked messages of one range. Calls `read_back` at most once per message."""

    def __init__(self, read_back: ReadBack) -> None:
        self._read_back = read_back
        self._open: dict[str, _Message] = {}
        self._known: set[str] = set()

    def add(
        self, ledger_id: int, entry_id: int, metadata: MessageMetadata, payload: bytes
    ) -> tuple[bytes, MessageIdData] | None:
        """The whole payload and the first chunk's id if this is the last chunk; else None."""
        uuid, number = metadata.uuid, metadata.chunk_id
        if number == 0:
            self._known.add(uuid)
            self._open[uuid] = _Message(_id_of(ledger_id, entry_id))
        elif uuid not in self._known:
            self._known.add(uuid)
            message = self._find(uuid, number)
            if message is None:
                log.warning(
                    "a chunked message without its beginning was left out",
                    uuid=uuid,
                    entry=f"{ledger_id}:{entry_id}",
                )
            else:
                self._open[uuid] = message
        message = self._open.get(uuid)
        if message is None or number != len(message.parts):
            return None  # incomplete, or a duplicate chunk
        message.parts.append(payload)
        if number + 1 < metadata.num_chunks_from_msg:
            return None
        del self._open[uuid]
        return b"".join(message.parts), message.first

    def _find(self, uuid: str, number: int) -> _Message | None:
        """The message with chunks 0 to `number` - 1, from before the range."""
        parts: dict[int, bytes] = {}
        size = 0
        for ledger_id, group in self._read_back(LOOK_BACK_ENTRIES):
            for entry_id, data in reversed(group):
                size += len(data)
                start = split_entry(data)
                metadata = MessageMetadata.FromString(
                    data[start.metadata_start : start.payload_start]
                )
                if metadata.uuid != uuid or metadata.num_chunks_from_msg <= 1:
                    continue
                parts.setdefault(metadata.chunk_id, data[start.payload_start :])
                if metadata.chunk_id == 0:
                    if any(index not in parts for index in range(number)):
                        return None  # a chunk was never sent: incomplete for good
                    first = _id_of(ledger_id, entry_id)
                    return _Message(first, [parts[index] for index in range(number)])
            if size > LOOK_BACK_BYTES_MAX:
                return None
        return None


def _id_of(ledger_id: int, entry_id: int) -> MessageIdData:
    return MessageIdData(ledgerId=ledger_id, entryId=entry_id)
