"""Keeps the chunks of one message together on a Shared subscription: one consumer, in order.

The consumer that gets the first chunk seen of a message owns the message until its last chunk. If
the owner has no room, its further chunks are *parked* and delay no other consumer's entries. A
chunk whose first chunk was acknowledged long ago starts an unknown message: the dispatcher delivers
it like any other entry, so that a remainder never stalls the subscription. When the owner leaves,
its parked chunks are replayed, and the next consumer that gets a chunk becomes the owner.

Bound: the owners of `CHUNKED_MESSAGES_MAX` messages in flight are remembered. Beyond that the
oldest is forgotten, and the rest of its message may go to another consumer, which discards it.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from magnetar.broker.dispatch.replay import PositionPair, ReplaySet
from magnetar.broker.subscription.consumer import Consumer

CHUNKED_MESSAGES_MAX: Final = 10_000


class Chunk(NamedTuple):
    """The message that an entry is a chunk of, and whether it is the last chunk."""

    uuid: str
    last: bool


class ChunkOwners:
    """The owner of each chunked message in flight, and the positions parked for it."""

    def __init__(self) -> None:
        self._owners: dict[str, Consumer] = {}
        self._parked: dict[Consumer, ReplaySet] = {}
        self._parked_for: dict[PositionPair, Consumer] = {}

    def __len__(self) -> int:
        """The number of parked positions."""
        return len(self._parked_for)

    def __contains__(self, position: PositionPair) -> bool:
        return position in self._parked_for

    def __iter__(self) -> Iterator[PositionPair]:
        return iter(self._parked_for)

    def owner(self, chunk: Chunk, candidate: Consumer) -> Consumer:
        """Returns the consumer of a chunk: `candidate`, unless another got the chunks before."""
        owners = self._owners
        owner = owners.setdefault(chunk.uuid, candidate)
        if chunk.last:
            del owners[chunk.uuid]
        elif len(owners) > CHUNKED_MESSAGES_MAX:
            del owners[next(iter(owners))]
        return owner

    def must_park(self, owner: Consumer) -> bool:
        """Whether a chunk must wait: its owner has no room, or earlier chunks wait for it."""
        return not owner.available or owner in self._parked

    def park(self, position: PositionPair, owner: Consumer) -> None:
        """Parks a position until its owner has room."""
        self._parked.setdefault(owner, ReplaySet()).add(position)
        self._parked_for[position] = owner

    def first(self, owner: Consumer) -> PositionPair | None:
        """Returns the oldest position parked for a consumer, which stays parked."""
        parked = self._parked.get(owner)
        return None if parked is None else parked.first()

    def unpark(self, position: PositionPair) -> None:
        """Removes a position that is delivered or acknowledged."""
        owner = self._parked_for.pop(position, None)
        if owner is not None:
            parked = self._parked[owner]
            parked.discard(position)
            if not parked:
                del self._parked[owner]

    def unpark_up_to(self, position: PositionPair) -> None:
        """Removes all positions up to and including `position`."""
        for parked in [parked for parked in self._parked_for if parked <= position]:
            self.unpark(parked)

    def left(self, owner: Consumer) -> list[PositionPair]:
        """Forgets a consumer that left; returns the positions parked for it."""
        self._owners = {
            uuid: consumer for uuid, consumer in self._owners.items() if consumer is not owner
        }
        parked = list(self._parked.pop(owner, ()))
        for position in parked:
            del self._parked_for[position]
        return parked

    def clear(self) -> None:
        """Forgets all owners and parked positions."""
        self._owners.clear()
        self._parked.clear()
        self._parked_for.clear()
