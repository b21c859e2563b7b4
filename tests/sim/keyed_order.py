"""Holds a Key_Shared subscription to its promise: one consumer for each key at a time, in order.

A consumer gets an entry of a key only if every earlier entry of that key was acked, or came to this
consumer since it attached. So a key that moves before its former consumer has acked everything is a
violation, and so is an entry that overtakes another one.

The promise outlives changes of the owner: a new instance of the topic reads everything that was not
acked. An ack counts from when a consumer sends it, so an ack that is lost excuses only more.
"""

from collections import defaultdict
from collections.abc import Callable

Position = tuple[int, int]
Attachment = tuple[str, int]
"""A consumer, and its id on the connection: another one each time that it attaches."""


class KeyedOrder:
    """The unacked entries of one subscription, by key."""

    def __init__(self, name: str, violated: Callable[[str], None]) -> None:
        self._name, self._violated = name, violated
        self._open: dict[str, dict[Position, set[Attachment]]] = defaultdict(dict)
        self._keys: dict[Position, str] = {}
        self._acked: set[Position] = set()
        self._last: dict[str, Attachment] = {}
        self.moves = 0
        """How often a key went to another consumer than before."""

    def published(self, key: str, position: Position) -> None:
        """A producer has the receipt of the entry."""
        if position not in self._acked:
            self._keys[position] = key
            self._open[key].setdefault(position, set())

    def delivered(self, key: str, position: Position, to: Attachment) -> None:
        """A consumer has received the entry."""
        self.published(key, position)
        entries = self._open[key]
        self.moves += self._last.setdefault(key, to) != to
        self._last[key] = to
        for earlier, holders in entries.items():
            if earlier < position and to not in holders:
                where = f"is held by {sorted(holders)}" if holders else "came to nobody yet"
                self._violated(
                    f"{self._name}: {position} of key {key} came to {to}, and {earlier} of the "
                    f"same key, which nobody has acked, {where}"
                )
        if position in entries:
            entries[position].add(to)

    def acked(self, position: Position) -> None:
        """A consumer has sent an ack of the entry."""
        self._acked.add(position)
        if (key := self._keys.pop(position, None)) is not None:
            self._open[key].pop(position, None)
