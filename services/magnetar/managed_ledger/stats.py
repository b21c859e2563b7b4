"""Pulsar's internal stats of a managed ledger, under Pulsar's names.

The structs encode to the JSON fields of `PersistentTopicInternalStats`. Counters start when the
managed ledger is opened. `messagesConsumedCounter` is the entries added since then minus the
backlog, so it may be negative, as Pulsar's is.
"""

from datetime import UTC, datetime

import msgspec

from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import NO_LEDGER


class LedgerStats(msgspec.Struct, rename="camel"):
    """One ledger; for the newest, its confirmed part."""

    ledger_id: int
    entries: int
    size: int
    offloaded: bool = False
    under_replicated: bool = False


class CursorStats(msgspec.Struct, rename="camel"):
    """One cursor."""

    mark_delete_position: str
    read_position: str
    waiting_read_op: bool
    pending_read_ops: int
    messages_consumed_counter: int
    cursor_ledger: int
    cursor_ledger_last_entry: int
    individually_deleted_messages: str
    last_ledger_switch_timestamp: str
    state: str
    active: bool
    number_of_entries_since_first_not_acked_message: int
    total_non_contiguous_deleted_messages_range: int
    properties: dict[str, int] = {}
    """The highest stored sequence id by producer, for the cursor of deduplication; else empty.

    Pulsar's clients expect integers here, next to the cursor's position. The topic's stats have the
    properties of a subscription.
    """


class ManagedLedgerStats(msgspec.Struct, rename="camel"):
    """One managed ledger."""

    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_ledger_created_timestamp: str
    waiting_cursors_count: int
    pending_add_entries_count: int
    last_confirmed_entry: str
    state: str
    ledgers: list[LedgerStats]
    cursors: dict[str, CursorStats]
    properties: dict[str, str]


def iso_time(time_ms: int) -> str:
    """Formats a time as Pulsar does: ISO 8601 with milliseconds and an offset."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def cursor_stats(cursor: Cursor, entries_added: int, *, caught_up: bool) -> CursorStats:
    """Returns the stats of one cursor."""
    cursor_log = cursor.log
    mark, read = cursor.mark_delete, cursor.read_position
    return CursorStats(
        mark_delete_position=str(mark),
        read_position=str(read),
        waiting_read_op=caught_up,
        pending_read_ops=cursor.pending_read_ops,
        messages_consumed_counter=entries_added - cursor.backlog,
        cursor_ledger=NO_LEDGER if cursor_log is None else cursor_log.ledger_id,
        cursor_ledger_last_entry=-1 if cursor_log is None else cursor_log.last_entry,
        individually_deleted_messages=cursor.individually_deleted(),
        last_ledger_switch_timestamp=iso_time(
            cursor.last_active_ms if cursor_log is None else cursor_log.record.switched_ms
        ),
        state=cursor.state,
        active=caught_up,
        number_of_entries_since_first_not_acked_message=cursor.entries_since_first_unacked,
        total_non_contiguous_deleted_messages_range=cursor.ranges_count,
    )


def managed_ledger_stats(ledger: ManagedLedger) -> ManagedLedgerStats:
    """Returns the stats of a managed ledger, for people."""
    infos = ledger.ledgers
    newest = infos[-1] if infos and not infos[-1].closed_ms else None
    last = ledger.last_confirmed
    added = ledger.entries_added
    caught_up = {name for name, c in ledger.cursors.items() if c.read_position > last}
    return ManagedLedgerStats(
        entries_added_counter=added,
        number_of_entries=ledger.entries_total,
        total_size=ledger.bytes_total,
        current_ledger_entries=0 if newest is None else newest.entries,
        current_ledger_size=0 if newest is None else newest.size_bytes,
        last_ledger_created_timestamp=iso_time(
            infos[-1].created_ms if infos else ledger.created_ms
        ),
        waiting_cursors_count=len(caught_up),
        pending_add_entries_count=ledger.pending_appends,
        last_confirmed_entry=str(last),
        state=ledger.state,
        ledgers=[LedgerStats(info.ledger_id, info.entries, info.size_bytes) for info in infos],
        cursors={
            name: cursor_stats(cursor, added, caught_up=name in caught_up)
            for name, cursor in ledger.cursors.items()
        },
        properties=dict(ledger.properties),
    )
