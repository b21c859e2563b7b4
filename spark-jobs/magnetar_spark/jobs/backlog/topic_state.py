"""One topic as metadata and bookies have it now: its ledgers, its subscriptions, what it keeps.

Positions and counts are made by the managed ledger's own index and acknowledgement state, so that
they mean, entry by entry, what brokers' stats mean by them (`msgBacklog` counts entries).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.records import read_record
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.record import (
    LedgerItem,
    ManagedLedgerRecord,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.records import OffloadRecord
from magnetar_spark.jobs.backlog.cursors import StoredCursor, acks_of, stored_cursors
from magnetar_spark.jobs.backlog.durable_end import durable_end
from magnetar_spark.jobs.backlog.entry_times import EntryTimes
from magnetar_spark.jobs.backlog.policies import Keeping
from magnetar_spark.jobs.backlog.trim_limits import NOT_COMPACTED, Compacted, compacted
from magnetar_spark.log.ledgers import live_files
from magnetar_spark.log.topics import log_name

RECORDS_AT_ONCE: Final = 32


@dataclass(slots=True)
class Subscription:
    """`acks` is None where the cursor could not be read."""

    name: str
    cursor: StoredCursor
    acks: AckState | None
    oldest: Position | None = None
    oldest_ms: int | None = None
    """When the oldest unacknowledged entry was published, by its producer's clock."""


@dataclass(slots=True)
class TopicState:
    """See the module's text. `sizes_exact` is whether every ledger's bytes are known exactly."""

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
    """Ledgers that are on record as to be deleted, and are still there."""
    files: Mapping[int, OffloadRecord] = field(default_factory=dict)
    """Of offloaded ledgers, live."""

    @property
    def name(self) -> str:
        return str(self.topic)


async def topic_state(
    context: LedgerContext, topic: TopicName, keeping: Keeping, cold: ColdFiles
) -> TopicState | None:
    """None where the topic has no log (any more). Raises MetadataError, BookieError."""
    name = log_name(topic)
    key = managed_ledger_key(name)
    stored = await context.store.get(key)
    if stored is None:
        return None
    # Cursors first: what is acknowledged was there before, so no cursor is beyond the end.
    cursors = await stored_cursors(context, name)
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
        for item, found in zip(items, metadata, strict=True):
            info, known = await _info(context, item, found)
            if info.entries or not info.closed_ms:
                index.add(info)
            exact = exact and known
            if found is not None:
                ledgers[item.ledger_id] = found
    files = await live_files(context.store, name)  # of ledgers that were let go meanwhile, too
    state = TopicState(
        topic,
        record,
        index,
        ledgers,
        [_subscription(index, each) for each in cursors],
        keeping,
        EntryTimes(context, cold, name, ledgers, files),
        await compacted(context.store, name, record.created_ms, keeping.compaction_bytes),
        exact,
        await _cursor_bytes(context, cursors),
        await _still_there(context, record.deleting),
        files,
    )
    for start in range(0, len(state.subscriptions), RECORDS_AT_ONCE):
        some = state.subscriptions[start : start + RECORDS_AT_ONCE]
        await asyncio.gather(*(_add_oldest(state.times, each) for each in some))
    return state


async def _metadata(context: LedgerContext, ledger_id: int) -> LedgerMetadata | None:
    try:
        return (await read_record(context, ledger_id))[0]
    except NoSuchLedger:
        return None  # trimmed since, or its bookies' copies were let go after an offload


async def _info(
    context: LedgerContext, item: LedgerItem, metadata: LedgerMetadata | None
) -> tuple[LedgerInfo, bool]:
    """The ledger, and whether its length is exact."""
    if item.closed_ms or metadata is None:
        return _made(item, item.entries, item.size_bytes, item.closed_ms), True
    end = await durable_end(context, metadata)
    made = _made(item, end.last_entry + 1, end.size_bytes, metadata.closed_ms)
    return made, end.exact


def _made(item: LedgerItem, entries: int, size_bytes: int, closed_ms: int) -> LedgerInfo:
    return LedgerInfo(
        item.ledger_id,
        item.created_ms,
        entries=entries,
        size_bytes=size_bytes,
        closed_ms=closed_ms,
    )


def _subscription(index: LedgerIndex, cursor: StoredCursor) -> Subscription:
    acks = None if cursor.state is None else acks_of(index, cursor.state)
    oldest = None if acks is None else acks.oldest_unacked
    return Subscription(cursor.name, cursor, acks, oldest)


async def _still_there(
    context: LedgerContext, ledger_ids: tuple[int, ...]
) -> dict[int, LedgerMetadata]:
    """The newest of the ledgers that are to be deleted, as far as they have a record."""
    newest = ledger_ids[-RECORDS_AT_ONCE:]
    found = await asyncio.gather(*(_metadata(context, each) for each in newest))
    return {each.ledger_id: each for each in found if each is not None}


async def _cursor_bytes(context: LedgerContext, cursors: list[StoredCursor]) -> int:
    """Of the ledgers that hold what is acknowledged."""
    ledgers = [each.ledger for each in cursors if each.ledger is not None]
    total = 0
    for start in range(0, len(ledgers), RECORDS_AT_ONCE):
        some = ledgers[start : start + RECORDS_AT_ONCE]
        ends = await asyncio.gather(*(durable_end(context, each) for each in some))
        total += sum(end.size_bytes for end in ends)
    return total


async def _add_oldest(times: EntryTimes, subscription: Subscription) -> None:
    """Reads when the oldest unacknowledged entry was published, where there is one."""
    if subscription.oldest is not None:
        subscription.oldest_ms = await times.publish_ms(subscription.oldest)
