"""An entry with its position, as readers get it."""

import msgspec

from magnetar.core.ids import Position


class Entry(msgspec.Struct, gc=False):
    """One stored entry. Readers share `data`, which never changes."""

    ledger_id: int
    entry_id: int
    data: bytes

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)
