"""The ledgers of one topic as they are now: where each ends, how large it is, who has it.

Read from the managed ledger's record, and the ledgers' own or those of their files: an offloaded
ledger is read from its file. The newest ledger is mostly open: it counts up to what is known to be
confirmed, which its bookies are asked without fencing it (`ends`).

The sizes of open ledgers are estimates, good enough to cut ranges by.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.reading import CopiesReader
from magnetar.ledger.records import read_record
from magnetar.managed_ledger.record import (
    LedgerItem,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.metadata.store import MetadataStore
from magnetar.offload.records import (
    OffloadRecord,
    decode_offload,
    offload_key,
    offloads_prefix,
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
    Where there is a `file`, `metadata` says nothing of bookies, which may not have the ledger.
    """

    metadata: LedgerMetadata
    last_entry: int
    size_bytes: int
    created_ms: int
    closed_ms: int
    file: OffloadRecord | None = None

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
    files = await live_files(log.store, log_name(topic))
    spans: list[LedgerSpan] = []
    for start in range(0, len(described.ledgers), RECORDS_AT_ONCE):
        items = described.ledgers[start : start + RECORDS_AT_ONCE]
        found = await asyncio.gather(
            *(_span(log, topic, item, files.get(item.ledger_id)) for item in items)
        )
        spans += [span for span in found if span is not None]
    return TopicLog(topic, tuple(spans), described.last_position)


async def live_files(store: MetadataStore, name: str) -> dict[int, OffloadRecord]:
    """The live files of a managed ledger, by ledger."""
    found = (
        decode_offload(record.key, record.value)
        for record in await store.list(offloads_prefix(name))
    )
    return {file.ledger_id: file for file in found}


async def live_file(store: MetadataStore, name: str, ledger_id: int) -> OffloadRecord | None:
    """The ledger's live file."""
    key = offload_key(name, ledger_id)
    record = await store.get(key)
    return None if record is None else decode_offload(key, record.value)


def cold_span(item: LedgerItem, file: OffloadRecord) -> LedgerSpan:
    """A ledger as its file has it."""
    last_entry = file.entries - 1
    metadata = LedgerMetadata(
        item.ledger_id,
        (),
        item.created_ms,
        state=LedgerState.CLOSED,
        last_entry=last_entry,
        length_bytes=file.length_bytes,
        closed_ms=item.closed_ms,
    )
    return LedgerSpan(
        metadata, last_entry, file.length_bytes, item.created_ms, item.closed_ms, file
    )


async def _span(
    log: Log, topic: TopicName, item: LedgerItem, file: OffloadRecord | None = None
) -> LedgerSpan | None:
    """None where the ledger was trimmed since the topic's record was read."""
    if file is not None:
        return cold_span(item, file)
    try:
        metadata, _ = await read_record(log.context, item.ledger_id)
    except NoSuchLedger:
        # Offloaded since the list of files was read, and let go of; or trimmed.
        file = await live_file(log.store, log_name(topic), item.ledger_id)
        return None if file is None else cold_span(item, file)
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
