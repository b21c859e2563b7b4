"""The open transactions of one topic, and the positions of their entries. No IO.

Appends complete in the order of their positions. So the transactions are in the order of their
first entries, and the horizon is the first entry of the first one.
"""

import asyncio
from collections.abc import Mapping

from pyroaring import BitMap

from magnetar.core.ids import Position
from magnetar.transactions.model import Outcome, TxnId


class OpenTxn:
    """A transaction that may have, or may still get, entries in the topic."""

    __slots__ = (
        "deadline_ms",
        "drained",
        "entries",
        "first",
        "in_flight",
        "look_up_ms",
        "outcome",
        "uncertain",
    )

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        """When the coordinator aborts it; 0 for one that was recovered and not looked up yet."""
        self.look_up_ms = 0
        """When its record is read, if its end has not arrived (`Expiry`)."""
        self.in_flight = 0
        """Appends that have not completed."""
        self.first: Position | None = None
        self.entries: dict[int, BitMap] = {}
        """Entry ids by ledger."""
        self.outcome: Outcome | None = None
        """Set once the end has arrived; no message is admitted from then on."""

        self.uncertain = False
        """Whether an append has failed: its entries may be in the log once that is recovered."""

        self.drained: asyncio.Event | None = None
        """Set once no append is in flight, if the end waits for that."""

    @property
    def looked_up(self) -> bool:
        """Whether this instance has read the record, and it was OPEN."""
        return self.deadline_ms > 0

    def append_done(self) -> None:
        """Records that an append has completed or failed."""
        self.in_flight -= 1
        if not self.in_flight and self.drained is not None:
            self.drained.set()

    async def when_drained(self) -> None:
        """Waits for the appends in flight. Needs `outcome`: no further append starts."""
        if self.in_flight:
            if self.drained is None:
                self.drained = asyncio.Event()
            await self.drained.wait()


class TxnBuffer:
    """The open transactions of a topic, by id."""

    __slots__ = ("_open", "_with_entries")

    def __init__(self) -> None:
        self._open: dict[TxnId, OpenTxn] = {}
        self._with_entries: dict[TxnId, OpenTxn] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def open(self) -> Mapping[TxnId, OpenTxn]:
        """The open transactions. Read-only."""
        return self._open

    def get(self, txn: TxnId) -> OpenTxn | None:
        """Returns the open transaction, None if it is not open here."""
        return self._open.get(txn)

    def admit(self, txn: TxnId, deadline_ms: int) -> OpenTxn:
        """Adds a transaction, or sets the deadline of one that is open already."""
        open_txn = self._open.get(txn)
        if open_txn is None:
            open_txn = self._open[txn] = OpenTxn(deadline_ms)
        else:
            open_txn.deadline_ms = deadline_ms
        return open_txn

    def appended(self, txn: TxnId, ledger_id: int, first_entry: int, count: int) -> None:
        """Records entries that are durable now."""
        open_txn = self._open[txn]
        if open_txn.first is None:
            open_txn.first = Position(ledger_id, first_entry)
            self._with_entries[txn] = open_txn
        entries = open_txn.entries.get(ledger_id)
        if entries is None:
            entries = open_txn.entries[ledger_id] = BitMap()
        if count == 1:
            entries.add(first_entry)
        else:
            entries.add_range(first_entry, first_entry + count)

    def end(self, txn: TxnId) -> None:
        """Removes an ended transaction."""
        self._open.pop(txn, None)
        self._with_entries.pop(txn, None)

    @property
    def horizon(self) -> Position | None:
        """The first entry of an open transaction; None if none has one."""
        for open_txn in self._with_entries.values():
            return open_txn.first
        return None
