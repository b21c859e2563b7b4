"""The rules for what transactions leave readable of a log. Pure.

- The *horizon* is the first entry of an open transaction. Nothing at or after it is read.
- Before it, the entries of aborted transactions are left out: those of the log's aborted set, and
  those whose transaction's record says ABORTING or ABORTED.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from magnetar.core.ids import EARLIEST, Position
from magnetar.jobs.log.topic_log import LedgerSpan, TopicLog
from magnetar.managed_ledger.cursor_state import StoredState
from magnetar.managed_ledger.record import ManagedLedgerRecord
from magnetar.transactions.model import Outcome, TxnId

NONE_ABORTED = StoredState(EARLIEST, {}, {})
"""The aborted set of a log that has none."""


@dataclass(slots=True)
class Settled:
    """The part of a log that no open transaction has an entry in: it never changes again.

    `aborted` has the entry ids by ledger that records showed to be aborted. The aborted set, read
    later, has the other aborted entries up to `to`.
    """

    created_ms: int
    """When the log was created: a topic may be deleted, and created again."""
    to: Position
    aborted: dict[int, BitMap] = field(default_factory=dict)
    horizon: Position | None = None
    """The first entry of an open transaction, if the search stopped there."""

    def add(
        self,
        entries: Iterable[tuple[Position, TxnId]],
        outcomes: Mapping[TxnId, Outcome | None],
    ) -> bool:
        """Adds entries of transactions, in their order; returns whether all of them have ended.

        Stops at the first entry of an open transaction, which has no outcome.
        """
        for position, txn in entries:
            outcome = outcomes[txn]
            if outcome is None:
                self.horizon = position
                return False
            if outcome is Outcome.ABORT:
                self.aborted.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        return True

    def after(self, position: Position) -> "Settled":
        """Returns the part from which a search continues behind this position, or behind `to`.

        Entries up to `position` are dropped: those up to a watermark are in the aborted set.
        """
        kept: dict[int, BitMap] = {}
        for ledger_id, ids in self.aborted.items():
            low = position.entry_id + 1 if ledger_id == position.ledger_id else 0
            left = ids - BitMap(range(max(0, low)))
            if ledger_id >= position.ledger_id and left:
                kept[ledger_id] = left
        return Settled(self.created_ms, max(self.to, position), kept)


def aborted_in(state: StoredState, ledger_id: int, last_entry: int) -> BitMap:
    """Returns the aborted entries of a ledger, by the log's aborted set.

    Every kept entry up to the set's mark-delete is aborted. That holds for ledgers that were not
    trimmed when the set was read.
    """
    mark = state.mark_delete
    ids = BitMap(state.holes.get(ledger_id, ()))
    if ledger_id < mark.ledger_id:
        ids |= BitMap(range(last_entry + 1))
    elif ledger_id == mark.ledger_id:
        ids |= BitMap(range(mark.entry_id + 1))
    return ids


def without_aborted(
    log: TopicLog, state: StoredState, settled: Settled, trimmed_to: Position
) -> TopicLog:
    """Returns the log up to the horizon, with the aborted entries of its ledgers.

    `trimmed_to` was read after the aborted set. A ledger that was trimmed since the log was read is
    left out: the set may already count all of its entries as aborted.
    """
    spans = tuple(
        _marked(span, aborted_in(state, span.ledger_id, span.last_entry), settled)
        for span in log.ledgers
        if span.ledger_id > trimmed_to.ledger_id
    )
    gone = tuple(item for item in log.gone if item.ledger_id > trimmed_to.ledger_id)
    return replace(
        log,
        ledgers=spans,
        gone=gone,
        trimmed_to=max(log.trimmed_to, trimmed_to),
        horizon=settled.horizon,
    )


def _marked(span: LedgerSpan, ids: BitMap, settled: Settled) -> LedgerSpan:
    if (by_records := settled.aborted.get(span.ledger_id)) is not None:
        ids = ids | by_records
    return replace(span, aborted=ids.serialize()) if ids else span


def before_horizon(record: ManagedLedgerRecord, horizon: Position) -> Position:
    """Returns the last entry before the horizon, or the position up to which the log was trimmed.

    The record lists the horizon's ledger, and those before it are closed.
    """
    for item in reversed(record.ledgers):
        entries = item.entries if item.ledger_id < horizon.ledger_id else horizon.entry_id
        if item.ledger_id <= horizon.ledger_id and entries > 0:
            return Position(item.ledger_id, entries - 1)
    return Position(*record.last_position)
