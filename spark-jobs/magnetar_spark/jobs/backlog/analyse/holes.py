"""Finds ack holes: runs of unacknowledged entries before acknowledged ones. Pure.

They hold the mark-delete position back, and with it whole ledgers. Only a broker knows which
consumer has an entry. If it was asked, the holder of a run is the consumer whose key range contains
its key (Key_Shared), or the only consumer, or else every consumer with unacknowledged messages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.core.hashing import sticky_key_hash, sticky_range_hash
from magnetar.core.ids import Position
from magnetar.documents.stats import ConsumerSummary
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.index import LedgerIndex

HOLES_MAX: Final = 1_000
"""Holes listed per subscription, oldest first; all are counted."""
HOLDERS_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Hole:
    """Unacknowledged entries from `first` to `last`, within acknowledged ones."""

    first: Position
    last: Position
    entries: int


@dataclass(frozen=True, slots=True)
class Consumer:
    """A connected consumer, by its broker's stats."""

    name: str
    unacked_messages: int
    last_acked_ms: int
    address: str
    available_permits: int
    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, stats: ConsumerSummary) -> "Consumer":
        """Returns the consumer with these stats."""
        return cls(
            stats.consumer_name or "",
            stats.unacked_messages,
            stats.last_acked_timestamp,
            stats.address or "",
            stats.available_permits,
            stats.key_hash_range_arrays or (),
        )


def holes(index: LedgerIndex, acks: AckState) -> Iterator[Hole]:
    """All holes in order: the unacknowledged entries before each acknowledged run."""
    at = acks.oldest_unacked
    for after, last in acks.ranges():
        if at is None:
            return
        before = index.floor(after.ledger_id, after.entry_id)
        if at <= before:
            yield Hole(at, before, index.rank(*before) - index.rank(*at) + 1)
        located = index.locate(last.ledger_id, last.entry_id + 1)
        at = None if located is None else Position(located[0].ledger_id, located[1])


def holders(
    consumers: Sequence[Consumer] | None, key: bytes | None, *, sticky: bool = False
) -> str:
    """The names of the consumers that may hold a key's messages; "" if none does, or is known.

    `sticky`: the consumers of a Key_Shared subscription have set their ranges themselves.
    """
    if not consumers:
        return ""
    if key is not None and any(consumer.ranges for consumer in consumers):
        point = sticky_range_hash(key) if sticky else sticky_key_hash(key)
        within = [
            consumer.name
            for consumer in consumers
            if any(low <= point <= high for low, high in consumer.ranges)
        ]
        if within:
            return ", ".join(within)
    if len(consumers) == 1:
        return consumers[0].name
    having = sorted(
        (consumer for consumer in consumers if consumer.unacked_messages),
        key=lambda consumer: (-consumer.unacked_messages, consumer.name),
    )
    return ", ".join(consumer.name for consumer in having[:HOLDERS_SHOWN_MAX])
