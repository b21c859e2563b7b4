"""Finds the horizon of a log: reads its entries after the watermark, and their transactions.

Every entry up to the watermark belongs to an ended transaction or to none, so only those after it
are read; the search ends at the first entry of an open transaction. `Settled` carries over to the
next search of a stream.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Final

from magnetar.bookie.api import NoSuchLedger, StoredEntry
from magnetar.core.ids import Position
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.topic_log import LedgerSpan
from magnetar.jobs.log.transactions.visible import Settled
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.records import get_key, read_record
from magnetar.offload.cold import ColdLedger
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.errors import COLD_ERRORS
from magnetar.offload.records import OffloadRecord
from magnetar.offload.repository import OffloadRepository
from magnetar.transactions.entries import transaction_of
from magnetar.transactions.model import Outcome, TxnId, outcome_of
from magnetar.transactions.records import decode_record, record_key

READ_BYTES: Final = 4 << 20
RECORDS_AT_ONCE: Final = 64
ENTRIES_PER_TURN: Final = 2_000
"""Entries that are parsed before the event loop, which may be a broker's, does other work."""


async def search(
    log: Log, name: str, spans: Iterable[LedgerSpan], settled: Settled, end: Position
) -> Settled:
    """Returns `settled`, continued up to `end` or to the first entry of an open transaction.

    `spans` are the ledgers after `settled.to`. Raises NoSuchLedger if one was trimmed meanwhile,
    and BookieError, MetadataError and the errors of `magnetar.offload.errors`.
    """
    outcomes: dict[TxnId, Outcome | None] = {}
    files = ColdFiles()
    try:
        for span in spans:
            first = settled.to.entry_id + 1 if span.ledger_id == settled.to.ledger_id else 0
            last = end.entry_id if span.ledger_id == end.ledger_id else span.last_entry
            if not settled.to.ledger_id <= span.ledger_id <= end.ledger_id:
                continue
            entries = _Entries(log, name, span, files)
            async with aclosing(entries.read(max(0, first), min(last, span.last_entry))) as groups:
                async for group in groups:
                    if not await _add(log, span.ledger_id, group, outcomes, settled):
                        return settled
    finally:
        await files.close()
    settled.to = max(settled.to, end)
    return settled


async def _add(
    log: Log,
    ledger_id: int,
    group: list[StoredEntry],
    outcomes: dict[TxnId, Outcome | None],
    settled: Settled,
) -> bool:
    """Adds consecutive entries; returns whether their transactions have all ended."""
    entries = await _in_transactions(ledger_id, group)
    # In the order of the entries: those behind the horizon need no look-up.
    wanted = [txn for txn in dict.fromkeys(txn for _, txn in entries) if txn not in outcomes]
    for start in range(0, len(wanted), RECORDS_AT_ONCE):
        txns = wanted[start : start + RECORDS_AT_ONCE]
        decided = await asyncio.gather(*(_outcome(log.context, txn) for txn in txns))
        outcomes.update(zip(txns, decided, strict=True))
        if None in decided:
            break
    known = [(position, txn) for position, txn in entries if txn in outcomes]
    ended = settled.add(known, outcomes)
    if ended:
        settled.to = max(settled.to, Position(ledger_id, group[-1].entry_id))
    elif settled.horizon is not None:
        before = Position(ledger_id, settled.horizon.entry_id - 1)
        settled.to = max(settled.to, before)
    return ended


async def _in_transactions(
    ledger_id: int, group: list[StoredEntry]
) -> list[tuple[Position, TxnId]]:
    """The entries that belong to a transaction."""
    entries: list[tuple[Position, TxnId]] = []
    for number, (entry_id, data) in enumerate(group, 1):
        if (txn := transaction_of(data)) is not None:
            entries.append((Position(ledger_id, entry_id), txn))
        if number % ENTRIES_PER_TURN == 0:
            await asyncio.sleep(0)
    return entries


async def _outcome(context: LedgerContext, txn: TxnId) -> Outcome | None:
    key = record_key(txn)
    stored = await get_key(context, key)
    return outcome_of(None if stored is None else decode_record(key, stored.value))


class _Entries:
    """Reads one ledger, from its file if there is one, and from the other copy if that fails."""

    def __init__(self, log: Log, name: str, span: LedgerSpan, files: ColdFiles) -> None:
        self._log = log
        self._name = name
        self._span = span
        self._files = files

    async def read(self, first: int, last: int) -> AsyncGenerator[list[StoredEntry]]:
        """Yields the entries in groups, in order."""
        source = await self._source(self._span.file)
        moved = False
        while first <= last:
            try:
                group = await source.read(first, last, bytes_max=READ_BYTES)
            except NoSuchLedger:
                file = None if moved else await self._new_file()
                if file is None:
                    raise
                source, moved = await self._source(file), True
                continue
            except COLD_ERRORS:
                file = self._span.file
                if moved or file is None or file.released_ms:
                    raise
                source, moved = await self._source(None), True
                continue
            yield group
            first = group[-1].entry_id + 1

    async def _source(self, file: OffloadRecord | None) -> LedgerReader | ColdLedger:
        if file is not None:
            return ColdLedger(self._files, file)
        span, context = self._span, self._log.context
        metadata = span.metadata
        if span.file is not None:
            metadata, _ = await read_record(context, span.ledger_id)
        return LedgerReader(metadata, span.last_entry, context)

    async def _new_file(self) -> OffloadRecord | None:
        """The file of a ledger that was offloaded since the log was read."""
        return await OffloadRepository(self._log.store).file(self._name, self._span.ledger_id)
