"""The ledgers and cursors of a managed ledger that is not open here, by its records.

Nothing is written, opened or fenced. An open newest ledger counts with the confirmed end that its
bookies report now, and without bytes. A cursor with a ledger of its own has the mark-delete of its
record, which may be outdated. `exact` is false in these cases.
"""

from dataclasses import dataclass

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.record import (
    NO_LEDGER,
    CursorRecord,
    LedgerItem,
    ManagedLedgerRecord,
)


class RecordedCursor(AckState):
    """A cursor by its record alone."""

    durable = True

    def __init__(self, index: LedgerIndex, mark_delete: Position) -> None:
        super().__init__(index, mark_delete, tracked=False)


@dataclass(frozen=True, slots=True)
class Outline:
    """The ledgers and cursors of one managed ledger; `exact` if nothing is estimated."""

    index: LedgerIndex
    cursors: dict[str, RecordedCursor]
    exact: bool
    created_ms: int


async def outline(
    record: ManagedLedgerRecord, cursors: dict[str, CursorRecord], ledgers: LedgerClient
) -> Outline:
    """Returns the outline; asks the bookies for the end of an open newest ledger."""
    index = LedgerIndex(record.last_position)
    exact = True
    for item in record.ledgers:
        info = _info(item)
        if not item.closed_ms:
            info, exact = await _newest(item, ledgers)
        index.add(info)
    return Outline(
        index,
        {name: RecordedCursor(index, cursor.mark_delete) for name, cursor in cursors.items()},
        exact and all(cursor.ledger_id == NO_LEDGER for cursor in cursors.values()),
        record.created_ms,
    )


def _info(item: LedgerItem) -> LedgerInfo:
    return LedgerInfo(
        item.ledger_id,
        item.created_ms,
        entries=item.entries,
        size_bytes=item.size_bytes,
        closed_ms=item.closed_ms,
    )


async def _newest(item: LedgerItem, ledgers: LedgerClient) -> tuple[LedgerInfo, bool]:
    """Returns the newest ledger, and whether it is closed."""
    try:
        reader = await ledgers.open(item.ledger_id, recover=False)
    except (NoSuchLedger, MagnetarError):
        return _info(item), False
    info = LedgerInfo(
        item.ledger_id,
        item.created_ms,
        entries=reader.last_entry + 1,
        size_bytes=reader.length_bytes,
        closed_ms=reader.metadata.closed_ms,
    )
    return info, bool(info.closed_ms)
