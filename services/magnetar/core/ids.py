"""Ids and positions, under the names Pulsar and BookKeeper give them.

A position is (ledger id, entry id); positions order as tuples do, and the positions of one topic
only grow. On the wire ids are unsigned 64-bit, so that -1 travels as 2**64 - 1: the wire layer
converts, everything else sees signed numbers.
"""

from typing import Final, NamedTuple, NewType

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)

ID_MAX: Final = 2**63 - 1


class Position(NamedTuple):
    """One entry of a managed ledger, or the place just before or after one."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST: Final = Position(-1, -1)
LATEST: Final = Position(ID_MAX, ID_MAX)
