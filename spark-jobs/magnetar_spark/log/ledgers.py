"""The ledgers of one topic as they are now: where each ends, how large it is, who has it.

Read from the managed ledger's record and the ledgers' own. The newest ledger is mostly open: it
counts up to what its bookies know to be confirmed, which they are asked without fencing it. That
is at most one group of entries behind what its writer knows, until the next write.

The sizes of open ledgers are estimates, good enough to cut ranges by.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.reader import LedgerReader
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar_spark.log.access import Log
from magnetar_spark.log.topics import log_name

PROBE_BYTES: Final = 64 << 10
"""Read of an open ledger to guess its size, where its record does not tell."""


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
        return TopicLog(topic, (), Position(-1, -1))
    described = decode_managed_ledger(key, record.value)
    spans: list[LedgerSpan] = []
    for item in described.ledgers:
        try:
            reader = await log.ledgers.open(item.ledger_id, recover=False)
        except NoSuchLedger:
            continue  # trimmed since the record was read
        size_bytes = await _size_bytes(reader, spans)
        spans.append(
            LedgerSpan(
                reader.metadata, reader.last_entry, size_bytes, item.created_ms, item.closed_ms
            )
        )
    return TopicLog(topic, tuple(spans), described.last_position)


async def _size_bytes(reader: LedgerReader, before: Iterable[LedgerSpan]) -> int:
    """Known of a closed ledger; of an open one by its record, its elders, or a short read."""
    entries = reader.last_entry + 1
    if reader.closed or not entries:
        return reader.length_bytes
    metadata = reader.metadata
    if metadata.counted_entries:
        return int(metadata.counted_bytes / metadata.counted_entries * entries)
    counted = [span for span in before if span.closed_ms and span.last_entry >= 0]
    if counted:
        return int(counted[-1].entry_bytes * entries)
    probe = await reader.read(entries // 2, reader.last_entry, bytes_max=PROBE_BYTES)
    return int(sum(len(entry.data) for entry in probe) / len(probe) * entries)
