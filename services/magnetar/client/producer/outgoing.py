"""Step 1, building: a message to send, with everything that its metadata will have."""

from collections.abc import Mapping
from typing import Any

import msgspec

from magnetar.client.errors import InvalidConfiguration

_NO_PROPERTIES: Mapping[str, str] = {}


class OutgoingMessage(msgspec.Struct):
    """A message between `send` and the wire; interceptors may replace its fields."""

    payload: bytes
    key: str | None = None
    key_bytes: bytes | None = None
    """A partition key that is not text; sent in base64."""
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    event_time_ms: int = 0
    sequence_id: int = -1
    """-1: the producer's next."""
    deliver_at_ms: int = 0
    replicate_to: tuple[str, ...] = ()
    """The clusters that get the message; empty for those of the namespace."""
    null_value: bool = False
    """The message has no value: compaction deletes its key."""
    transaction: Any = None

    @property
    def plain(self) -> bool:
        """Whether the message is only a payload."""
        return (
            self.key is None
            and self.key_bytes is None
            and self.ordering_key is None
            and not self.properties
            and not self.event_time_ms
            and not self.null_value
        )

    @property
    def batchable(self) -> bool:
        """Whether the message may share an entry: its metadata has nothing of its own entry."""
        return not self.deliver_at_ms and not self.replicate_to


def check_fields(message: OutgoingMessage) -> None:
    """Raises InvalidConfiguration for fields that exclude each other."""
    if message.key is not None and message.key_bytes is not None:
        raise InvalidConfiguration("A message has `key` or `key_bytes`, not both")
    if message.event_time_ms < 0 or message.deliver_at_ms < 0:
        raise InvalidConfiguration("Times of a message are milliseconds since 1970, from 0 on")
    if message.sequence_id < -1:
        raise InvalidConfiguration(f"{message.sequence_id} is not a sequence id")
