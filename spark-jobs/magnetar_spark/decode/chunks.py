"""Chunked messages, joined exactly once, at their last chunk.

A chunked message belongs to the range that has its last chunk. A range that meets chunk k > 0 of a
message whose first it has not seen reads back for the ones before; a message whose last chunk lies
behind the range is another range's. Where the first chunk cannot be found (trimmed away, or further
back than LOOK_BACK_BYTES_MAX), the message is incomplete and left out, as consumers do.

Chunks that come again (a producer that sent anew) are taken once; a first chunk that comes again
begins anew. Memory: the chunks of a range, and what is read back for them.
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
"""Read at once when a range looks for the chunks before it."""

ReadBack = Callable[[int], Iterator[tuple[int, list[StoredEntry]]]]
"""Groups of entries before the range with their ledger's id, the newest group first."""

log = get_logger("magnetar.spark.chunks")


@dataclass(slots=True)
class _Message:
    """The chunks of one message, from the first on without a gap."""

    first: MessageIdData
    parts: list[bytes] = field(default_factory=list)


class Chunks:
    """The chunked messages of one range. `read_back` is asked at most once for each message."""

    def __init__(self, read_back: ReadBack) -> None:
        self._read_back = read_back
        self._open: dict[str, _Message] = {}
        self._known: set[str] = set()

    def add(
        self, ledger_id: int, entry_id: int, metadata: MessageMetadata, payload: bytes
    ) -> tuple[bytes, MessageIdData] | None:
        """The whole payload and the first chunk's id, once the last chunk is here; else None."""
        uuid, number = metadata.uuid, metadata.chunk_id
        if number == 0:
            self._known.add(uuid)
            self._open[uuid] = _Message(_id_of(ledger_id, entry_id))
        elif uuid not in self._known:
            self._known.add(uuid)
            found = self._find(uuid, number)
            if found is None:
                log.warning(
                    "chunked message without its beginning left out",
                    uuid=uuid,
                    entry=f"{ledger_id}:{entry_id}",
                )
            else:
                self._open[uuid] = found
        message = self._open.get(uuid)
        if message is None or number != len(message.parts):
            return None  # incomplete, or a chunk that came again
        message.parts.append(payload)
        if number + 1 < metadata.num_chunks_from_msg:
            return None
        del self._open[uuid]
        return b"".join(message.parts), message.first

    def _find(self, uuid: str, number: int) -> _Message | None:
        """Chunks 0 to `number` - 1, from before the range."""
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
                    if any(each not in parts for each in range(number)):
                        return None  # one was never sent: incomplete for good
                    first = _id_of(ledger_id, entry_id)
                    return _Message(first, [parts[each] for each in range(number)])
            if size > LOOK_BACK_BYTES_MAX:
                return None
        return None


def _id_of(ledger_id: int, entry_id: int) -> MessageIdData:
    return MessageIdData(ledgerId=ledger_id, entryId=entry_id)
