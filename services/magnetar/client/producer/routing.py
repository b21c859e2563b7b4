"""Step 3, routing: the partition of a message.

A key decides the partition, by a hash that other languages share; messages without a key follow
the routing mode. Round robin stays on a partition until its batch is sent, so that batches fill
up, and leaves out blocked partitions, so that one slow broker does not stop the others.
"""

from collections.abc import Sequence
from random import Random
from typing import Protocol

from magnetar.client.errors import InvalidConfiguration
from magnetar.client.options import CustomRouting, Hashing, Routing, SinglePartition
from magnetar.client.producer.outgoing import OutgoingMessage
from magnetar.core.hashing import boost_hash, java_string_hash, murmur3_32


class Lane(Protocol):
    """What routing asks of a partition."""

    @property
    def blocked(self) -> bool:
        """Whether messages should rather go elsewhere."""

    @property
    def batch_is_open(self) -> bool:
        """Whether a batch waits for more messages."""


def key_hash(hashing: Hashing, message: OutgoingMessage) -> int:
    """Returns the hash of the partition key, 0 to 2**31 - 1."""
    import base64

    if message.key_bytes is not None:
        text = base64.b64encode(message.key_bytes).decode()
    else:
        text = message.key or ""
    if hashing == Hashing.JAVA_STRING:
        return java_string_hash(text)
    return murmur3_32(text.encode()) if hashing == Hashing.MURMUR3 else boost_hash(text.encode())


class Router:
    """Chooses partitions for one producer."""

    def __init__(
        self, routing: Routing, hashing: Hashing, *, sticky: bool, partitions: int, random: Random
    ) -> None:
        self._routing = routing
        self._hashing = hashing
        self._sticky = sticky
        self._at = random.randrange(partitions)
        self._single = self._at
        if isinstance(routing, SinglePartition) and routing.partition is not None:
            self._single = routing.partition
            if not 0 <= self._single < partitions:
                raise InvalidConfiguration(
                    f"routing: there is no partition {self._single} of {partitions}"
                )

    @property
    def first(self) -> int:
        """A partition that messages without a key may go to."""
        return self._single

    def choose(self, message: OutgoingMessage, lanes: Sequence[Lane]) -> int:
        """Returns the index of the message's partition."""
        count = len(lanes)
        routing = self._routing
        if isinstance(routing, CustomRouting):
            index = routing.choose(message, count)
            if not 0 <= index < count:
                raise InvalidConfiguration(f"The routing function returned {index} of {count}")
            return index
        if message.key is not None or message.key_bytes is not None:
            return key_hash(self._hashing, message) % count
        if isinstance(routing, SinglePartition):
            return self._single
        return self._in_turn(lanes)

    def _in_turn(self, lanes: Sequence[Lane]) -> int:
        at = self._at
        if self._sticky and lanes[at].batch_is_open and not lanes[at].blocked:
            return at
        count = len(lanes)
        for step in range(1, count + 1):
            candidate = (at + step) % count
            if not lanes[candidate].blocked:
                self._at = candidate
                return candidate
        if self._sticky and lanes[at].batch_is_open:
            return at  # all are blocked: batches fill up as if none was
        self._at = (at + 1) % count
        return self._at
