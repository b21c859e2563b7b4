"""Reads the current state of a topic from metadata and bookies: ledgers, subscriptions, policies.

Positions and counts come from the managed ledger's own index and acknowledgment state, so they
agree with brokers' stats entry by entry (`msgBacklog` counts entries).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.log.transactions.aborted_set import aborted_set
from magnetar.jobs.log.transactions.visible import NONE_ABORTED
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.records import read_record
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.cursor_state import StoredState
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.record import (
    PAYLOAD_CURSORS,
    LedgerItem,
    ManagedLedgerRecord,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.records import OffloadRecord
from magnetar.offload.repository import OffloadRepository
from magnetar_spark.jobs.backlog.gather.cursors import StoredCursor, acks_of, stored_cursors
from magnetar_spark.jobs.backlog.gather.durable_end import durable_end
from magnetar_spark.jobs.backlog.gather.policies import Keeping
from magnetar_spark.jobs.backlog.gather.trim_limits import NOT_COMPACTED, Compacted, compacted
from magnetar_spark.jobs.backlog.scan.entry_times import EntryTimes

RECORDS_AT_ONCE: Final = 32


@dataclass(slots=True)
class Subscription:
    """A durable subscription. `acks` is None if the cursor could not be read."""

    name: str
    cursor: StoredCursor
    acks: AckState | None
    oldest: Position | None = None
    oldest_ms: int | None = None
    """The publish time of the oldest unacknowledged entry, by its producer's clock."""


@dataclass(slots=True)
class TopicState:
    """The state of a topic. `sizes_exact` is whether the bytes of all ledgers are exact."""

    topic: TopicName
    record: ManagedLedgerRecord
    index: LedgerIndex
    ledgers: Mapping[int, LedgerMetadata]
    subscriptions: list[Subscription]
    keeping: Keeping
    times: EntryTimes
    compacted: Compacted = NOT_COMPACTED
    sizes_exact: bool = True
    cursor_bytes: int = 0
    deleting: Mapping[int, LedgerMetadata] = field(default_factory=dict)
    """Existing ledgers that are recorded for deletion."""
    files: Mapping[int, OffloadRecord] = field(default_factory=dict)
    """The live files of offloaded ledgers."""
    aborted: StoredState = NONE_ABORTED
    """The entries of aborted transactions."""

    @property
    def name(self) -> str:
        """The full name of the topic."""
        return str(self.topic)


async def topic_state(
    context: LedgerContext, topic: TopicName, keeping: Keeping, cold: ColdFiles
) -> TopicState | None:
    """The state of a topic; None if it has no log. Raises MetadataError, BookieError."""
    name = log_name(topic)
    key = managed_ledger_key(name)
    stored = await context.store.get(key)
    if stored is None:
        return None
    # Cursors first: acknowledged entries existed before, so no cursor is beyond the end. And the
    # aborted set before the record: ledgers that were trimmed before, all of whose entries the set
    # may count as aborted, are then no longer listed.
    cursors = await stored_cursors(context, name)
    aborted = await aborted_set(context, name)
    again = await context.store.get(key)
    if again is None:
        return None
    record = decode_managed_ledger(key, again.value)
    if record.deleted:
        return None
    index = LedgerIndex(record.last_position)
    ledgers: dict[int, LedgerMetadata] = {}
    exact = True
    for start in range(0, len(record.ledgers), RECORDS_AT_ONCE):
        items = record.ledgers[start : start + RECORDS_AT_ONCE]
        metadata = await asyncio.gather(*(_metadata(context, item.ledger_id) for item in items))
        for item, ledger in zip(items, metadata, strict=True):
            info, is_exact = await _info(context, item, ledger)
            if info.entries or not info.closed_ms:
                index.add(info)
            exact = exact and is_exact
            if ledger is not None:
                ledgers[item.ledger_id] = ledger
    # After the ledgers' records: ledgers that were deleted meanwhile have a live file by now.
    live = await OffloadRepository(context.store).files(name)
    files = {ledger_id: file.record for ledger_id, file in live.items()}
    state = TopicState(
        topic,
        record,
        index,
        ledgers,
        [_subscription(index, cursor, aborted) for cursor in cursors],
        keeping,
        EntryTimes(context, cold, name, ledgers, files),
        await compacted(context.store, name, record.created_ms, keeping.compaction_bytes),
        exact,
        await _cursor_bytes(context, cursors),
        await _existing(context, record.deleting),
        files,
        aborted or NONE_ABORTED,
    )
    for start in range(0, len(state.subscriptions), RECORDS_AT_ONCE):
        batch = state.subscriptions[start : start + RECORDS_AT_ONCE]
        await asyncio.gather(*(_add_oldest(state.times, subscription) for subscription in batch))
    return state


async def _metadata(context: LedgerContext, ledger_id: int) -> LedgerMetadata | None:
    try:
        return (await read_record(context, ledger_id))[0]
    except NoSuchLedger:
        return None  # trimmed since, or offloaded and deleted on its bookies


async def _info(
    context: LedgerContext, item: LedgerItem, metadata: LedgerMetadata | None
) -> tuple[LedgerInfo, bool]:
    """The ledger, and whether its length is exact."""
    if item.closed_ms or metadata is None:
        return _ledger_info(item, item.entries, item.size_bytes, item.closed_ms), True
    end = await durable_end(context, metadata)
    info = _ledger_info(item, end.last_entry + 1, end.size_bytes, metadata.closed_ms)
    return info, end.exact


def _ledger_info(item: LedgerItem, entries: int, size_bytes: int, closed_ms: int) -> LedgerInfo:
    return LedgerInfo(
        item.ledger_id,
        item.created_ms,
        entries=entries,
        size_bytes=size_bytes,
        closed_ms=closed_ms,
    )


def _subscription(
    index: LedgerIndex, cursor: StoredCursor, aborted: StoredState | None
) -> Subscription:
    acks = None if cursor.state is None else acks_of(index, cursor.state)
    if acks is not None and aborted is not None and cursor.name not in PAYLOAD_CURSORS:
        # As a broker that loads the topic: its own acks of them may not be stored yet.
        acks.skip_all_of(acks_of(index, aborted))
    oldest = None if acks is None else acks.oldest_unacked
    return Subscription(cursor.name, cursor, acks, oldest)


async def _existing(
    context: LedgerContext, ledger_ids: tuple[int, ...]
) -> dict[int, LedgerMetadata]:
    """The newest of the ledgers recorded for deletion, if they still have a record."""
    newest = ledger_ids[-RECORDS_AT_ONCE:]
    metadata = await asyncio.gather(*(_metadata(context, ledger_id) for ledger_id in newest))
    return {ledger.ledger_id: ledger for ledger in metadata if ledger is not None}


async def _cursor_bytes(context: LedgerContext, cursors: list[StoredCursor]) -> int:
    """The bytes of all cursor ledgers."""
    ledgers = [cursor.ledger for cursor in cursors if cursor.ledger is not None]
    total = 0
    for start in range(0, len(ledgers), RECORDS_AT_ONCE):
        batch = ledgers[start : start + RECORDS_AT_ONCE]
        ends = await asyncio.gather(*(durable_end(context, ledger) for ledger in batch))
        total += sum(end.size_bytes for end in ends)
    return total


async def _add_oldest(times: EntryTimes, subscription: Subscription) -> None:
    """Reads the publish time of the oldest unacknowledged entry, if there is one."""
    if subscription.oldest is not None:
        subscription.oldest_ms = await times.publish_ms(subscription.oldest)
