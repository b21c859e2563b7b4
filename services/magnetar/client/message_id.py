"""Message ids: where a message is stored.

Ids are ordered as in Java's client: by ledger, entry, partition, batch index. `EARLIEST` and
`LATEST` are the ends of a topic, for seeks and readers.
"""

from typing import Any, Final

import msgspec

from magnetar.client.errors import InvalidConfiguration

_NOT_AN_ID: Final = "These bytes are not a serialized message id"


class MessageId(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The position of a message in its topic."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    """The index in its batch; -1 outside of batches."""
    batch_size: int = 0
    topic: str = ""
    """The topic or partition; empty for an id that was deserialized."""
    first_chunk: "MessageId | None" = None
    """The first chunk of a chunked message, whose id is that of its last chunk."""
    entry: Any = None
    """The received entry, through which an ack reaches the other messages of its batch."""

    def _order(self) -> tuple[int, int, int, int]:
        return self.ledger_id, self.entry_id, self.partition, self.batch_index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageId) and self._order() == other._order()

    def __hash__(self) -> int:
        return hash(self._order())

    def __lt__(self, other: "MessageId") -> bool:
        return self._order() < other._order()

    def __le__(self, other: "MessageId") -> bool:
        return self._order() <= other._order()

    def __gt__(self, other: "MessageId") -> bool:
        return self._order() > other._order()

    def __ge__(self, other: "MessageId") -> bool:
        return self._order() >= other._order()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the id without the received entry, which stays in its process."""
        place = self.ledger_id, self.entry_id, self.partition, self.batch_index, self.batch_size
        return type(self), (*place, self.topic, self.first_chunk)

    def __repr__(self) -> str:
        return f"MessageId({self}, {self.topic})" if self.topic else f"MessageId({self})"

    def __str__(self) -> str:
        parts = [self.ledger_id, self.entry_id, self.partition]
        if self.batch_index >= 0:
            parts.append(self.batch_index)
        return ":".join(map(str, parts))

    def serialize(self) -> bytes:
        """Returns the id in the form that all clients of Pulsar read."""
        return bytes(self.to_wire().SerializeToString())

    @classmethod
    def deserialize(cls, data: bytes, topic: str = "") -> "MessageId":
        """Returns the id that a client serialized; raises InvalidConfiguration."""
        from google.protobuf.message import DecodeError

        from magnetar.wire._pb.PulsarApi_pb2 import MessageIdData

        try:
            wire = MessageIdData.FromString(data)
        except (DecodeError, TypeError) as error:
            raise InvalidConfiguration(_NOT_AN_ID) from error
        if not wire.IsInitialized():  # other fields would have been taken for zeros
            raise InvalidConfiguration(_NOT_AN_ID)
        return cls.from_wire(wire, topic)

    def to_wire(self) -> Any:
        """Returns the id as `MessageIdData`."""
        from magnetar.wire.message_id import message_id_data

        wire = message_id_data(self.ledger_id, self.entry_id, self.partition, self.batch_index)
        if self.batch_size:
            wire.batch_size = self.batch_size
        if self.first_chunk is not None:
            wire.first_chunk_message_id.CopyFrom(self.first_chunk.to_wire())
        return wire

    @classmethod
    def from_wire(cls, wire: Any, topic: str = "") -> "MessageId":
        """Returns the id of a `MessageIdData`."""
        from magnetar.wire.message_id import signed64

        first = wire.first_chunk_message_id if wire.HasField("first_chunk_message_id") else None
        return cls(
            signed64(wire.ledgerId),
            signed64(wire.entryId),
            wire.partition,
            wire.batch_index,
            wire.batch_size,
            topic,
            None if first is None else cls.from_wire(first, topic),
        )


EARLIEST: Final = MessageId(-1, -1)
LATEST: Final = MessageId(2**63 - 1, 2**63 - 1)
