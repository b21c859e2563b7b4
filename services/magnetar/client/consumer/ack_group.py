"""Grouping of acknowledgments: many in one command, after a short time or a number of them.

Individual acks are kept per entry; those of single messages of a batch as the bits that are left.
A cumulative ack replaces all before it. What is here and not sent yet also serves to drop messages
that the broker delivers again although they were acknowledged.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command
from magnetar.wire.message_id import ack_set_words, unsigned64

IDS_PER_COMMAND_MAX: Final = 1000
Place = tuple[int, int]


class CumulativeAck(NamedTuple):
    """Acknowledges everything up to an entry; of its batch, all but the bits that are left."""

    place: Place
    left: int


class AckGroup:
    """The acknowledgments of one topic or partition that were not sent yet."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        group_s: float,
        size_max: int,
        flush: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._group_s = group_s
        self._size_max = size_max
        self._flush = flush
        self._timer: asyncio.TimerHandle | None = None
        self.individual: dict[Place, int] = {}
        """The bits that are left of each entry; 0 acknowledges the whole entry."""
        self.cumulative: CumulativeAck | None = None
        self.waiters: set[asyncio.Future[None]] = set()
        """Callers that wait for the broker's answer."""

    def __len__(self) -> int:
        return len(self.individual) + (self.cumulative is not None)

    def add(self, place: Place, left: int = 0) -> None:
        """Acknowledges an entry, or messages of a batch."""
        self.individual[place] = left
        if len(self.individual) >= self._size_max or not self._group_s:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._group_s, self._due)

    def add_all(self, places: Iterable[Place]) -> None:
        """Acknowledges entries together: a part of a message would stay unread for ever."""
        *first, last = places
        self.individual.update(dict.fromkeys(first, 0))
        self.add(last)

    def add_cumulative(self, place: Place, left: int = 0) -> None:
        """Acknowledges everything up to an entry."""
        current = self.cumulative
        if current is None or (place, -left) > (current.place, -current.left):
            self.cumulative = CumulativeAck(place, left)
        if not self._group_s:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._group_s, self._due)

    def covers(self, place: Place) -> bool:
        """Whether a whole entry was acknowledged, and the broker does not know it yet."""
        if self.individual.get(place, 1) == 0:
            return True
        cumulative = self.cumulative
        if cumulative is None:
            return False
        return place < cumulative.place or (place == cumulative.place and not cumulative.left)

    def _due(self) -> None:
        self._timer = None
        self._flush()

    def take(
        self,
    ) -> tuple[dict[Place, int], CumulativeAck | None, set[asyncio.Future[None]]]:
        """Removes and returns everything."""
        self.stop()
        taken = self.individual, self.cumulative, self.waiters
        self.individual, self.cumulative, self.waiters = {}, None, set()
        return taken

    def stop(self) -> None:
        """Cancels the timer; what is grouped stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _fill(message_id: pb.MessageIdData, place: Place, left: int) -> None:
    message_id.ledgerId, message_id.entryId = map(unsigned64, place)
    if left:
        message_id.ack_set.extend(ack_set_words(left))


def individual_commands(
    consumer_id: int, acks: dict[Place, int], *, batch_sizes: dict[Place, int] | None = None
) -> list[pb.CommandAck]:
    """Returns the ACKs of entries and messages, with at most IDS_PER_COMMAND_MAX ids each."""
    commands = []
    items = list(acks.items())
    for start in range(0, len(items), IDS_PER_COMMAND_MAX):
        command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.Individual)
        for place, left in items[start : start + IDS_PER_COMMAND_MAX]:
            message_id = command.message_id.add()
            _fill(message_id, place, left)
            if batch_sizes is not None and batch_sizes.get(place):
                message_id.batch_size = batch_sizes[place]
        commands.append(command)
    return commands


def cumulative_command(consumer_id: int, ack: CumulativeAck) -> pb.CommandAck:
    """Returns the ACK of everything up to an entry."""
    command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.Cumulative)
    _fill(command.message_id.add(), *ack)
    return command


def ack_frame(command: pb.CommandAck) -> bytes:
    """Returns the frame of an ACK that requests no answer."""
    return encode_command(CommandType.ACK, command)
