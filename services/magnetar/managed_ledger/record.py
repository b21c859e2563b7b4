"""The metadata records of a managed ledger and of its cursors.

`/managed-ledgers/{name}`: the list of ledgers, the topic's properties, where it was terminated.
`/managed-ledgers-cursors/{name}/{cursor}`: which ledger holds the cursor's state.

A record is only written by compare-and-swap on what its owner read or wrote last, so that a
second owner's first write makes the first owner's next one fail. The last ledger of the list may
be unfinished (`closed_ms` 0): its own record then says where it ended, or has to be asked for it
by recovery. Ids in `deleting` belong to nobody any more, but may still take space.
"""

from typing import Final
from urllib.parse import quote, unquote

import msgspec

from magnetar.core.errors import MetadataError
from magnetar.core.ids import EARLIEST, Position

MANAGED_LEDGERS_PREFIX: Final = "/managed-ledgers/"
CURSORS_PREFIX: Final = "/managed-ledgers-cursors/"
NO_LEDGER: Final = -1


class LedgerItem(msgspec.Struct, frozen=True, array_like=True):
    """One ledger of the list."""

    ledger_id: int
    created_ms: int
    closed_ms: int = 0
    entries: int = 0
    size_bytes: int = 0


class ManagedLedgerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`last_position` is the greatest position of a ledger that is no longer in the list."""

    created_ms: int
    modified_ms: int
    ledgers: tuple[LedgerItem, ...] = ()
    properties: dict[str, str] = {}
    last_position: Position = EARLIEST
    terminated_at: Position | None = None
    deleting: tuple[int, ...] = ()
    deleted: bool = False


class CursorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`mark_delete` is the state where there is no ledger, else what it was at the last roll."""

    mark_delete: Position
    created_ms: int
    last_active_ms: int
    switched_ms: int
    ledger_id: int = NO_LEDGER
    properties: dict[str, str] = {}
    deleting: tuple[int, ...] = ()


encode = msgspec.json.Encoder().encode
_managed_ledger_decoder = msgspec.json.Decoder(ManagedLedgerRecord)
_cursor_decoder = msgspec.json.Decoder(CursorRecord)


def managed_ledger_key(name: str) -> str:
    return MANAGED_LEDGERS_PREFIX + name


def cursors_prefix(name: str) -> str:
    return f"{CURSORS_PREFIX}{name}/"


def cursor_key(name: str, cursor: str) -> str:
    return cursors_prefix(name) + quote(cursor, safe="")


def cursor_name(key: str) -> str:
    """The cursor's name, from its key."""
    return unquote(key.rpartition("/")[2])


def decode_managed_ledger(key: str, value: bytes) -> ManagedLedgerRecord:
    """Raises MetadataError naming the key where the value is no managed ledger."""
    try:
        return _managed_ledger_decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no managed ledger: {error}") from error


def decode_cursor(key: str, value: bytes) -> CursorRecord:
    """Raises MetadataError naming the key where the value is no cursor."""
    try:
        return _cursor_decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no cursor: {error}") from error
