"""`GET …/internalStats` and `…/internal-info`: ledgers and cursors, loaded and in the records."""

from collections.abc import Container
from typing import Final

import msgspec

from magnetar.admin.stats.broken import broken_cursor_stats
from magnetar.admin.times import iso
from magnetar.broker.dispatch.multiple import MultipleConsumersDispatcher
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.deduplication.snapshots import CURSOR as DEDUPLICATION_CURSOR
from magnetar.broker.topic.persistent import PersistentTopic, as_persistent
from magnetar.compaction.records import CompactionRecord
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.factory import ManagedLedgerInfo
from magnetar.managed_ledger.stats import CursorStats, managed_ledger_stats

NO_COMPACTED_LEDGER: Final[dict[str, object]] = {
    "ledgerId": -1,
    "entries": -1,
    "size": -1,
    "offloaded": False,
    "underReplicated": False,
}


def internal_stats(
    topic: Topic, moved: Container[int] = (), compacted: CompactionRecord | None = None
) -> dict[str, object]:
    """Returns the loaded topic's ledgers and cursors; `moved` ledgers are offloaded."""
    persistent = as_persistent(topic)
    if persistent is None:
        return {
            "entriesAddedCounter": 0,
            "numberOfEntries": 0,
            "totalSize": 0,
            "currentLedgerEntries": 0,
            "currentLedgerSize": 0,
            "waitingCursorsCount": 0,
            "pendingAddEntriesCount": 0,
            "cursors": {},
        }
    stats = managed_ledger_stats(persistent.managed_ledger)
    stats.last_ledger_created_timestamp = _utc(stats.last_ledger_created_timestamp)
    for ledger in stats.ledgers:
        ledger.offloaded = ledger.ledger_id in moved
    document: dict[str, object] = msgspec.to_builtins(stats)
    if persistent.deduplication is not None and DEDUPLICATION_CURSOR in stats.cursors:
        ids = persistent.deduplication.last_sequence_ids
        stats.cursors[DEDUPLICATION_CURSOR].properties = ids
    document["cursors"] = {
        name: _cursor(persistent, cursor, persistent.subscriptions.get(name))
        for name, cursor in stats.cursors.items()
    } | broken_cursor_stats(persistent)
    document["schemaLedgers"] = []
    document["compactedLedger"] = compacted_ledger(compacted)
    return document


def compacted_ledger(record: CompactionRecord | None) -> dict[str, object]:
    """Returns the latest artifact as Pulsar's compacted ledger; an artifact has no ledger id."""
    if record is None:
        return dict(NO_COMPACTED_LEDGER)
    artifact = {"entries": record.entries, "size": record.length_bytes, "offloaded": True}
    return NO_COMPACTED_LEDGER | artifact


def _cursor(
    topic: PersistentTopic, cursor: CursorStats, subscription: PersistentSubscription | None
) -> dict[str, object]:
    """Returns a cursor's stats with the pending reads of its subscription.

    If the cursor is older than the topic's first ledger, the stats show the position before the
    first entry, which is equivalent.
    """
    dispatcher = None if subscription is None else subscription.dispatcher
    connected = dispatcher is not None and bool(dispatcher.consumers)
    replays = len(dispatcher.replays) if isinstance(dispatcher, MultipleConsumersDispatcher) else 0
    document: dict[str, object] = msgspec.to_builtins(cursor)
    ledger = topic.managed_ledger
    if cursor.mark_delete_position == str(EARLIEST) and ledger.ledgers:
        document["markDeletePosition"] = str(ledger.first_position)
        if cursor.read_position.startswith("-1:"):
            document["readPosition"] = str(ledger.next_position(ledger.first_position))
    # Pulsar includes the entry at the read position.
    since = cursor.number_of_entries_since_first_not_acked_message + 1
    document["numberOfEntriesSinceFirstNotAckedMessage"] = since
    document["lastLedgerSwitchTimestamp"] = _utc(cursor.last_ledger_switch_timestamp)
    document["subscriptionHavePendingRead"] = connected and cursor.waiting_read_op
    document["subscriptionHavePendingReplayRead"] = replays > 0
    return document


def _utc(time: str) -> str:
    """Replaces `+00:00` by Pulsar's `Z`."""
    return time.removesuffix("+00:00") + "Z" if time.endswith("+00:00") else time


def internal_info(info: ManagedLedgerInfo, moved: Container[int] = ()) -> dict[str, object]:
    """Returns the records of a topic in the metadata store.

    The properties of subscriptions are omitted: clients expect numbers as a cursor's properties.
    """
    record = info.record
    cursors: dict[str, object] = {}
    for name, cursor in info.cursors.items():
        mark = cursor.mark_delete
        cursors[name] = {
            "creationDate": iso(cursor.created_ms),
            "modificationDate": iso(cursor.switched_ms),
            "cursorsLedgerId": cursor.ledger_id,
            "markDelete": {"ledgerId": mark.ledger_id, "entryId": mark.entry_id},
        }
    ledgers: list[dict[str, object]] = []
    for ledger in record.ledgers:
        document: dict[str, object] = {
            "ledgerId": ledger.ledger_id,
            "timestamp": ledger.closed_ms or ledger.created_ms,
            "isOffloaded": ledger.ledger_id in moved,
        }
        if ledger.closed_ms:
            document |= {"entries": ledger.entries, "size": ledger.size_bytes}
        ledgers.append(document)
    topic_info: dict[str, object] = {
        "version": info.revision,
        "creationDate": iso(record.created_ms),
        "modificationDate": iso(record.modified_ms),
        "ledgers": ledgers,
        "cursors": cursors,
    }
    if record.terminated_at is not None:
        end = record.terminated_at
        topic_info["terminatedPosition"] = {"ledgerId": end.ledger_id, "entryId": end.entry_id}
    if record.properties:
        topic_info["properties"] = dict(record.properties)
    return topic_info
