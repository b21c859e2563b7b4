"""`GET …/internalStats` and `…/internal-info`: ledgers and cursors, as loaded and as recorded."""

import msgspec

from magnetar.admin.times import iso
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topics import Topic
from magnetar.managed_ledger.factory import ManagedLedgerInfo

NO_COMPACTED_LEDGER = {
    "ledgerId": -1,
    "entries": -1,
    "size": -1,
    "offloaded": False,
    "underReplicated": False,
}


def internal_stats(topic: Topic) -> dict[str, object]:
    """The loaded topic's ledgers and cursors."""
    if not isinstance(topic, PersistentTopic):
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
    document: dict[str, object] = msgspec.to_builtins(topic.managed_ledger.stats())
    document["schemaLedgers"] = []
    document["compactedLedger"] = NO_COMPACTED_LEDGER
    return document


def internal_info(info: ManagedLedgerInfo) -> dict[str, object]:
    """The records of a topic in the metadata store."""
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
        if cursor.properties:
            cursors[name]["properties"] = dict(cursor.properties)  # type: ignore[index]
    ledgers: list[dict[str, object]] = []
    for ledger in record.ledgers:
        document: dict[str, object] = {
            "ledgerId": ledger.ledger_id,
            "timestamp": ledger.closed_ms or ledger.created_ms,
            "isOffloaded": False,
        }
        if ledger.closed_ms:
            document |= {"entries": ledger.entries, "size": ledger.size_bytes}
        ledgers.append(document)
    found: dict[str, object] = {
        "version": info.revision,
        "creationDate": iso(record.created_ms),
        "modificationDate": iso(record.modified_ms),
        "ledgers": ledgers,
        "cursors": cursors,
    }
    if record.terminated_at is not None:
        end = record.terminated_at
        found["terminatedPosition"] = {"ledgerId": end.ledger_id, "entryId": end.entry_id}
    if record.properties:
        found["properties"] = dict(record.properties)
    return found
