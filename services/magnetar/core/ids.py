"""Ids and positions, under the names Pulsar and BookKeeper give them.

A position is (ledger id, entry id). Positions order as tuples, and the positions of a topic only
grow. On the wire, ids are unsigned 64-bit, so -1 is sent as 2**64 - 1. The wire layer converts; all
other code uses signed numbers.
"""

from typing import Final, NamedTuple

ID_MAX: Final = 2**63 - 1


class Position(NamedTuple):
    """An entry of a managed ledger, or the position just before or after one."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST: Final = Position(-1, -1)
LATEST: Final = Position(ID_MAX, ID_MAX)
