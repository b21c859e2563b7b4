"""The ledgers of one topic as they are now: where each ends, how large it is, who has it.

Read from the managed ledger's record, and the ledgers' own or those of their files: an offloaded
ledger is read from its file. The newest ledger is mostly open: it counts up to what is known to be
confirmed, which its bookies are asked without fencing it (`ends`).

The sizes of open ledgers are estimates, good enough to cut ranges by.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import BookieError, NoSuchLedger
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.reading import CopiesReader
from magnetar.ledger.records import read_record
from magnetar.managed_ledger.record import (
    LedgerItem,
    ManagedLedgerRecord,
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
READS_MAX: Final = 3
"""Of one log whose ledgers go while it is read."""
ENTRY_BYTES_GUESS: Final = 1 << 10
"""Of an open ledger whose bookies do not answer: only the tasks' sizes depend on it."""


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

    `trimmed_to` is the greatest position that was in the log and is there no more. `gone` are the
    ledgers that the topic's record lists, twice in a row, and that are neither on bookies nor in
    files. A log that does not exist was deleted, or never written.
    """

    topic: TopicName
    ledgers: tuple[LedgerSpan, ...]
    trimmed_to: Position
    gone: tuple[LedgerItem, ...] = ()
    exists: bool = True

    @property
    def end(self) -> Position:
        """The last entry there is, or where the log was trimmed to."""
        for span in reversed(self.ledgers):
            if span.last_entry >= 0:
                return Position(span.ledger_id, span.last_entry)
        return self.trimmed_to


async def topic_log(log: Log, topic: TopicName, confirmed: Position | None = None) -> TopicLog:
    """Reads the records of a topic's log, an empty one where there are none.

    With `confirmed`, a position that an earlier read found confirmed, the log ends there: no
    bookie is asked for a newer end, and none can take back the older answer. Raises
    PersistenceError if a ledger before it has no end.
    """
    found = await _read(log, topic, confirmed)
    for _ in range(READS_MAX - 1):
        if not found.gone:
            break
        # Trimmed meanwhile: the record says so by now. Or lost, and listed again.
        before, found = found, await _read(log, topic, confirmed)
        if found.gone == before.gone:
            break
    return found


async def _read(log: Log, topic: TopicName, confirmed: Position | None) -> TopicLog:
    described = await _described(log, topic)
    if described is None:
        return TopicLog(topic, (), EARLIEST, exists=False)
    files = await live_files(log.store, log_name(topic))
    listed = [
        item
        for item in described.ledgers
        if confirmed is None or item.ledger_id <= confirmed.ledger_id
    ]
    spans: list[LedgerSpan] = []
    gone: list[LedgerItem] = []
    for start in range(0, len(listed), RECORDS_AT_ONCE):
        items = listed[start : start + RECORDS_AT_ONCE]
        found = await asyncio.gather(
            *(_span(log, topic, item, files.get(item.ledger_id), confirmed) for item in items)
        )
        spans += [span for span in found if span is not None]
        gone += [item for item, span in zip(items, found, strict=True) if span is None]
    return TopicLog(topic, tuple(spans), Position(*described.last_position), tuple(gone))


async def _described(log: Log, topic: TopicName) -> ManagedLedgerRecord | None:
    """The record of the topic's log; None also while the log is being deleted."""
    key = managed_ledger_key(log_name(topic))
    record = await log.store.get(key)
    if record is None:
        return None
    described = decode_managed_ledger(key, record.value)
    return None if described.deleted else described


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
    log: Log,
    topic: TopicName,
    item: LedgerItem,
    file: OffloadRecord | None = None,
    confirmed: Position | None = None,
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
    if confirmed is not None and metadata.state is not LedgerState.CLOSED:
        return await _span_up_to(log, topic, item, metadata, confirmed)
    end = await end_of(log.context, metadata)
    last_entry = end.confirmed
    if last_entry < end.stored and log.admin is not None:
        known = await log.admin.confirmed(topic, item.ledger_id)
        last_entry = min(end.stored, max(last_entry, known))
    size_bytes = end.size_bytes
    if size_bytes < 0:
        size_bytes = await _estimated(log, metadata, last_entry)
    closed_ms = item.closed_ms or metadata.closed_ms
    return LedgerSpan(metadata, last_entry, size_bytes, item.created_ms, closed_ms)


async def _span_up_to(
    log: Log, topic: TopicName, item: LedgerItem, metadata: LedgerMetadata, confirmed: Position
) -> LedgerSpan:
    """An open ledger up to a confirmed entry; its bookies are asked for its size alone."""
    ledger_id, last_entry = confirmed
    if item.ledger_id != ledger_id:
        raise PersistenceError(
            f"{topic}: ledger {item.ledger_id} has no end yet, though the log goes on to "
            f"{confirmed}; try again once its recovery is over"
        )
    try:
        size_bytes = (await end_of(log.context, metadata)).size_bytes
        if size_bytes < 0:
            size_bytes = await _estimated(log, metadata, last_entry)
    except (BookieError, TimeoutError):
        size_bytes = ENTRY_BYTES_GUESS * (last_entry + 1)  # the tasks fail if no copy answers
    return LedgerSpan(metadata, last_entry, size_bytes, item.created_ms, 0)


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
    described = await _described(log, topic)
    if described is None:
        return EARLIEST
    for item in reversed(described.ledgers):
        if item.closed_ms:
            last_entry = item.entries - 1
        else:
            span = await _span(log, topic, item)
            last_entry = -1 if span is None else span.last_entry
        if last_entry >= 0:
            return Position(item.ledger_id, last_entry)
    return Position(*described.last_position)


async def topic_start(log: Log, topic: TopicName) -> Position:
    """The position behind which the log begins: `TopicLog.trimmed_to`, from one record."""
    described = await _described(log, topic)
    return EARLIEST if described is None else Position(*described.last_position)


async def last_before(log: Log, topic: TopicName, first: Position) -> Position:
    """The last position of this log before `first`, a position of any log.

    Ledger ids grow over all topics, so a position of one partition splits the others, too.
    """
    described = await _described(log, topic)
    if described is None:
        return EARLIEST
    trimmed_to = Position(*described.last_position)
    ids = {item.ledger_id for item in described.ledgers}
    if first.ledger_id in ids or first <= trimmed_to:
        return Position(first.ledger_id, first.entry_id - 1)
    for item in reversed(described.ledgers):
        if item.ledger_id < first.ledger_id:
            if not item.closed_ms:
                return await topic_end(log, topic)
            if item.entries:
                return Position(item.ledger_id, item.entries - 1)
    return trimmed_to
