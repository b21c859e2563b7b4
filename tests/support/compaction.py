"""What compaction is to leave of a log, computed apart from the job: in memory, message by message.

Goes by the messages alone (`magnetar.wire.batch`), so it shares with the job neither the way keys
are found nor how entries are rewritten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from magnetar.core.ids import Position
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.batch import messages_of

PlacedMessage = tuple[Position, int, str, bytes]
"""Position, place in the batch (-1: none), key, value."""


@dataclass(frozen=True)
class LogEntry:
    """An entry as it is stored."""

    position: Position
    data: bytes


def messages(entries: Iterable[LogEntry]) -> list[tuple[Position, int, str | None, bytes | None]]:
    """Every message of a log, those that were compacted out left out; None: no key, no value."""
    found: list[tuple[Position, int, str | None, bytes | None]] = []
    for position, data in ((entry.position, entry.data) for entry in entries):
        metadata, inside = messages_of(data)
        for index, (single, payload) in enumerate(inside):
            facts: MessageMetadata = metadata if single is None else single  # type: ignore[assignment]
            if single is not None and single.compacted_out:
                continue
            key = facts.partition_key if facts.HasField("partition_key") else None
            value = None if facts.null_value or not payload else payload
            found.append((position, -1 if single is None else index, key, value))
    return found


def compacted(entries: Sequence[LogEntry]) -> list[PlacedMessage]:
    """The latest value of every key that has one, in the order of the log."""
    latest: dict[str, PlacedMessage] = {}
    for position, index, key, value in messages(entries):
        if key is None:
            continue
        if value is None:
            latest.pop(key, None)
        else:
            latest[key] = (position, index, key, value)
    return sorted(latest.values())
