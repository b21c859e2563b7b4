"""Finds the transactions that have entries in a log, after its owner has changed."""

import asyncio
from typing import Final

from magnetar.broker.topic.transactions.attempts import Scan
from magnetar.broker.topic.transactions.buffer import TxnBuffer
from magnetar.core.ids import Position
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.transactions.entries import transaction_of
from magnetar.transactions.model import Outcome

READ_ENTRIES_MAX: Final = 1_000
READ_BYTES_MAX: Final = 4 << 20
READ_TIMEOUT_S: Final = 30.0


async def scan(
    ledger: ManagedLedger, after: Position, end: Position, buffer: TxnBuffer, progress: Scan
) -> None:
    """Adds the transactions of the entries after `after`, up to and including `end`.

    A transaction with an entry in the aborted set gets the outcome ABORT. The others have no
    deadline yet, so they are looked up next. Raises what reading raises.
    """
    start = ledger.next_position(after)
    while start <= end:
        progress.at = start
        async with asyncio.timeout(READ_TIMEOUT_S):
            entries = await ledger.read(start, READ_ENTRIES_MAX, READ_BYTES_MAX)
        for entry in entries:
            if entry.position > end:
                return
            if (txn := transaction_of(entry.data)) is None:
                continue
            open_txn = buffer.get(txn) or buffer.admit(txn, 0)
            buffer.appended(txn, entry.ledger_id, entry.entry_id, 1)
            if ledger.is_aborted(entry.ledger_id, entry.entry_id):
                open_txn.outcome = Outcome.ABORT
        if not entries:
            return  # the rest was trimmed meanwhile
        start = ledger.next_position(entries[-1].position)
        await asyncio.sleep(0)  # parsing a full read takes milliseconds
