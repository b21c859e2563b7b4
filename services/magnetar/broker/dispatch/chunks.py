"""Shared: the chunks of one message go to one consumer, in order.

The consumer that gets a chunk of a message not seen yet owns the message until its last chunk. Its
other chunks wait for that consumer where it has no room (they are *parked*), without holding up
anybody else's entries. A chunk whose first chunk is long acknowledged is a message not seen yet:
it is delivered like any other entry, so that a remainder never stalls the subscription.
When the owner leaves, what is parked for it goes back to be replayed, and the next consumer that
gets a chunk becomes the owner.

Bound: `CHUNKED_MESSAGES_MAX` messages in flight are remembered; beyond that the oldest is forgotten
and its rest may go to another consumer, who will ask for nothing but discard it.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from magnetar.broker.dispatch.replay import PositionPair, ReplaySet
from magnetar.broker.subscription.consumer import Consumer

CHUNKED_MESSAGES_MAX: Final = 10_000


class Chunk(NamedTuple):
    """Which part of which message an entry is."""

    uuid: str
    last: bool


class ChunkOwners:
    """See the module."""

    def __init__(self) -> None:
        self._owners: dict[str, Consumer] = {}
        self._parked: dict[Consumer, ReplaySet] = {}
        self._parked_for: dict[PositionPair, Consumer] = {}

    def __len__(self) -> int:
        """Parked positions."""
        return len(self._parked_for)

    def __contains__(self, position: PositionPair) -> bool:
        return position in self._parked_for

    def __iter__(self) -> Iterator[PositionPair]:
        return iter(self._parked_for)

    def owner(self, chunk: Chunk, candidate: Consumer) -> Consumer:
        """Who gets this chunk: `candidate`, unless another has got the chunks before it."""
        owners = self._owners
        owner = owners.setdefault(chunk.uuid, candidate)
        if chunk.last:
            del owners[chunk.uuid]
        elif len(owners) > CHUNKED_MESSAGES_MAX:
            del owners[next(iter(owners))]
        return owner

    def must_park(self, owner: Consumer) -> bool:
        """Whether a chunk has to wait: its owner has no room, or earlier ones wait for it."""
        return not owner.available or owner in self._parked

    def park(self, position: PositionPair, owner: Consumer) -> None:
        self._parked.setdefault(owner, ReplaySet()).add(position)
        self._parked_for[position] = owner

    def first(self, owner: Consumer) -> PositionPair | None:
        """The oldest position parked for a consumer; it stays parked."""
        parked = self._parked.get(owner)
        return None if parked is None else parked.first()

    def unpark(self, position: PositionPair) -> None:
        """The position is handed over, or acknowledged."""
        owner = self._parked_for.pop(position, None)
        if owner is not None:
            parked = self._parked[owner]
            parked.discard(position)
            if not parked:
                del self._parked[owner]

    def unpark_up_to(self, position: PositionPair) -> None:
        for parked in [each for each in self._parked_for if each <= position]:
            self.unpark(parked)

    def left(self, owner: Consumer) -> list[PositionPair]:
        """The consumer is gone; what was parked for it."""
        self._owners = {
            uuid: consumer for uuid, consumer in self._owners.items() if consumer is not owner
        }
        parked = list(self._parked.pop(owner, ()))
        for position in parked:
            del self._parked_for[position]
        return parked

    def clear(self) -> None:
        self._owners.clear()
        self._parked.clear()
        self._parked_for.clear()
