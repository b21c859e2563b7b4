"""The metadata records of a managed ledger and of its cursors.

`/managed-ledgers/{name}`: the list of ledgers, the topic's properties, its termination.
`/managed-ledgers-cursors/{name}/{cursor}`: the ledger that holds the cursor's state.
`/managed-ledgers-cursors/{name}/!aborted`: the same for the aborted entries of transactions.

A record is only written by compare-and-swap over the revision that its owner last read or wrote, so
a second owner's first write makes the first owner's next write fail. The last ledger of the list
may be unfinished (`closed_ms` 0): its own record then has its end, or recovery determines it.
Ledgers in `deleting` are unused, but may still take space.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from magnetar.core.ids import EARLIEST, Position
from magnetar.metadata.records import RecordType

MANAGED_LEDGERS_PREFIX: Final = "/managed-ledgers/"
CURSORS_PREFIX: Final = "/managed-ledgers-cursors/"
NO_LEDGER: Final = -1
ABORTED_CURSOR: Final = "!aborted"
"""The key of the aborted entries of transactions, which are stored as a cursor's acks are.

No cursor of a client has this key: names are quoted in keys, and quoting replaces "!".
"""

DEDUPLICATION_CURSOR: Final = "pulsar.dedup"
"""Pulsar's name of the cursor whose payload holds a topic's sequence ids.

Its mark-delete is the last entry that the payload covers, so aborted entries are not acked on it.
"""

DELAYED_CURSOR: Final = "magnetar.delayed"
"""The name of the cursor whose payload holds the time index of a topic's delayed messages.

Its mark-delete is the last entry that the payload covers, so aborted entries are not acked on it.
"""

PAYLOAD_CURSORS: Final = frozenset({DEDUPLICATION_CURSOR, DELAYED_CURSOR})
"""The cursors that store state of the topic, and belong to no subscription."""

WATERMARK_PROPERTY: Final = "magnetar.transactions.watermark"
"""The property of a log that has had transactions: every entry up to this position is settled."""


class LedgerItem(msgspec.Struct, frozen=True, array_like=True):
    """One ledger of the list."""

    ledger_id: int
    created_ms: int
    closed_ms: int = 0
    entries: int = 0
    size_bytes: int = 0


class ManagedLedgerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a managed ledger. `last_position` is the last trimmed position."""

    created_ms: int
    modified_ms: int
    ledgers: tuple[LedgerItem, ...] = ()
    properties: dict[str, str] = {}
    last_position: Position = EARLIEST
    terminated_at: Position | None = None
    deleting: tuple[int, ...] = ()
    deleted: bool = False


class CursorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a cursor. `mark_delete` is its state without a ledger, else that of the last
    roll. `kept` are closed ledgers that the cursor's payload refers to."""

    mark_delete: Position
    created_ms: int
    last_active_ms: int
    switched_ms: int
    ledger_id: int = NO_LEDGER
    properties: dict[str, str] = {}
    deleting: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    initial: Position | None = None
    """Mark-delete when the cursor was created; None in records of earlier versions."""


decode_managed_ledger = RecordType(ManagedLedgerRecord, "managed ledger").decode
decode_cursor = RecordType(CursorRecord, "cursor").decode


def watermark_of(properties: Mapping[str, str]) -> Position | None:
    """Returns the watermark of a log with these properties, None without transactions."""
    text = properties.get(WATERMARK_PROPERTY)
    if text is None:
        return None
    ledger_id, _, entry_id = text.rpartition(":")
    return Position(int(ledger_id), int(entry_id))


def managed_ledger_key(name: str) -> str:
    return MANAGED_LEDGERS_PREFIX + name


def cursors_prefix(name: str) -> str:
    return f"{CURSORS_PREFIX}{name}/"


def cursor_key(name: str, cursor: str) -> str:
    return cursors_prefix(name) + quote(cursor, safe="")


def aborted_key(name: str) -> str:
    """Returns the key of the log's aborted entries."""
    return cursors_prefix(name) + ABORTED_CURSOR


def is_aborted_key(key: str) -> bool:
    """Whether a key below `cursors_prefix` is that of the aborted entries, and not of a cursor."""
    return key.rpartition("/")[2] == ABORTED_CURSOR


def cursor_name(key: str) -> str:
    """Returns the cursor's name, given its key."""
    return unquote(key.rpartition("/")[2])
