"""Message ids with the official client's methods."""

from typing import ClassVar, Union

from magnetar.client import errors
from magnetar.client import message_id as own

AnyMessageId = Union["MessageId", own.MessageId]


class MessageId:
    """Where a message is stored."""

    earliest: ClassVar["MessageId"]
    """Before the first message of a topic."""
    latest: ClassVar["MessageId"]
    """After the last message of a topic."""

    __slots__ = ("__dict__", "__weakref__", "_msg_id")

    def __init__(
        self, partition: int = -1, ledger_id: int = -1, entry_id: int = -1, batch_index: int = -1
    ) -> None:
        for name, number in (
            ("partition", partition),
            ("ledger_id", ledger_id),
            ("entry_id", entry_id),
            ("batch_index", batch_index),
        ):
            if not isinstance(number, int):
                raise TypeError(f"Argument {name} must be of type int, not {type(number).__name__}")
        self._msg_id = own.MessageId(ledger_id, entry_id, partition, batch_index)

    def ledger_id(self) -> int:
        """The ledger of the entry."""
        return self._msg_id.ledger_id

    def entry_id(self) -> int:
        """The number of the entry in its ledger."""
        return self._msg_id.entry_id

    def batch_index(self) -> int:
        """The index in its batch; -1 outside of batches."""
        return self._msg_id.batch_index

    def partition(self) -> int:
        """The partition; -1 for a topic without."""
        return self._msg_id.partition

    def serialize(self) -> bytes:
        """Returns the id in the form that all clients of Pulsar read."""
        return self._msg_id.serialize()

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> "MessageId":
        """Returns the id that a client serialized; a consumer of several topics needs `topic`."""
        try:
            return MessageId.wrap(own.MessageId.deserialize(message_id_bytes, topic or ""))
        except errors.InvalidConfiguration as error:
            raise ValueError(str(error)) from error

    @classmethod
    def wrap(cls, msg_id: AnyMessageId) -> "MessageId":
        """Returns the id in this class."""
        wrapped = cls.__new__(cls)
        wrapped._msg_id = own_id(msg_id)
        return wrapped

    def __str__(self) -> str:
        position = self._msg_id
        numbers = (position.ledger_id, position.entry_id, position.partition, position.batch_index)
        return f"({','.join(map(str, numbers))})"

    def __repr__(self) -> str:
        return f"MessageId{self}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageId) and self._msg_id == other._msg_id

    def __hash__(self) -> int:
        return hash(self._msg_id)

    def __lt__(self, other: "MessageId") -> bool:
        return self._msg_id < other._msg_id

    def __le__(self, other: "MessageId") -> bool:
        return self._msg_id <= other._msg_id

    def __gt__(self, other: "MessageId") -> bool:
        return self._msg_id > other._msg_id

    def __ge__(self, other: "MessageId") -> bool:
        return self._msg_id >= other._msg_id


def own_id(message_id: AnyMessageId) -> own.MessageId:
    """Returns the id of `magnetar.client`."""
    return message_id._msg_id if isinstance(message_id, MessageId) else message_id


MessageId.earliest = MessageId.wrap(own.EARLIEST)
MessageId.latest = MessageId.wrap(own.LATEST)
