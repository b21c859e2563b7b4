"""Ack holes: runs of entries that are not acknowledged while later ones are. Pure.

They hold mark-delete back, and with it whole ledgers. Only a broker knows which consumer has an
entry; where it was asked, a run's holder is the consumer whose key range its key falls in
(Key_Shared), the only one there is, or else every consumer that has something unacknowledged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.core.hashing import sticky_key_hash, sticky_range_hash
from magnetar.core.ids import Position
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.index import LedgerIndex

HOLES_MAX: Final = 1_000
"""Listed of one subscription, the oldest first; all of them are counted."""
HOLDERS_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Hole:
    """Unacknowledged entries from `first` to `last`, within acknowledged ones."""

    first: Position
    last: Position
    entries: int


@dataclass(frozen=True, slots=True)
class Consumer:
    """What a broker says of one."""

    name: str
    unacked_messages: int
    last_acked_ms: int
    address: str
    available_permits: int
    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, stats: dict[str, Any]) -> "Consumer":
        """From the consumer's part of a topic's stats."""
        return cls(
            str(stats.get("consumerName", "")),
            int(stats.get("unackedMessages", 0)),
            int(stats.get("lastAckedTimestamp", 0)),
            str(stats.get("address", "")),
            int(stats.get("availablePermits", 0)),
            tuple((low, high) for low, high in stats.get("keyHashRangeArrays") or ()),
        )


def holes(index: LedgerIndex, acks: AckState) -> Iterator[Hole]:
    """In order, of every size: what lies before each run of acknowledged entries."""
    at = acks.oldest_unacked
    for after, last in acks.ranges():
        if at is None:
            return
        before = index.floor(after.ledger_id, after.entry_id)
        if at <= before:
            yield Hole(at, before, index.rank(*before) - index.rank(*at) + 1)
        found = index.locate(last.ledger_id, last.entry_id + 1)
        at = None if found is None else Position(found[0].ledger_id, found[1])


def holders(
    consumers: Sequence[Consumer] | None, key: bytes | None, *, sticky: bool = False
) -> str:
    """Names, with commas; "" where nobody was asked or nobody has it.

    `sticky`: the consumers of a Key_Shared subscription named their ranges themselves.
    """
    if not consumers:
        return ""
    if key is not None and any(each.ranges for each in consumers):
        point = sticky_range_hash(key) if sticky else sticky_key_hash(key)
        within = [
            each.name
            for each in consumers
            if any(low <= point <= high for low, high in each.ranges)
        ]
        if within:
            return ", ".join(within)
    if len(consumers) == 1:
        return consumers[0].name
    having = sorted(
        (each for each in consumers if each.unacked_messages),
        key=lambda each: (-each.unacked_messages, each.name),
    )
    return ", ".join(each.name for each in having[:HOLDERS_SHOWN_MAX])
