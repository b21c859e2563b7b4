"""The ledgers of one topic as they are now: where each ends, how large it is, who has it.

Read from the managed ledger's record and the ledgers' own. The newest ledger is mostly open: it
counts up to what is known to be confirmed, which its bookies are asked without fencing it (`ends`).

The sizes of open ledgers are estimates, good enough to cut ranges by.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.reading import CopiesReader
from magnetar.ledger.records import read_record
from magnetar.managed_ledger.record import (
    LedgerItem,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar_spark.log.access import Log
from magnetar_spark.log.ends import end_of
from magnetar_spark.log.topics import log_name

PROBE_BYTES: Final = 64 << 10
"""Read of an open ledger to guess its size, where its record does not tell."""
RECORDS_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """One ledger of a topic. `last_entry` is -1 where there is nothing to read yet.

    Times are when it was created and closed, in ms since 1970; `closed_ms` is 0 while it may grow.
    """

    metadata: LedgerMetadata
    last_entry: int
    size_bytes: int
    created_ms: int
    closed_ms: int

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    def entry_bytes(self) -> float:
        """Of one entry, on average."""
        return self.size_bytes / (self.last_entry + 1) if self.last_entry >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class TopicLog:
    """The ledgers of one topic that is no partitioned one, oldest first.

    `trimmed_to` is the greatest position that was in the log and is there no more.
    """

    topic: TopicName
    ledgers: tuple[LedgerSpan, ...]
    trimmed_to: Position

    @property
    def end(self) -> Position:
        """The last entry there is, or where the log was trimmed to."""
        for span in reversed(self.ledgers):
            if span.last_entry >= 0:
                return Position(span.ledger_id, span.last_entry)
        return self.trimmed_to


async def topic_log(log: Log, topic: TopicName) -> TopicLog:
    """Reads the records of a topic's log, an empty one where there are none."""
    key = managed_ledger_key(log_name(topic))
    record = await log.store.get(key)
    if record is None:
        return TopicLog(topic, (), EARLIEST)
    described = decode_managed_ledger(key, record.value)
    spans: list[LedgerSpan] = []
    for start in range(0, len(described.ledgers), RECORDS_AT_ONCE):
        items = described.ledgers[start : start + RECORDS_AT_ONCE]
        found = await asyncio.gather(*(_span(log, topic, item) for item in items))
        spans += [span for span in found if span is not None]
    return TopicLog(topic, tuple(spans), described.last_position)


async def _span(log: Log, topic: TopicName, item: LedgerItem) -> LedgerSpan | None:
    """None where the ledger was trimmed since the topic's record was read."""
    try:
        metadata, _ = await read_record(log.context, item.ledger_id)
    except NoSuchLedger:
        return None
    end = await end_of(log.context, metadata)
    last_entry = end.confirmed
    if last_entry < end.stored and log.admin is not None:
        confirmed = await log.admin.confirmed(topic, item.ledger_id)
        last_entry = min(end.stored, max(last_entry, confirmed))
    size_bytes = end.size_bytes
    if size_bytes < 0:
        size_bytes = await _estimated(log, metadata, last_entry)
    closed_ms = item.closed_ms or metadata.closed_ms
    return LedgerSpan(metadata, last_entry, size_bytes, item.created_ms, closed_ms)


async def _estimated(log: Log, metadata: LedgerMetadata, last_entry: int) -> int:
    """From what the record counted, or a short read from the middle."""
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
    """As `TopicLog.end`, from one record and one question to the newest ledger's bookies."""
    key = managed_ledger_key(log_name(topic))
    record = await log.store.get(key)
    if record is None:
        return EARLIEST
    described = decode_managed_ledger(key, record.value)
    for item in reversed(described.ledgers):
        if item.closed_ms:
            last_entry = item.entries - 1
        else:
            span = await _span(log, topic, item)
            last_entry = -1 if span is None else span.last_entry
        if last_entry >= 0:
            return Position(item.ledger_id, last_entry)
    return described.last_position
