"""The ledgers of one topic as of now: their ends, their sizes, and their copies.

Read from the managed ledger's record and from the records of its ledgers or of their files; an
offloaded ledger is read from its file. The newest ledger is usually open: it counts up to its last
confirmed entry, which its bookies are asked for without fencing it (`ends`).

Of a topic with transactions, only what they leave readable counts (`transactions`).

The sizes of open ledgers are estimates, good enough for dividing ranges.
"""

import asyncio
from contextlib import suppress
from typing import Final

from magnetar.bookie.api import BookieError, NoSuchLedger
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName
from magnetar.jobs.log.ends import end_of
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.topic_log import LedgerSpan, TopicLog, cold_span, log_record
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.log.transactions.readable import LogReplaced, readable, settled_to
from magnetar.jobs.log.transactions.search import search
from magnetar.jobs.log.transactions.visible import before_horizon
from magnetar.ledger.copies_reader import CopiesReader
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.records import read_record
from magnetar.managed_ledger.record import (
    LedgerItem,
    ManagedLedgerRecord,
)
from magnetar.offload.repository import LiveFile, OffloadRepository

PROBE_BYTES: Final = 64 << 10
"""Read from an open ledger to estimate its size, if its record does not count it."""
RECORDS_AT_ONCE: Final = 64
READS_MAX: Final = 3
"""Reads of one log, if its ledgers disappear between two reads."""
ENTRY_BYTES_GUESS: Final = 1 << 10
"""Entry size of an open ledger whose bookies do not answer; only task sizes depend on it."""


async def topic_log(log: Log, topic: TopicName, confirmed: Position | None = None) -> TopicLog:
    """Reads the ledgers of a topic; an empty log if it has no record.

    With `confirmed`, a position that an earlier read found confirmed, the log ends there. No
    bookie is asked for a newer end, so none can contradict the earlier answer. Raises
    PersistenceError if a ledger before `confirmed` has no end.
    """
    before: TopicLog | None = None
    for attempt in range(READS_MAX):
        try:
            current = await _read(log, topic, confirmed)
        except (LogReplaced, NoSuchLedger):
            if attempt == READS_MAX - 1:
                raise
            continue
        # If the ledgers were trimmed, the record says so by now. If it lists them again, they
        # are lost.
        if not current.gone or (before is not None and current.gone == before.gone):
            break
        before = current
    return current


async def _read(log: Log, topic: TopicName, confirmed: Position | None) -> TopicLog:
    record = await log_record(log.store, topic)
    if record is None:
        return TopicLog(topic, (), EARLIEST, exists=False)
    files = await OffloadRepository(log.store).files(log_name(topic))
    listed = [
        item
        for item in record.ledgers
        if confirmed is None or item.ledger_id <= confirmed.ledger_id
    ]
    spans: list[LedgerSpan] = []
    gone: list[LedgerItem] = []
    for start in range(0, len(listed), RECORDS_AT_ONCE):
        items = listed[start : start + RECORDS_AT_ONCE]
        batch = await asyncio.gather(
            *(_span(log, topic, item, files.get(item.ledger_id), confirmed) for item in items)
        )
        spans += [span for span in batch if span is not None]
        gone += [item for item, span in zip(items, batch, strict=True) if span is None]
    whole = TopicLog(topic, tuple(spans), Position(*record.last_position), tuple(gone))
    return await readable(log, whole, record.created_ms, confirmed)


async def _span(
    log: Log,
    topic: TopicName,
    item: LedgerItem,
    live: LiveFile | None = None,
    confirmed: Position | None = None,
) -> LedgerSpan | None:
    """None if the ledger was trimmed since the topic's record was read."""
    if live is not None:
        return cold_span(item, live.record)
    try:
        metadata, _ = await read_record(log.context, item.ledger_id)
    except NoSuchLedger:
        # Trimmed, or offloaded and deleted on the bookies since the files were listed.
        file = await OffloadRepository(log.store).file(log_name(topic), item.ledger_id)
        return None if file is None else cold_span(item, file)
    if confirmed is not None and metadata.state is not LedgerState.CLOSED:
        return await _span_up_to(log, topic, item, metadata, confirmed)
    end = await end_of(log.context, metadata)
    last_entry = end.confirmed
    if last_entry < end.stored and log.admin is not None:
        by_broker = await log.admin.confirmed(topic, item.ledger_id)
        last_entry = min(end.stored, max(last_entry, by_broker))
    size_bytes = end.size_bytes
    if size_bytes < 0:
        size_bytes = await _estimated(log, metadata, last_entry)
    closed_ms = item.closed_ms or metadata.closed_ms
    return LedgerSpan(metadata, last_entry, size_bytes, item.created_ms, closed_ms)


async def _span_up_to(
    log: Log, topic: TopicName, item: LedgerItem, metadata: LedgerMetadata, confirmed: Position
) -> LedgerSpan:
    """An open ledger up to a confirmed entry; its bookies are asked for its size only."""
    ledger_id, last_entry = confirmed
    if item.ledger_id != ledger_id:
        raise PersistenceError(
            f"{topic}: ledger {item.ledger_id} has no end yet, though the log continues to "
            f"{confirmed}; try again once its recovery is over"
        )
    try:
        size_bytes = (await end_of(log.context, metadata)).size_bytes
        if size_bytes < 0:
            size_bytes = await _estimated(log, metadata, last_entry)
    except (BookieError, TimeoutError):
        size_bytes = ENTRY_BYTES_GUESS * (last_entry + 1)  # if no copy answers, the tasks fail
    return LedgerSpan(metadata, last_entry, size_bytes, item.created_ms, 0)


async def _estimated(log: Log, metadata: LedgerMetadata, last_entry: int) -> int:
    """Estimates a size from the record's counts, or from a short read in the middle."""
    if last_entry < 0:
        return 0
    entries = last_entry + 1
    if metadata.counted_entries:
        return int(metadata.counted_bytes / metadata.counted_entries * entries)
    probe = await CopiesReader(log.context).read(
        metadata, last_entry // 2, last_entry, bytes_max=PROBE_BYTES
    )
    return int(sum(len(entry.data) for entry in probe) / len(probe) * entries)


async def topic_end(log: Log, topic: TopicName) -> Position:
    """Like `TopicLog.end`, from one record and one request to the newest ledger's bookies.

    A topic with transactions is read from its watermark on.
    """
    for _ in range(READS_MAX - 1):
        with suppress(LogReplaced, NoSuchLedger):
            return await _topic_end(log, topic)
    return await _topic_end(log, topic)


async def _topic_end(log: Log, topic: TopicName) -> Position:
    record = await log_record(log.store, topic)
    if record is None:
        return EARLIEST
    end = await _last_confirmed(log, topic, record)
    settled = await settled_to(log, topic, record.created_ms)
    if settled is None or settled.to >= end:
        return end
    between = [
        item
        for item in record.ledgers
        if settled.to.ledger_id <= item.ledger_id <= end.ledger_id
        and (item.entries or not item.closed_ms)
    ]
    spans = [await _unsized_span(log, topic, item, end) for item in between]
    settled = await search(log, log_name(topic), spans, settled, end)
    log.settled[topic] = settled
    return end if settled.horizon is None else before_horizon(record, settled.horizon)


async def _last_confirmed(log: Log, topic: TopicName, record: ManagedLedgerRecord) -> Position:
    for item in reversed(record.ledgers):
        if item.closed_ms:
            last_entry = item.entries - 1
        else:
            span = await _span(log, topic, item)
            last_entry = -1 if span is None else span.last_entry
        if last_entry >= 0:
            return Position(item.ledger_id, last_entry)
    return Position(*record.last_position)


async def _unsized_span(log: Log, topic: TopicName, item: LedgerItem, end: Position) -> LedgerSpan:
    """A ledger up to `end`, without its size; raises NoSuchLedger if it was trimmed meanwhile."""
    try:
        metadata, _ = await read_record(log.context, item.ledger_id)
    except NoSuchLedger:
        file = await OffloadRepository(log.store).file(log_name(topic), item.ledger_id)
        if file is None:
            raise
        return cold_span(item, file)
    last_entry = end.entry_id if item.ledger_id == end.ledger_id else item.entries - 1
    return LedgerSpan(metadata, last_entry, 0, item.created_ms, item.closed_ms)


async def topic_start(log: Log, topic: TopicName) -> Position:
    """The position after which the log starts: `TopicLog.trimmed_to`, from one record."""
    record = await log_record(log.store, topic)
    return EARLIEST if record is None else Position(*record.last_position)


async def last_before(log: Log, topic: TopicName, first: Position) -> Position:
    """The last position of this log before `first`, a position of any log.

    Ledger ids increase across all topics, so a position in one partition divides the others too.
    """
    record = await log_record(log.store, topic)
    if record is None:
        return EARLIEST
    trimmed_to = Position(*record.last_position)
    ids = {item.ledger_id for item in record.ledgers}
    if first.ledger_id in ids or first <= trimmed_to:
        return Position(first.ledger_id, first.entry_id - 1)
    for item in reversed(record.ledgers):
        if item.ledger_id < first.ledger_id:
            if not item.closed_ms:
                return await topic_end(log, topic)
            if item.entries:
                return Position(item.ledger_id, item.entries - 1)
    return trimmed_to
